"""TwinScope probes: what runs inside trainers and engines.

`import twinscope` loads nothing but this file; the first use of a name below loads the module it
lives in (PEP 562), and that needs the standard library only. torch and numpy are used when the
host has already imported them, never imported for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinscope.books import Count, ProbeStats
    from twinscope.errors import ConfigError, DidNotAttach, TwinScopeError, WireError
    from twinscope.estimators import approx_kl, masked_mean
    from twinscope.gate import Gate
    from twinscope.kl_control import AdaptiveKLController
    from twinscope.probe import Probe

__version__ = "0.1.0"

_HOMES = {
    "AdaptiveKLController": "twinscope.kl_control",
    "ConfigError": "twinscope.errors",
    "Count": "twinscope.books",
    "DidNotAttach": "twinscope.errors",
    "Gate": "twinscope.gate",
    "Probe": "twinscope.probe",
    "ProbeStats": "twinscope.books",
    "TwinScopeError": "twinscope.errors",
    "WireError": "twinscope.errors",
    "approx_kl": "twinscope.estimators",
    "masked_mean": "twinscope.estimators",
}

__all__ = [
    "AdaptiveKLController",
    "ConfigError",
    "Count",
    "DidNotAttach",
    "Gate",
    "Probe",
    "ProbeStats",
    "TwinScopeError",
    "WireError",
    "__version__",
    "approx_kl",
    "masked_mean",
]


def __getattr__(name: str) -> Any:  # Any: PEP 562 serves classes of different types
    """Load a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
