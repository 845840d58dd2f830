"""The records of the detect stage: what a detector sees (Observation), what it says (Finding)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from twinscope.errors import ConfigError
from twinscope_service.detect.thresholds import check_arl

Kind = Literal["spike", "level_shift", "growth", "silence", "bypass", "inconsistent"]
FindingState = Literal["provisional", "firing", "resolved"]
Scale = Literal["log", "linear"]


def fell(before: float | None, after: float | None) -> bool:
    """Did a level come nearer to 0, as when both sides come nearer to each other?"""
    return before is not None and after is not None and abs(after) < abs(before)


@dataclass(frozen=True)
class Observation:
    """One series at one step. `value` is plain (never its log); None: the metric is not known."""

    series: str  # "k3", "abs_p99", "k3{replica=3}" ...
    step: int
    value: float | None
    tokens: int  # counted tokens behind the value
    samples: int
    standard_error: float | None = None  # of `value`, over samples; None: unknown
    scale: Scale = (
        "log"  # log: levels that multiply (k3); linear: signed levels around 0 (E[rho]-1)
    )
    least: float = 0.0  # levels below this are of no interest to anybody
    family: int = 1  # series that share one false-alarm budget (the groups of one run)
    expected: float | None = None  # the level a healthy series must have; None: its own past tells


@dataclass(frozen=True)
class Finding:
    """Something changed, or what had changed is over. Serialisable by `as_json`."""

    kind: Kind
    state: FindingState
    series: str
    step: int  # where it was seen
    onset_step: int | None  # where it began, estimated; None where the kind has no onset
    before: float | None
    after: float | None
    ratio: float | None  # after / before; None on a linear scale or with nothing to compare
    confidence: float | None  # 1 - P(as much by chance in 100 healthy steps); None: not a test
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values, for the store and the API."""
        return {**self.__dict__, "evidence": dict(self.evidence)}


@dataclass(frozen=True)
class DetectOptions:
    """What the user may say about detection. Every field is checked when the service starts."""

    target_arl: float = 10_000.0  # healthy steps between two false alarms of one series
    min_ratio: float = 1.15  # a smaller certain shift is learnt, not reported
    min_change: float = 0.005  # the same on a linear scale
    spike_ratio: float = 2.0  # a spike must exceed the median by this factor
    growth_doubling_steps: float = 500.0  # slower growth is not reported
    resolve_steps: int = 20  # steps back at the old level before a shift is called resolved
    bypass_steps: int = 2  # steps with identical log-probs on all tokens before `bypass` fires
    bypass_expected: bool = False  # the run is meant to be bitwise identical: no bypass alarm
    silence_steps: int = 3  # steps in a row without a side or a metric before `silence` fires
    silence_periods: float = 3.0  # and this many median step times without any step ...
    silence_seconds: float = 900.0  # ... but not before so many seconds

    def __post_init__(self) -> None:
        check_arl(self.target_arl, name="detect_target_arl")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not least <= value < 1e9:
                raise ConfigError(
                    f"detect_{name}: got {value!r}; give a number of at least {least}"
                )


_LEAST = {
    "min_ratio": 1.0,
    "min_change": 0.0,
    "spike_ratio": 1.0,
    "growth_doubling_steps": 1.0,
    "resolve_steps": 1,
    "bypass_steps": 1,
    "silence_steps": 1,
    "silence_periods": 1.0,
    "silence_seconds": 1.0,
}
