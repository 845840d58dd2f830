"""Every exception TwinScope raises, in one tree.

TwinScopeError
├── ConfigError     a setting or argument is unusable: raised at start, never during a run
├── WireError       a batch is malformed: names the field, the value and the fix
└── DidNotAttach    a host hook refuses this host, with the reason (swallowed when automatic)

The service adds its own branches in `twinscope_service.errors`.
"""

from __future__ import annotations


class TwinScopeError(Exception):
    """Base of everything TwinScope raises."""


class ConfigError(TwinScopeError, ValueError):
    """A setting or argument is unusable."""


class WireError(TwinScopeError, ValueError):
    """A batch is malformed: `field` is where, `value` what was found, `fix` what to send."""

    def __init__(self, field: str, value: object, fix: str) -> None:
        super().__init__(field, value, fix)
        self.field, self.fix = field, fix
        shown = repr(value)
        self.value = shown if len(shown) <= 120 else shown[:117] + "..."

    def __str__(self) -> str:
        return f"{self.field}: got {self.value}; {self.fix}"


class DidNotAttach(TwinScopeError):
    """A host hook does not support this host; the message says which version was found."""
