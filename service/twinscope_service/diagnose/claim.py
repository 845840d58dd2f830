"""What one cause's function returns: a claim with its strength, evidence and counterfactual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from twinscope_service.diagnose.view import View

Kind = Literal["exact", "tested", "declared", "set"]
# this step's numbers, its first tokens in shared contexts, earlier steps, or a healthy level (the
# run's own, else a typical one)
K3From = Literal["step", "contexts", "history", "level"]


@dataclass(frozen=True)
class Claim:
    """One cause's case.

    `strength` is in units of its threshold: 1 is just convincing, 2 is twice as much evidence;
    below 1 it is a hint. `kind` says what the evidence is: `exact` a count that chance cannot
    give, `tested` a statistic with its standard error, `declared` a difference that headers or
    events state, `set` a level without a structure that would name one cause. `touched` are the
    samples concerned, when not all (None: all).
    """

    cause: str
    kind: Kind
    strength: float
    evidence: str
    estimate: Mapping[str, Any] = field(default_factory=dict)
    k3_after: float | None = None
    k3_from: K3From = "step"  # where k3_after comes from, see rank.K3_IS
    explains: float = 1.0  # share of the k3 above the floor that goes with the cause
    group: tuple[str, ...] = ()
    separator: str = ""
    touched: Any = None  # Mask | None
    hides: bool = True  # False: what else is found stays true beside it
    fix: str = ""  # "": the cause's own, from fixes.py


Diagnostic = Callable[[View], Claim | None]


def explained(view: View, k3_after: float) -> float:
    """Share of the k3 above the healthy floor that is gone at `k3_after`, 0 to 1."""
    excess = view.k3 - view.floor
    if excess <= 0.0:
        return 0.0
    return min(max((view.k3 - max(k3_after, view.floor)) / excess, 0.0), 1.0)
