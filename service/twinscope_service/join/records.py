"""The records of the join: samples that arrive, entries that wait, pairs that leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from twinscope.wire.batch import Batch

PairSide = Literal["rollout", "train", "ref"]
PAIR_SIDES: tuple[PairSide, ...] = ("rollout", "train", "ref")
LOGPROBS: dict[PairSide, str] = {side: f"{side}_logprobs" for side in PAIR_SIDES}

Load = Callable[[int], Batch]  # sequence number of an accepted batch -> its arrays


class Outcome(IntEnum):
    """What became of one arriving sample; the values are stored, never renumber them."""

    WAITING = 0  # kept until its other side comes
    JOINED = 1  # completed a pair
    RETOKENIZED = 2  # met its other side, which holds different tokens
    DUPLICATE = 3  # the same values were accepted before
    LATE = 4  # its step is closed, or (ref) its pair was measured without it
    EVICTED = 5  # gave up waiting


@dataclass(frozen=True, slots=True)
class Part:
    """One side of one sample: where its arrays are."""

    batch: int  # sequence number of the batch
    index: int  # sample in that batch
    tokens: int
    mark: int  # 64-bit mark of its log-probs, see `keys.marks`


@dataclass(slots=True, eq=False)
class Entry:
    """One known sample with the sides that have come. Lives until its step closes."""

    key: bytes  # 16 bytes
    sample_id: str  # "": joined by content
    at: float  # when its first side came, monotonic seconds
    step: int | None = None  # None: no side has told it yet
    parts: dict[PairSide, Part] = field(default_factory=dict)
    outcome: Outcome = Outcome.WAITING


@dataclass(frozen=True, slots=True)
class Pair:
    """Both sides of one sample, to be gathered and measured."""

    key: bytes
    sample_id: str
    step: int
    rollout: Part
    train: Part
    ref: Part | None


@dataclass(frozen=True, slots=True)
class Difference:
    """How the ids of two sides differ. `first` is None when only digests could be compared."""

    sample_id: str
    first: int | None
    rollout_tokens: int
    train_tokens: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The decision about one arriving sample. `entry`: None for a new one, or if it is not kept."""

    index: int
    outcome: Outcome
    entry: Entry | None = None
    difference: Difference | None = None
    step: int | None = None  # the step that the sample counts for


@dataclass(frozen=True, slots=True)
class Plan:
    """What admitting a batch would do; nothing has been done yet."""

    seq: int
    placements: tuple[Placement, ...]
    counts: Mapping[Outcome, int]
    waiting_tokens: int  # change of the waiting tokens, may be negative
    waiting_samples: int
    steps: tuple[int, ...]  # steps that the batch adds to


@dataclass(frozen=True, slots=True)
class Settled:
    """Samples of one batch that need no arrays any more: (index, outcome)."""

    batch: int
    samples: tuple[tuple[int, Outcome], ...]
    finished: bool  # no sample of the batch needs its arrays


@dataclass(frozen=True, slots=True)
class Closing:
    """What leaves the join with a step."""

    settled: tuple[Settled, ...]
    pairs: tuple[Pair, ...]  # completed by the close: they waited for a reference side only
    memory: bytes  # what is remembered of the step's samples, see `memory.StepMemory`
    evicted: Mapping[PairSide, int]
