"""Which closed step is the run's baseline: the healthy level that later steps are measured against.

A fault that creeps is `ok` for some steps, each a little louder than the one before. So a step
takes the baseline's place only near the lowest level of late, or when the level has been higher for
so long that it is the run's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from twinscope_service.views import StepView

SURE = 0.9  # confidence in noise from which a step may be the baseline
NEAR = 1.25  # times the lowest level: what healthy steps of other prompts differ by
LEARNT = 30  # healthy steps above that, without one near it: k3 that grows by more than 1.2 % a
# step is by then no longer told from a fault, so it never gets here


@dataclass(frozen=True)
class Baseline:
    """The chosen step; the lowest k3 of healthy steps; how many since were too far above it."""

    step: int
    lowest: float
    above: int = 0


def renewed(known: Baseline | None, view: StepView, *, k3: float | None) -> Baseline | None:
    """The baseline after a closed step, which it now is if `step` says so.

    `k3`: of the step, or of the small steps that it was judged together with; None: unknown.
    """
    if k3 is None or not _surely_healthy(view, first=known is None):
        return known
    if known is None:
        return Baseline(view.step, k3)
    if k3 <= NEAR * known.lowest:
        return Baseline(view.step, min(k3, known.lowest))
    if known.above + 1 >= LEARNT:
        return Baseline(view.step, k3)
    return replace(known, above=known.above + 1)


def _surely_healthy(view: StepView, *, first: bool) -> bool:
    """May this step be what later ones are measured against? `first`: there is none yet."""
    if view.verdict != "ok" or not view.diagnosis:
        return view.verdict == "ok"
    best = view.diagnosis[0]
    return bool(best["family"] == "none" and (first or best["confidence"] >= SURE))
