"""Samples and batches for tests: made up, or cut from a recorded trace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode, digest, encode

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "service/twinscope_service/recordings"


@dataclass(frozen=True)
class Sample:
    """One sample with all of its sides. Arrays [n]; `prompt` [m]."""

    name: str
    ids: NDArray[np.int32]
    q: NDArray[np.float32]
    p: NDArray[np.float32]
    ref: NDArray[np.float32]
    prompt: NDArray[np.int32]
    mask: NDArray[np.uint8] | None = None

    def values(self, side: str) -> NDArray[np.float32]:
        """The log-probs of a side."""
        return {"rollout": self.q, "train": self.p, "ref": self.ref}[side]


def make_samples(seed: int, count: int, *, longest: int = 40, noise: float = 0.05) -> list[Sample]:
    """Random samples with different ids and different tokens; lengths from 0 on."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        n = int(rng.integers(0, longest + 1))
        q = -rng.exponential(1.0, n).astype(np.float32)
        made.append(
            Sample(
                name=f"s{number}",
                ids=rng.integers(0, 50_000, n).astype(np.int32),
                q=q,
                p=np.minimum(q + rng.normal(0, noise, n), 0).astype(np.float32),
                ref=np.minimum(q + rng.normal(0, 0.2, n), 0).astype(np.float32),
                prompt=np.array([number, *rng.integers(0, 50_000, 3)], np.int32),
            )
        )
    return made


def body_of(
    samples: Sequence[Sample],
    side: str,
    *,
    run: str = "r",
    step: int | None = None,
    named: bool = True,
    tokens: str = "ids",
    **header: Any,
) -> bytes:
    """The body of a batch. `side`: one side, or `paired`; `tokens`: ids, digest or none."""
    sides = ("rollout", "train") if side == "paired" else (side,)
    tensors: dict[str, NDArray[Any]] = {
        f"{one}_logprobs": _join([s.values(one) for s in samples], np.float32) for one in sides
    }
    tensors["offsets"] = _offsets([len(s.ids) for s in samples])
    if tokens == "ids":
        tensors["token_ids"] = _join([s.ids for s in samples], np.int32)
    elif tokens == "digest":
        rows = [np.frombuffer(digest(s.ids), np.uint8) for s in samples]
        tensors["ids_digest"] = np.stack(rows) if rows else np.zeros((0, 16), np.uint8)
    if not named:
        tensors["prompt_ids"] = _join([s.prompt for s in samples], np.int32)
        tensors["prompt_offsets"] = _offsets([len(s.prompt) for s in samples])
    if any(s.mask is not None for s in samples):
        ones = [np.ones(len(s.ids), np.uint8) if s.mask is None else s.mask for s in samples]
        tensors["mask"] = _join(ones, np.uint8)
    fields = {"run": run, "side": side, **({} if step is None else {"step": step}), **header}
    if named:
        fields["sample_ids"] = [s.name for s in samples]
    return b"".join(encode(fields, {name: (a, a.shape) for name, a in tensors.items()}))


def batch_of(samples: Sequence[Sample], side: str, **arguments: Any) -> Batch:
    """`body_of`, decoded."""
    return decode(body_of(samples, side, **arguments))


def cut_trace(batch: Batch) -> list[Sample]:
    """The samples of a recorded paired batch. Its masks, if any, go with both sides."""
    found = []
    for i in range(batch.samples):
        here = slice(int(batch.offsets[i]), int(batch.offsets[i + 1]))
        bounds = batch.tensors["prompt_offsets"]
        found.append(
            Sample(
                name=(batch.sample_ids or ())[i],
                ids=batch.tensors["token_ids"][here],
                q=batch.tensors["rollout_logprobs"][here],
                p=batch.tensors["train_logprobs"][here],
                ref=batch.tensors["train_logprobs"][here],
                prompt=batch.tensors["prompt_ids"][int(bounds[i]) : int(bounds[i + 1])],
            )
        )
    return found


def renamed(sample: Sample, name: str) -> Sample:
    """The same sample under another id."""
    return replace(sample, name=name)


def recorded_traces() -> list[Path]:
    """The recordings in the package, or the full set of the folder TWINSCOPE_TRACES."""
    folder = os.environ.get("TWINSCOPE_TRACES")
    return sorted(
        Path(folder).glob("*.safetensors") if folder else RECORDINGS.glob("*.safetensors")
    )


def parametrize_traces() -> pytest.MarkDecorator:
    """One test per recorded trace."""
    return pytest.mark.parametrize("trace", recorded_traces(), ids=lambda path: path.stem)


def _offsets(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _join(arrays: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype)
