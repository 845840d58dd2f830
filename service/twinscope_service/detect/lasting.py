"""A verdict that lasts: it is told where no series changed, and it does not hop while one stands.

The detectors say what changed against the run's own past; a run that is wrong from its first step
has no such past, so `inconsistent` for three steps is news by itself. And where a level has shifted
and a step since then was inconsistent, one and the same fault may stay within the level bands at
some steps: these are not `ok` until the level has come down. Pure: state in, state and word out.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from twinscope_service.detect.findings import Finding, FindingState

FIRES = 3  # inconsistent steps, without as many `ok` ones in a row between them
RESOLVES = 5  # `ok` steps in a row that end it
STANDS = 5.0  # times the healthy level: a step so high is not ok if its like was inconsistent
SURE = 0.9  # confidence from which a cause outweighs silent level bands, and is remembered
TOLD_BY = frozenset({"level_shift", "growth", "bypass"})  # alerts that say it already


@dataclass(frozen=True)
class Lasting:
    """What the verdicts of a run amount to so far."""

    count: int = 0  # inconsistent steps since the last spell of `ok`
    since: int | None = None  # the first of them
    newest: int | None = None  # the latest inconsistent step of the run
    calm: int = 0  # `ok` steps in a row
    firing: bool = False
    cause: Mapping[str, Any] | None = None  # the latest cause that was sure, as in a diagnosis
    cause_step: int = -1  # and the step that named it

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, for the store."""
        return asdict(self)


def lasting_from_json(stored: Mapping[str, Any] | None) -> Lasting:
    """Inverse of `as_json`; fresh without one, or with one of another version."""
    known = {field.name for field in fields(Lasting)}
    return Lasting(**stored) if stored is not None and stored.keys() == known else Lasting()


def update(
    state: Lasting,
    verdict: str,
    *,
    step: int,
    sure: Mapping[str, Any] | None,
    firing: Collection[str],
) -> tuple[Lasting, list[Finding]]:
    """Take one closed step in.

    sure: the cause of which this step by itself is sure; firing: kinds of alerts that fire.
    """
    if verdict == "inconsistent":
        if sure is not None:
            state = replace(state, cause=sure, cause_step=step)
        since = step if state.since is None else state.since
        state = replace(state, count=state.count + 1, since=since, newest=step, calm=0)
        if state.count < FIRES or state.firing or TOLD_BY.intersection(firing):
            return state, []
        steps = f"{state.count} steps" if since + state.count == step + 1 else "most steps"
        message = f"the verdict is inconsistent on {steps} since step {since}"
        return replace(state, firing=True), [_finding("firing", step, since, message)]
    if verdict != "ok":
        return state, []
    state = replace(state, calm=state.calm + 1)
    if state.firing and state.calm == RESOLVES:
        message = f"the verdict is ok again for {RESOLVES} steps, at step {step}"
        over = _finding("resolved", step, state.since, message)
        return Lasting(newest=state.newest, calm=state.calm), [over]
    if not state.firing and state.calm >= FIRES:
        return Lasting(newest=state.newest, calm=state.calm), []
    return state, []


def stands(state: Lasting, shift: Mapping[str, Any] | None, k3: float | None) -> str | None:
    """Why a step within the level bands is no `ok`: its like was inconsistent. None: it may be ok.

    shift: the reported shift of ln k3 (`level.Excursion`); k3 of this step, nats per token.
    """
    if shift is None or not k3 or state.newest is None or state.newest < shift["onset_step"]:
        return None
    times = k3 / math.exp(shift["before"])
    if shift["after"] < shift["before"] or times < STANDS:
        return None
    return (
        f"rollout_train_kl {k3:.3g} is still {times:.3g} times the level before step "
        f"{shift['onset_step']}, as at step {state.newest}, which was inconsistent"
    )


def recall(
    state: Lasting, shift: Mapping[str, Any] | None, diagnosis: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], ...]:
    """The causes of a step at which the shift still stands, with the one that was sure before.

    One and the same fault is seen more clearly at some steps than at others. What is sure now comes
    first in any case.
    """
    cause = state.cause
    if cause is None or shift is None or state.cause_step < shift["onset_step"]:
        return tuple(diagnosis)
    leading = diagnosis[0] if diagnosis else None
    if leading is not None and (
        leading["confidence"] >= SURE or leading["cause"] == cause["cause"]
    ):
        return tuple(diagnosis)
    then = {**cause, "evidence": f"as at step {state.cause_step}: {cause['evidence']}"}
    others = (one for one in diagnosis if one["cause"] not in (cause["cause"], "numerical_noise"))
    return (then, *others)


def _finding(state: FindingState, step: int, since: int | None, message: str) -> Finding:
    return Finding("inconsistent", state, "verdict", step, since, None, None, None, None, message)
