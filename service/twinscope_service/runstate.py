"""What is in memory of one run: its join, its open steps, its past as diagnosis needs it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from twinscope.wire.batch import Batch
from twinscope_service.baseline import Baseline, renewed
from twinscope_service.detect.disputed import Disputed, count_disputed
from twinscope_service.diagnose.context import Context, Event, History, StepPoint
from twinscope_service.errors import Conflict
from twinscope_service.join.arriving import Arriving
from twinscope_service.join.gather import gather
from twinscope_service.join.join import Join
from twinscope_service.join.records import Load, Outcome, Pair, Plan
from twinscope_service.measure.evidence import Evidence, collect, merge_evidence, to_body
from twinscope_service.measure.merge import merge_all
from twinscope_service.measure.records import (
    ATTRIBUTE,
    COLUMN,
    COVERAGE,
    MeasureOptions,
    PairBlock,
    Summary,
)
from twinscope_service.stages import Meter, Stages
from twinscope_service.store.base import ClosedStep
from twinscope_service.views import AlertView, StepView

MERGE_AT = 32  # block summaries kept apart before they are merged: rows are copied log times
POINTS = 256  # closed steps that trends look back on
MOST_LATE = 64  # noted at a time; three are news
POOLED = 32  # small steps that may be judged together
COUNTED = COVERAGE.index("counted")


@dataclass
class OpenStep:
    """One step while its data arrive: headers, block summaries, what went wrong."""

    run: str
    step: int
    opened_at: float  # seconds since the epoch
    context: Context
    touched: float | None = None  # monotonic; None: only waiting rollout or ref samples so far
    noted: set[int] = field(default_factory=set)  # batches whose headers are in `context`
    parts: list[Summary] = field(default_factory=list)
    evidence: Evidence = field(default_factory=Evidence)
    summaries: list[int] = field(default_factory=list)  # batches of kind summary
    crashed: set[str] = field(default_factory=set)

    def add(self, part: Summary) -> None:
        """Merge one more part, now or soon."""
        self.parts.append(part)
        if len(self.parts) >= MERGE_AT:
            self.parts = [merge_all(self.parts)]

    def summary(self) -> Summary:
        """Everything measured so far."""
        self.parts = [merge_all(self.parts)]
        return self.parts[0]

    def keep_evidence(self, block: PairBlock, part: Summary, options: MeasureOptions) -> None:
        """Keep the worst and some random samples of what was just measured."""
        self.evidence = merge_evidence(self.evidence, collect(block, part, options), options)

    def evidence_body(self) -> bytes | None:
        """The kept samples as a trace body; None: nothing was kept."""
        return to_body(self.evidence, run=self.run, step=self.step)

    def note(self, seq: int, batch: Batch) -> None:
        """Keep what a batch's header says, once."""
        if seq not in self.noted:
            self.noted.add(seq)
            self.context = self.context.with_batch(batch)


class RunState:
    """One run in memory. Guarded by the pipeline's lock."""

    def __init__(self, run: str, join: Join, *, seen: float) -> None:
        self.run, self.join = run, join
        self.steps: dict[int, OpenStep] = {}
        self.points: deque[StepPoint] = deque(maxlen=POINTS)
        self.disputed: deque[Disputed] = deque(maxlen=POINTS)
        self.baseline: Baseline | None = None
        self.healthy: Summary | None = None  # what was measured in the baseline's step
        self.small: deque[Summary] = deque(maxlen=POOLED - 1)  # latest steps, too small alone
        self.last: StepView | None = None
        self.tokens: Counter[str] = Counter()  # measure.records.COVERAGE, closed steps
        self.detector: Mapping[str, Any] | None = None  # what the detectors carry on
        self.seen = seen  # monotonic
        self.late: list[int] = []  # closed steps that the trainer sent anew since the last close
        self._onsets: dict[tuple[str, str], int] = {}  # (kind, series) -> onset step

    def open(self, step: int, *, now: float) -> OpenStep:
        """An open step, new or known. `now`: seconds since the epoch."""
        if step not in self.steps:
            context = Context(run=self.run, step=step)
            self.steps[step] = OpenStep(self.run, step, now, context)
        return self.steps[step]

    def plan(self, arriving: Arriving) -> Plan:
        """Where its samples belong. Raises Conflict.

        Notes a trainer that sends steps which are closed already: it may have gone back.
        """
        step, trained = arriving.batch.step, "train" in arriving.sides
        again = trained and step is not None and step in self.join.closed
        try:
            plan = self.join.plan(arriving)
        except Conflict:  # the same ids with other values: not this trainer's step any more
            self._note_late(step if again else None)
            raise
        all_late = plan.counts[Outcome.LATE] == len(plan.placements) > 0
        self._note_late(step if again and all_late else None)
        return plan

    def _note_late(self, step: int | None) -> None:
        if step is not None and step not in self.late and len(self.late) < MOST_LATE:
            self.late.append(step)

    def measure(self, pairs: Sequence[Pair], load: Load, *, stages: Stages, meter: Meter) -> None:
        """Measure pairs and add them to their steps. A crash marks the steps, nothing else."""
        for step, members in self._by_step(pairs).items():
            opened = self.steps[step]
            with meter.survive("measure", crashed=opened.crashed.add):
                for pair in members:
                    for side in (pair.rollout, pair.train, pair.ref):
                        if side is not None and side.batch not in opened.noted:
                            opened.note(side.batch, load(side.batch))
                for block in gather(members, load, block_tokens=stages.block_tokens):
                    part = stages.engine.measure(block, stages.options)
                    opened.add(part)
                    opened.keep_evidence(block, part, stages.options)

    def _by_step(self, pairs: Iterable[Pair]) -> dict[int, list[Pair]]:
        by_step: dict[int, list[Pair]] = {}
        for pair in pairs:
            by_step.setdefault(pair.step, []).append(pair)
        return by_step

    def pool(self, summary: Summary, *, least: int) -> tuple[Summary, int]:
        """A step with the small steps before it that it takes to have `least` counted tokens.

        And how many those are. A step that is large enough, is empty, or stays too small with all
        of them is returned alone.
        """
        parts, tokens = [summary], int(summary.coverage[COUNTED])
        for earlier in reversed(self.small) if tokens else ():
            if tokens >= least:
                break
            parts.append(earlier)
            tokens += int(earlier.coverage[COUNTED])
        if tokens < least:
            return summary, 0
        return merge_all(parts), len(parts) - 1

    def remember(self, closed: ClosedStep, summary: Summary, *, least: int) -> None:
        """A step is closed: part of the run's past from now on. `least`: see `pool`."""
        view, self.detector = closed.view, closed.detector_state
        self.late = []
        self.points.append(point_of(view, summary))
        self.disputed.append(replace(count_disputed(summary), healthy=view.verdict == "ok"))
        self.last = view
        self.tokens.update(view.coverage)
        pooled, _ = self.pool(summary, least=least)
        self.baseline = renewed(self.baseline, view, k3=mean_k3(pooled))
        if self.baseline is not None and self.baseline.step == view.step:
            self.healthy = pooled
        self.keep_small(summary, least=least)

    def keep_small(self, summary: Summary, *, least: int) -> None:
        """The latest closed step, in case the next ones need its tokens to be judged."""
        tokens = int(summary.coverage[COUNTED])
        if tokens >= least:
            self.small.clear()
        elif tokens:
            self.small.append(summary)

    def history(self) -> History:
        """The run before the step that is closing, and since when something is wrong with it."""
        return History(tuple(self.points), self.healthy, self.onset_step)

    def note_onset(self, alerts: Iterable[AlertView]) -> None:
        """Where the detectors put the start of the present trouble; over when it is resolved."""
        for alert in alerts:
            if alert.state == "resolved":
                self._onsets.pop((alert.kind, alert.series), None)
            elif alert.onset_step is not None:
                self._onsets[alert.kind, alert.series] = alert.onset_step

    @property
    def onset_step(self) -> int | None:
        """The earliest onset that is not resolved."""
        return min(self._onsets.values(), default=None)

    @property
    def firing_kinds(self) -> set[str]:
        """Kinds of alerts that are not resolved."""
        return {kind for kind, _ in self._onsets}

    @property
    def quiet(self) -> bool:
        """Nothing is open and nothing waits."""
        return not self.steps and not self.join.steps and not self.join.waiting_samples


def point_of(view: StepView, summary: Summary | None = None) -> StepPoint:
    """One closed step, reduced to what trends need. Versions: the newest of its samples."""
    return StepPoint(
        step=view.step,
        k3=view.metrics.get("k3_mean"),
        tokens=view.coverage.get(COVERAGE[1], 0),
        verdict=view.verdict,
        rollout_version=None if summary is None else newest(summary, "rollout_version"),
        train_version=None if summary is None else newest(summary, "train_version"),
    )


def disputed_of(view: StepView) -> Disputed:
    """The same count from a stored step, which kept the tokens: at least as many as samples."""
    tokens = view.coverage.get(COVERAGE[COUNTED], 0)
    share = view.metrics.get("confident_disagreement_fraction") or 0.0
    return Disputed(round(share * tokens), tokens, healthy=view.verdict == "ok")


def mean_k3(summary: Summary) -> float | None:
    """Token mean of k3; None without a counted token."""
    tokens = float(summary.sums[COLUMN["n"]])
    return float(summary.sums[COLUMN["k3"]]) / tokens if tokens else None


def newest(summary: Summary, attribute: str) -> int | None:
    """The largest known value of a per-sample attribute."""
    index = ATTRIBUTE[attribute]
    known = (summary.rows.known >> index) & 1 == 1
    return int(summary.rows.attributes[known, index].max()) if known.any() else None


def events_of(rows: Iterable[tuple[int | None, str, dict[str, object]]]) -> tuple[Event, ...]:
    """Stored events as diagnosis takes them."""
    return tuple(Event(step, kind, fields) for step, kind, fields in rows)
