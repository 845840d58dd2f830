"""The runs in memory: loaded from the store when they wake up, let go when they are quiet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from twinscope_service.baseline import renewed
from twinscope_service.clock import Clock
from twinscope_service.config import Settings
from twinscope_service.errors import Overloaded
from twinscope_service.join.join import Join
from twinscope_service.join.memory import StepMemory
from twinscope_service.join.records import Load, Plan
from twinscope_service.measure.records import Summary
from twinscope_service.runstate import POINTS, POOLED, RunState, disputed_of, point_of
from twinscope_service.store.base import Store
from twinscope_service.store.summaries import unpack
from twinscope_service.views import StepView

ALERTS = 200  # latest alerts of a run that may be unresolved
RETRY_AFTER_S = 5.0  # by then waiting samples may have met their other side


class Book:
    """All runs that have data in memory. Guarded by the pipeline's lock."""

    def __init__(self, settings: Settings, *, store: Store, load: Load, clock: Clock) -> None:
        self._settings, self._store, self._load, self._clock = settings, store, load, clock
        self._runs: dict[str, RunState] = {}

    def __iter__(self) -> Iterator[RunState]:
        return iter(list(self._runs.values()))

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, run: str) -> RunState | None:
        """A run that is in memory."""
        return self._runs.get(run)

    def wake(self, run: str) -> RunState:
        """A run, from the store or new. Raises Overloaded when too many are in memory."""
        if run not in self._runs:
            self._make_room()
            self._runs[run] = self._loaded(run)
        state = self._runs[run]
        state.seen = self._clock.monotonic()
        return state

    def _make_room(self) -> None:
        """Where too many runs are in memory, the one that has been quiet for longest goes."""
        if len(self._runs) < self._settings.max_runs:
            return
        quiet = [state for state in self._runs.values() if state.quiet]
        if not quiet:
            raise Overloaded(
                f"{len(self._runs)} runs have data in memory",
                retry_after_s=RETRY_AFTER_S,
                field="run",
                fix="close the steps of other runs, or raise max_runs",
            )
        del self._runs[min(quiet, key=lambda state: state.seen).run]

    def let_go(self) -> None:
        """Forget runs that have been quiet for long; their history stays in the store."""
        limit = self._clock.monotonic() - self._settings.run_retention_s
        for run, state in list(self._runs.items()):
            if state.quiet and state.seen < limit:
                del self._runs[run]

    def check_room(self, plan: Plan) -> None:
        """Raises Overloaded if admitting the plan would let too much wait.

        A batch that completes at least as much as it leaves waiting is always welcome.
        """
        settings, (samples, tokens) = self._settings, self.waiting()
        for adds, waits, most, setting in (
            (plan.waiting_tokens, tokens, settings.max_pending_tokens, "max_pending_tokens"),
            (plan.waiting_samples, samples, settings.max_pending_samples, "max_pending_samples"),
        ):
            if adds > 0 and waits + adds > most:
                noun = setting.rpartition("_")[2]
                raise Overloaded(
                    f"{waits} {noun} wait for their other side and this batch adds {adds}",
                    retry_after_s=RETRY_AFTER_S,
                    field=setting,
                    fix=f"{most} may wait: send the other side first, or raise {setting}",
                )

    def waiting(self) -> tuple[int, int]:
        """Samples and tokens that wait, all runs together."""
        return (
            sum(state.join.waiting_samples for state in self),
            sum(state.join.waiting_tokens for state in self),
        )

    def _loaded(self, run: str) -> RunState:
        """A run as the store knows it: which steps are closed, and the latest of them."""
        join = Join(remember_steps=self._settings.remember_steps, load=self._load)
        state = RunState(run, join, seen=self._clock.monotonic())
        closed = self._store.closed_steps(run)
        for step in closed:
            join.recall(step, None)
        for step in closed[-self._settings.remember_steps :]:
            memory = self._store.blob(run, step, "memory")
            if memory is not None:
                join.recall(step, StepMemory.decode(memory))
        views = self._store.last_steps(run, limit=POINTS)
        for view in views:
            state.points.append(point_of(view))
            state.disputed.append(disputed_of(view))
            state.last = view
        least = self._settings.min_tokens
        small = takewhile(lambda view: view.coverage["counted"] < least, reversed(views[-POOLED:]))
        for view in reversed(list(small)):
            summary = self._summary(run, view.step)
            if summary is not None:
                state.keep_small(summary, least=least)
        state.note_onset(reversed(self._store.alerts(run, limit=ALERTS)))
        state.tokens.update(self._store.count_tokens(run))
        state.detector = self._store.detector_state(run)
        self._recall_baseline(state, views)
        return state

    def _recall_baseline(self, state: RunState, views: Sequence[StepView]) -> None:
        """The baseline as it was, if what was measured in its step is still kept."""
        for view in views:
            large = view.coverage["counted"] >= self._settings.min_tokens
            k3 = view.metrics.get("k3_mean") if large else None
            state.baseline = renewed(state.baseline, view, k3=k3)
        if state.baseline is not None:
            state.healthy = self._summary(state.run, state.baseline.step)
        if state.healthy is None:
            state.baseline = None

    def _summary(self, run: str, step: int) -> Summary | None:
        """The Summary of a closed step, with its rows while they are kept."""
        data = self._store.blob(run, step, "rows") or self._store.blob(run, step, "summary")
        return None if data is None else unpack(data)
