"""The detectors of one run: `watch(state, observations, ...) -> (state, findings)`.

Pure and resumable: no clock, no I/O; a state stored and loaded in mid-excursion gives the same
findings. `build_detect` is what the pipeline calls when a step closes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from twinscope_service.detect import level, presence
from twinscope_service.detect.findings import DetectOptions, Finding, Observation
from twinscope_service.detect.kernels import TWO_SIDED
from twinscope_service.detect.level import SeriesState
from twinscope_service.detect.presence import PresenceState, StepSeen
from twinscope_service.detect.series import GROUP_LABELS, observe
from twinscope_service.measure.derive import derive
from twinscope_service.measure.records import MeasureOptions, Summary
from twinscope_service.views import AlertView, StepView

LAYOUT = 1  # of the stored state; another number starts afresh
GONE_TIMES = 2  # times `resolve_steps` without a group in trouble until it is out of it
FORGET = 200  # closed steps after which a series that is not seen any more is dropped


@dataclass(frozen=True)
class RunWatch:
    """What is remembered about one run."""

    series: Mapping[str, SeriesState] = field(default_factory=dict)
    seen_at: Mapping[str, int] = field(default_factory=dict)  # series -> tick of its last value
    presence: PresenceState = field(default_factory=PresenceState)
    tick: int = 0  # closed steps taken in
    last_step: int | None = None
    back_at: int | None = None  # an earlier step came: the counter may have jumped back
    restarts: int = 0
    out_of_order: int = 0  # steps not looked at because later ones had been

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, for the store."""
        return {
            "layout": LAYOUT,
            "series": {name: state.as_json() for name, state in self.series.items()},
            "seen_at": dict(self.seen_at),
            "presence": self.presence.as_json(),
            **{name: getattr(self, name) for name in _PLAIN},
        }


def _readable(stored: Mapping[str, Any]) -> Iterator[tuple[str, SeriesState]]:
    """A series that was stored by another version of the detectors starts afresh by itself.

    It keeps what was reported of it, or those alerts would never end.
    """
    for name, state in stored.items():
        try:
            yield name, level.from_json(state)
        except ValueError:
            x = level.unpack(state["x"])
            afresh = level.fresh(name, two_sided=len(x) > TWO_SIDED and x[TWO_SIDED] == 1.0)
            spike, shift, growth = (_reported(state[kind]) for kind in ("spike", "shift", "growth"))
            yield name, replace(afresh, spike=spike, shift=shift, growth=growth)


def _reported(stored: Mapping[str, Any] | None) -> level.Excursion | None:
    return None if stored is None else level.Excursion(**{**stored, "tick": 0, "calm": 0})


_PLAIN = ("tick", "last_step", "back_at", "restarts", "out_of_order")


def watch_from_json(stored: Mapping[str, Any] | None) -> RunWatch:
    """Inverse of `as_json`. A state of another version starts afresh: a burn-in, never a crash."""
    if stored is None or stored.get("layout") != LAYOUT:
        return RunWatch()
    return RunWatch(
        series=dict(_readable(stored["series"])),
        seen_at=dict(stored["seen_at"]),
        presence=presence.presence_from_json(stored["presence"]),
        **{name: stored[name] for name in _PLAIN},
    )


def watch(
    state: RunWatch,
    observations: Sequence[Observation],
    *,
    seen: StepSeen,
    options: DetectOptions,
) -> tuple[RunWatch, list[Finding]]:
    """Take one closed step in, in the order of closing.

    A step at or before the last one is either late, and is passed over, or the first of a run that
    was restarted from a checkpoint: if the next one follows it, the counter jumped back. Baselines
    are kept over a restart, because a change that it brought is worth a report.
    """
    restarts = state.restarts
    if state.last_step is not None and seen.step <= state.last_step:
        if state.back_at is None or seen.step != state.back_at + 1:
            skipped = state.out_of_order + 1
            return replace(state, back_at=seen.step, out_of_order=skipped), []
        restarts += 1
    there, findings = presence.update(state.presence, seen, options=options)
    series, seen_at, tick = dict(state.series), dict(state.seen_at), state.tick + 1
    if not presence.is_identical(seen):  # Δ ≡ 0 is no level; `bypass` speaks for it
        for one in observations:
            known = series.get(one.series) or level.fresh(
                one.series, two_sided=one.scale == "linear"
            )
            series[one.series], found = level.update(known, one, options=options)
            seen_at[one.series] = tick
            findings += found
    for name in leaving(series, seen_at, tick=tick, options=options):
        findings += level.ended(series[name], name, step=seen.step, steps=tick - seen_at[name])
        del series[name], seen_at[name]
    after = RunWatch(series, seen_at, there, tick, seen.step, None, restarts, state.out_of_order)
    return after, findings


def leaving(
    series: Mapping[str, SeriesState],
    seen_at: Mapping[str, int],
    *,
    tick: int,
    options: DetectOptions,
) -> list[str]:
    """Series that are dropped: not seen for long, or crowded out by newer labels of their name.

    A group that is in trouble and then gone was taken out, as its alert advises: it leaves sooner,
    so that the alert ends. Labels that are new in every step are no replicas, and must not pile up.
    """
    patience = {
        name: GONE_TIMES * options.resolve_steps
        for name, state in series.items()
        if "{" in name and level.in_trouble(state)
    }
    found = [name for name, last in seen_at.items() if tick - last > patience.get(name, FORGET)]
    crowds: dict[str, list[str]] = {}
    for name in sorted(seen_at.keys() - set(found), key=lambda name: (seen_at[name], name)):
        if "{" in name:
            crowds.setdefault(name.partition("=")[0], []).append(name)
    for crowd in crowds.values():
        found += crowd[: max(len(crowd) - GROUP_LABELS, 0)]
    return found


def is_ready(state: RunWatch, series: str = "k3") -> bool:
    """Is the burn-in of a series over? Before, "no finding" means `unknown`, not `ok`."""
    known = state.series.get(series)
    return known is not None and level.ready(known)


Detect = Callable[
    [Mapping[str, Any] | None, StepView, Summary],
    tuple[Mapping[str, Any] | None, Sequence[AlertView]],
]


def build_detect(options: DetectOptions, measure: MeasureOptions) -> Detect:
    """The stage that the pipeline runs when a step closes."""

    def detect(
        stored: Mapping[str, Any] | None, view: StepView, summary: Summary
    ) -> tuple[Mapping[str, Any] | None, Sequence[AlertView]]:
        metrics = view.metrics or derive(summary, measure)
        observations = observe(summary, metrics, step=view.step)
        state, findings = watch(
            watch_from_json(stored), observations, seen=seen_of(view), options=options
        )
        return state.as_json(), [alert_of(finding) for finding in findings]

    return detect


class Overdue(Protocol):
    """Has a run gone quiet? State of the run in, state and alerts out."""

    def __call__(
        self, stored: Mapping[str, Any] | None, now: float, /, *, late: Sequence[int] = ()
    ) -> tuple[Mapping[str, Any] | None, Sequence[AlertView]]:
        """`now`: seconds since the epoch; `late`: see `presence.overdue`."""
        ...


def build_overdue(options: DetectOptions) -> Overdue:
    """What the pipeline asks now and then: has this run gone quiet? Touches no series."""

    def overdue(
        stored: Mapping[str, Any] | None, now: float, /, *, late: Sequence[int] = ()
    ) -> tuple[Mapping[str, Any] | None, Sequence[AlertView]]:
        if stored is None or stored.get("layout") != LAYOUT:
            return stored, ()
        known = presence.presence_from_json(stored["presence"])
        there, findings = presence.overdue(known, now, late=late, options=options)
        if not findings:
            return stored, ()
        return {**stored, "presence": there.as_json()}, [alert_of(f) for f in findings]

    return overdue


def mark_finished(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """The run said that it is over: its quiet from now on is no silence."""
    return {**stored, "presence": {**stored["presence"], "finished": True}}


def mark_restarted(stored: Mapping[str, Any], step: int) -> Mapping[str, Any]:
    """The run said that it goes on from `step`: its steps from there on are new, not late."""
    restarts = stored["restarts"] + 1
    return {**stored, "last_step": step - 1, "back_at": None, "restarts": restarts}


def seen_of(view: StepView) -> StepSeen:
    """What presence needs to know of a closed step."""
    sides = {name: side.received for name, side in view.sides.items()}
    return StepSeen(
        step=view.step,
        at=view.closed_at,
        rollout=sides.get("rollout", 0),
        train=sides.get("train", 0),
        counted=view.coverage.get("counted", 0),
        delta_zero=view.coverage.get("delta_zero", 0),
    )


def alert_of(finding: Finding) -> AlertView:
    """A finding as the store and the API know it; the store gives the id."""
    return AlertView(
        id=0,
        kind=finding.kind,
        state=finding.state,
        series=finding.series,
        step=finding.step,
        onset_step=finding.onset_step,
        before=finding.before,
        after=finding.after,
        ratio=finding.ratio,
        message=finding.message,
    )
