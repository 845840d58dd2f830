"""What the pipeline answers: receipts, steps, runs, alerts, gate, health. Plain frozen values.

`as_json()` of each is what the HTTP API and the command line print; absent values are None there,
never 0 and never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from twinscope.wire.schema import Side
from twinscope_service.detect.findings import fell

Verdict = Literal["ok", "inconsistent", "unknown"]
Metrics = Mapping[str, float | None]


@dataclass(frozen=True)
class Receipt:
    """What became of one batch. Samples, unless the name says tokens.

    samples = joined + waiting + duplicates + retokenized + late. For a batch that was seen before
    (`duplicate`) the counts are those of the first time.
    """

    batch_id: str
    run: str
    step: int | None  # as sent; None: the train side will tell
    side: Side
    samples: int
    tokens: int
    joined: int = 0
    waiting: int = 0
    duplicates: int = 0
    retokenized: int = 0
    late: int = 0
    duplicate: bool = False
    steps: tuple[int, ...] = ()  # steps that this batch added to

    def as_json(self) -> dict[str, Any]:
        """The 202 answer."""
        return {**asdict(self), "steps": list(self.steps)}


@dataclass(frozen=True)
class SideCount:
    """Samples of one side of a step. `expected` is None when no batch told."""

    received: int = 0
    waiting: int = 0
    expected: int | None = None


@dataclass(frozen=True)
class Retokenized:
    """One sample whose sides hold different tokens."""

    sample_id: str  # "" when samples have no ids
    first_difference: int | None  # response token, from 0; None: only digests were compared
    rollout_tokens: int
    train_tokens: int


@dataclass(frozen=True)
class StepView:
    """One step, open or closed."""

    run: str
    step: int
    state: Literal["open", "closed"]
    sides: Mapping[str, SideCount]  # rollout, train, ref
    tokens: int  # received in joined samples
    samples: int  # joined and measured
    coverage: Mapping[str, int]  # measure.records.COVERAGE by name
    metrics: Metrics  # None: could not be computed
    verdict: Verdict
    reasons: tuple[str, ...]
    diagnosis: tuple[Mapping[str, Any], ...]  # diagnose.Cause.as_json(), best first
    joined: int = 0
    retokenized: int = 0
    retokenized_examples: tuple[Retokenized, ...] = ()
    duplicates: int = 0
    late: int = 0
    evicted: Mapping[str, int] = field(default_factory=dict)  # reason -> samples
    findings: tuple[Mapping[str, Any], ...] = ()  # of the detectors, at close
    scalars: Mapping[str, float] = field(default_factory=dict)
    opened_at: float | None = None  # seconds since the epoch
    closed_at: float | None = None  # None: open
    closed_by: Literal["", "complete", "call", "grace", "ttl"] = ""

    @property
    def waiting(self) -> int:
        """Samples of this step that wait for their other side."""
        return sum(side.waiting for side in self.sides.values())

    def as_json(self) -> dict[str, Any]:
        """The object of `analyze --json`, plus what only a service knows."""
        return {**asdict(self), "waiting": self.waiting}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StepView:
        """From `as_json`; fields that a later version added may be absent."""
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in document.items() if name in known}
        values["sides"] = {name: SideCount(**side) for name, side in document["sides"].items()}
        values["retokenized_examples"] = tuple(
            Retokenized(**example) for example in document["retokenized_examples"]
        )
        for name in ("reasons", "diagnosis", "findings"):
            values[name] = tuple(document[name])
        return cls(**values)


@dataclass(frozen=True)
class TimelineRow:
    """One closed step, reduced to what a plot of the whole run needs."""

    step: int
    verdict: Verdict
    closed_at: float  # seconds since the epoch
    counted: int  # tokens
    cause: str | None  # the likeliest; None: no diagnosis
    metrics: Metrics  # those that were asked for
    scalars: Mapping[str, float]


@dataclass(frozen=True)
class RunView:
    """One run. `last` is its last closed step, None before the first one."""

    run: str
    first_seen: float  # seconds since the epoch
    last_seen: float
    active: bool  # False: quiet for longer than `run_retention_s`
    open_steps: tuple[int, ...]
    closed_steps: int
    waiting_samples: int
    waiting_tokens: int
    tokens: Mapping[str, int]  # measure.records.COVERAGE by name, all closed steps that are kept
    last: StepView | None

    def as_json(self) -> dict[str, Any]:
        """One entry of GET /v1/runs."""
        return {**asdict(self), "last": None if self.last is None else self.last.as_json()}


@dataclass(frozen=True)
class AlertView:
    """One alert, as DESIGN.md §4 lists it."""

    id: int
    kind: str  # spike, level_shift, growth, silence, bypass, inconsistent
    state: str  # provisional, firing, resolved
    series: str
    step: int
    onset_step: int | None
    before: float | None
    after: float | None
    ratio: float | None
    message: str
    causes: tuple[str, ...] = ()

    @property
    def came_down(self) -> bool:
        """Is it about a level that fell? Not of a group, which is compared with the others."""
        group = "{" in self.series
        return self.kind == "level_shift" and not group and fell(self.before, self.after)

    @property
    def standing(self) -> str:
        """Its state as people read it: nobody resolves a spike, it is over with its step."""
        if self.kind == "spike":
            return "one step, over"
        if self.state == "resolved":
            return "over"
        return "fell" if self.came_down and self.state == "firing" else self.state

    def as_json(self) -> dict[str, Any]:
        """One entry of GET /v1/runs/{run}/alerts."""
        return {**asdict(self), "came_down": self.came_down, "standing": self.standing}


@dataclass(frozen=True)
class GateView:
    """The verdict of the last closed step, for a trainer that pauses or masks by it."""

    run: str
    step: int | None  # None: no step is closed yet
    verdict: Verdict
    reasons: tuple[str, ...]
    ratio_low: float  # suggested: drop tokens whose ρ is outside [ratio_low, ratio_high]
    ratio_high: float

    def as_json(self) -> dict[str, Any]:
        """The answer of GET /v1/runs/{run}/gate."""
        return asdict(self)


@dataclass(frozen=True)
class Health:
    """The service's own state. Queue lengths stand beside their capacities and what was lost."""

    ready: bool
    waiting_samples: int
    max_pending_samples: int
    waiting_tokens: int
    max_pending_tokens: int
    inbox_bytes: int  # bodies kept until their steps close
    database_bytes: int
    runs: int
    max_runs: int
    open_steps: int
    evicted: Mapping[str, int]  # reason -> samples, since start-up
    counts: Mapping[str, int]  # batches, samples, duplicates, late, retokenized ..., since start-up
    stage_seconds: Mapping[str, float]  # receive, join, measure, close: summed, since start-up
    quarantined: int  # bodies of the data directory that could not be read back
    errors: Mapping[str, int]  # stage -> crashes, since start-up
    engine: str = ""
    reason: str = ""  # why it is not ready; "" while it is
    fix: str = ""  # what to do about that
    device: str = ""  # what the engine runs on; "" for engines without a device
    engine_fallbacks: Mapping[str, int] = field(default_factory=dict)  # cause -> blocks

    def as_json(self) -> dict[str, Any]:
        """The body of /readyz."""
        return asdict(self)
