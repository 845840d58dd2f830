"""What is missing, and what is too good to be true: silence and bypass, as pure state machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from twinscope_service.detect.findings import DetectOptions, Finding, FindingState, Kind

BYPASS_TOKENS = 100  # with fewer counted tokens, identical log-probs prove nothing
PERIODS = 20  # step times remembered


@dataclass(frozen=True)
class StepSeen:
    """One closed step, as far as presence is concerned. `at`: seconds since the epoch."""

    step: int
    at: float | None
    rollout: int  # samples received
    train: int
    counted: int  # tokens
    delta_zero: int  # counted tokens whose sides are exactly equal


@dataclass(frozen=True)
class PresenceState:
    """Runs of consecutive steps, and when steps close."""

    missing: Mapping[str, int] | None = None  # what -> steps in a row without it
    missing_since: Mapping[str, int] | None = None  # what -> first such step
    identical: int = 0  # steps in a row with Δ ≡ 0
    identical_since: int | None = None
    last_at: float | None = None
    last_step: int | None = None
    periods: tuple[float, ...] = ()  # seconds between closes, newest last
    overdue: bool = False  # a heartbeat alarm fires
    finished: bool = False  # the run said that it is over

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def presence_from_json(stored: Mapping[str, Any]) -> PresenceState:
    """Inverse of `as_json`."""
    return PresenceState(**{**stored, "periods": tuple(stored["periods"])})


def update(
    state: PresenceState, seen: StepSeen, *, options: DetectOptions
) -> tuple[PresenceState, list[Finding]]:
    """Take one closed step in."""
    counts, since, silent = _silence(state, seen, options)
    identical, identical_since, bypass = _bypass(state, seen, options)
    findings = silent + bypass
    if state.overdue:
        message = f"steps arrive again, at step {seen.step}"
        findings.append(_finding("silence", "resolved", "step", seen.step, seen.step, message))
    periods = state.periods
    if seen.at is not None and state.last_at is not None and seen.at > state.last_at:
        periods = (*periods, seen.at - state.last_at)[-PERIODS:]
    after = PresenceState(
        missing=counts,
        missing_since=since,
        identical=identical,
        identical_since=identical_since,
        last_at=seen.at,
        last_step=seen.step,
        periods=periods,
    )
    return after, findings


def overdue(
    state: PresenceState,
    now: float,
    *,
    late: Sequence[int] = (),
    options: DetectOptions,
) -> tuple[PresenceState, list[Finding]]:
    """Has no step closed for too long? `now`: seconds since the epoch. Fires once.

    Too long is `silence_periods` median step times and at least `silence_seconds`. A run that said
    it is finished is not expected to say more. `late`: closed steps of which the trainer sent new
    data since the last close; `silence_steps` of them and no other prove that it runs elsewhere in
    the count, and then it is not waited for `silence_seconds`.
    """
    if state.overdue or state.last_at is None or len(state.periods) < 3:
        return state, []
    back = len(late) >= options.silence_steps
    usual, waited = median(state.periods), now - state.last_at
    least = 0.0 if back else options.silence_seconds
    if (state.finished and not back) or waited < max(options.silence_periods * usual, least):
        return state, []
    step = state.last_step or 0
    message = _went_back(late, step) if back else _no_step(waited, usual, step)
    fired = PresenceState(**{**state.__dict__, "overdue": True})
    return fired, [_finding("silence", "firing", "step", step, step, message)]


def _no_step(waited: float, usual: float, step: int) -> str:
    """Seconds in, words out."""
    for_so_long = f"{waited / 60:.0f} min" if waited >= 120.0 else f"{waited:.0f} s"
    return (
        f"no step for {for_so_long} after step {step}; the usual step time is "
        f"{usual:.2g} s. Is the trainer, or its probe, still running?"
    )


def _went_back(late: Sequence[int], step: int) -> str:
    return (
        f"only data of closed steps come ({late[0]} to {late[-1]}, after step {step}), which are "
        "not used: nothing is judged. Did the job start again? Then send the event `restart` with "
        "the step that is trained next, or give the new job a run name of its own"
    )


def _silence(
    state: PresenceState, seen: StepSeen, options: DetectOptions
) -> tuple[dict[str, int], dict[str, int], list[Finding]]:
    """Per side and for the metric: consecutive steps without it."""
    gone = {
        "rollout": not seen.rollout and bool(seen.train),
        "train": not seen.train and bool(seen.rollout),
        "k3": not seen.counted,
    }
    counts, since, findings = {}, {}, []
    for what, absent in gone.items():
        before = (state.missing or {}).get(what, 0)
        begun = (state.missing_since or {}).get(what, seen.step)
        counts[what] = before + 1 if absent else 0
        if absent:
            since[what] = begun
        if absent and counts[what] == options.silence_steps:
            message = _missing(what, options.silence_steps, begun)
            findings.append(_finding("silence", "firing", what, seen.step, begun, message))
        elif not absent and before >= options.silence_steps:
            name = "the measurement" if what == "k3" else f"the {what} side"
            message = f"{name} is back at step {seen.step}, missing since step {begun}"
            findings.append(_finding("silence", "resolved", what, seen.step, begun, message))
    return counts, since, findings


def _missing(what: str, steps: int, begun: int) -> str:
    if what == "k3":
        return f"nothing could be measured for {steps} steps, since step {begun}: see `coverage`"
    return f"the {what} side is missing for {steps} steps, since step {begun}"


def _bypass(
    state: PresenceState, seen: StepSeen, options: DetectOptions
) -> tuple[int, int | None, list[Finding]]:
    """Δ exactly 0 on every token: somebody handed the trainer's numbers back as the engine's."""
    if seen.counted < BYPASS_TOKENS:
        return state.identical, state.identical_since, []  # says nothing either way
    same = is_identical(seen)
    count = state.identical + 1 if same else 0
    begun = (
        state.identical_since
        if state.identical and state.identical_since is not None
        else seen.step
    )
    if options.bypass_expected:
        return count, begun if same else None, []
    findings = []
    if same and count <= options.bypass_steps and count in (1, options.bypass_steps):
        firing: FindingState = "firing" if count == options.bypass_steps else "provisional"
        message = (
            f"rollout and train log-probs are identical on all {seen.counted} tokens since step "
            f"{begun}: is one side a copy of the other?"
        )
        findings.append(_finding("bypass", firing, "delta", seen.step, begun, message))
    elif not same and state.identical:
        message = f"the sides differ again at step {seen.step}"
        findings.append(_finding("bypass", "resolved", "delta", seen.step, begun, message))
    return count, begun if same else None, findings


def is_identical(seen: StepSeen) -> bool:
    """Are both sides equal on all of enough tokens?"""
    return seen.counted >= BYPASS_TOKENS and seen.delta_zero == seen.counted


def _finding(
    kind: Kind, state: FindingState, series: str, step: int, onset: int, message: str
) -> Finding:
    return Finding(kind, state, series, step, onset, None, None, None, None, message)
