"""A batch as the join sees it: key, length and marks per sample; and how arrays compare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinscope.wire.batch import Batch
from twinscope.wire.codec import digest
from twinscope_service.join.keys import marks, sample_keys, sides_of
from twinscope_service.join.records import LOGPROBS, Difference, PairSide, Part


@dataclass(frozen=True)
class Arriving:
    """One batch, prepared for placing. Lists have one item per sample, S."""

    seq: int
    batch: Batch
    sides: tuple[PairSide, ...]
    keys: list[bytes]
    lengths: list[int]
    marks: dict[PairSide, list[int]]

    @property
    def by_content(self) -> bool:
        """True: the keys are of content, and equal keys may be different samples."""
        return self.batch.sample_ids is None

    def sample_id(self, index: int) -> str:
        """The id of a sample, "" without ids."""
        return "" if self.batch.sample_ids is None else self.batch.sample_ids[index]

    def part(self, side: PairSide, index: int) -> Part:
        """One side of one sample."""
        return Part(self.seq, index, self.lengths[index], self.marks[side][index])


def prepare(batch: Batch, *, seq: int) -> Arriving:
    """Keys and marks of a batch. Raises WireError if its samples cannot be told apart."""
    sides = sides_of(batch)
    mark_lists = {
        side: marks(batch.tensors[LOGPROBS[side]], batch.offsets).tolist() for side in sides
    }
    return Arriving(
        seq, batch, sides, sample_keys(batch), np.diff(batch.offsets).tolist(), mark_lists
    )


def token_slice(batch: Batch, name: str, index: int) -> NDArray[np.generic]:
    """The values [n] of one sample of a token tensor [N]."""
    low, high = int(batch.offsets[index]), int(batch.offsets[index + 1])
    return batch.tensors[name][low:high]


def same_values(one: Batch, i: int, other: Batch, j: int, *, side: PairSide) -> bool:
    """Equal log-probs of a side, bit for bit (NaN equals itself), and equal ids if known."""
    a, b = (token_slice(*where) for where in ((one, LOGPROBS[side], i), (other, LOGPROBS[side], j)))
    if not np.array_equal(a.view(np.uint32), b.view(np.uint32)):
        return False
    if "token_ids" in one.tensors and "token_ids" in other.tensors:
        ids = token_slice(one, "token_ids", i), token_slice(other, "token_ids", j)
        return bool(np.array_equal(*ids))
    return True


def difference(
    rollout: Batch, i: int, train: Batch, j: int, *, sample_id: str
) -> Difference | None:
    """How the response tokens of both sides differ; None: equal as far as they are known.

    Without ids on a side only lengths can differ. `first` is the first differing index, the shorter
    length if one side is a prefix of the other (or ids are unknown), None between digests.
    """
    lengths = tuple(int(b.offsets[k + 1] - b.offsets[k]) for b, k in ((rollout, i), (train, j)))
    ids = [
        token_slice(b, "token_ids", k) if "token_ids" in b.tensors else None
        for b, k in ((rollout, i), (train, j))
    ]
    if ids[0] is not None and ids[1] is not None:
        if np.array_equal(ids[0], ids[1]):
            return None
        return Difference(sample_id, _first_difference(ids[0], ids[1]), *lengths)
    if lengths[0] != lengths[1]:
        return Difference(sample_id, min(lengths), *lengths)
    digests = [_ids_digest(rollout, i), _ids_digest(train, j)]
    if None in digests or digests[0] == digests[1]:
        return None
    return Difference(sample_id, None, *lengths)


def _first_difference(a: NDArray[np.generic], b: NDArray[np.generic]) -> int:
    shorter = min(len(a), len(b))
    unequal = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(unequal[0]) if len(unequal) else shorter


def _ids_digest(batch: Batch, index: int) -> bytes | None:
    """blake2b-128 of a sample's ids, sent or computed; None: neither ids nor digest."""
    if "token_ids" in batch.tensors:
        return digest(np.ascontiguousarray(token_slice(batch, "token_ids", index)))
    if "ids_digest" in batch.tensors:
        return bytes(batch.tensors["ids_digest"][index])
    return None
