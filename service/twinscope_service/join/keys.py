"""Join keys and marks: which samples are the same one, and whether their values are."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from twinscope.errors import WireError
from twinscope.wire.batch import Batch
from twinscope_service.join.records import LOGPROBS, PAIR_SIDES, PairSide

KEY_BYTES = 16
MARK_POINTS = 16
MARK_PRIME = np.uint64(0x9E3779B97F4A7C15)  # odd, well mixed: 2^64 / golden ratio


def sides_of(batch: Batch) -> tuple[PairSide, ...]:
    """The sides whose log-probs a batch carries."""
    return tuple(side for side in PAIR_SIDES if LOGPROBS[side] in batch.tensors)


def sample_keys(batch: Batch) -> list[bytes]:
    """One 16-byte key per sample: of its id, or without ids of its prompt and response tokens.

    Content keys are equal for both sides only if both send the response tokens (or their digests)
    and both or neither send the prompts.
    """
    if batch.sample_ids is not None:
        return [_hash(b"id", sample_id.encode()) for sample_id in batch.sample_ids]
    if "token_ids" in batch.tensors:
        responses = _digests(batch.tensors["token_ids"], batch.offsets)
    elif "ids_digest" in batch.tensors:
        responses = [row.tobytes() for row in batch.tensors["ids_digest"]]
    elif batch.side == "paired":
        return _value_keys(batch)
    else:
        fix = "send sample_ids, token_ids or ids_digest: without any of them sides cannot be joined"
        raise WireError("sample_ids", None, fix)
    if "prompt_ids" not in batch.tensors:
        return [_hash(b"response", response) for response in responses]
    prompts = _digests(batch.tensors["prompt_ids"], batch.tensors["prompt_offsets"])
    return [
        _hash(b"both", prompt + response)
        for prompt, response in zip(prompts, responses, strict=True)
    ]


def marks(values: NDArray[np.float32], offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A 64-bit mark per sample, [S], of its length and the bits of up to 16 values spread over it.

    It tells a repeated sample from a new one that reuses the id. Cheap, not cryptographic; where
    the arrays are at hand, equal marks are confirmed on the values.
    """
    lengths = np.diff(offsets)
    mixed = lengths.astype(np.uint64) * MARK_PRIME
    bits = values.view(np.uint32)
    filled = lengths > 0
    start, last = offsets[:-1][filled], lengths[filled] - 1
    for point in range(MARK_POINTS):
        at = start + last * point // (MARK_POINTS - 1)
        mixed[filled] = _stir(mixed[filled] ^ bits[at].astype(np.uint64))
    return mixed


def _stir(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Multiply and fold: every input bit reaches every output bit after two rounds."""
    product = value * MARK_PRIME
    return product ^ (product >> np.uint64(29))


def _hash(kind: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=KEY_BYTES, person=kind).digest()


def _digests(ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> list[bytes]:
    """blake2b-128 of each sample's ids: what a client sends as `ids_digest`."""
    view, bounds = ids.view(np.uint8).data, (offsets * ids.itemsize).tolist()
    return [
        hashlib.blake2b(view[low:high], digest_size=KEY_BYTES).digest()
        for low, high in pairwise(bounds)
    ]


def _value_keys(batch: Batch) -> list[bytes]:
    """Keys of paired samples without ids and tokens: nothing else will ever join them."""
    q, p = batch.tensors[LOGPROBS["rollout"]], batch.tensors[LOGPROBS["train"]]
    bounds = batch.offsets.tolist()
    return [
        _hash(b"values", q[low:high].tobytes() + p[low:high].tobytes())
        for low, high in pairwise(bounds)
    ]
