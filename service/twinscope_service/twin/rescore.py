"""Which weights did the engine really use, and which the trainer: recorded samples, scored again.

Each side's log-probs are compared with every candidate checkpoint. The measure is the mean squared
log ratio per token; samples are the unit, and two candidates are told apart by the paired
difference of their samples' means, in standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinscope.errors import ConfigError
from twinscope.wire.batch import Batch

SURE = 3.0  # standard errors between the best candidate and the next
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Recorded:
    """S samples of a trace; log-probs in nats, one row per sample."""

    prompts: list[list[int]]
    responses: list[list[int]]
    masks: list[NDArray[np.bool_]]
    rollout: list[F64] | None  # None: the trace has no such side
    train: list[F64] | None
    temperature: float


@dataclass(frozen=True)
class Candidate:
    """One side against one checkpoint."""

    checkpoint: str
    mean_square: float  # of the log ratio, per counted token
    mean_abs: float
    behind: float  # standard errors behind the best; 0 for the best itself


@dataclass(frozen=True)
class Standing:
    """One side against all checkpoints, best first."""

    side: str
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> str | None:
        """The checkpoint this side agrees with; None: the next one agrees as well."""
        alone = len(self.candidates) == 1 or self.candidates[1].behind >= SURE
        return self.candidates[0].checkpoint if alone else None


def read_recorded(batches: Sequence[Batch], *, most: int) -> Recorded:
    """The first `most` samples of the traces. Raises ConfigError for what cannot be scored."""
    rows = [_row(batch, s) for batch in batches for s in range(batch.samples)][:most]
    if not rows:
        raise ConfigError("the files hold no samples")
    known = [(batch.sampling or {}).get("temperature", 1.0) for batch in batches]
    if len(set(known)) > 1:
        raise ConfigError(f"sampling.temperature: {known}; give files of one temperature")
    sides: dict[str, list[F64] | None] = {}
    for name in ("rollout", "train"):
        values = [row[name] for row in rows]
        sides[name] = None if any(value is None for value in values) else values
    return Recorded(
        [row["prompt"] for row in rows], [row["response"] for row in rows],
        [row["mask"] for row in rows], sides["rollout"], sides["train"], float(known[0] or 1.0),
    )  # fmt: skip


def _row(batch: Batch, s: int) -> dict[str, Any]:
    tensors = batch.tensors
    for name in ("token_ids", "prompt_ids", "prompt_offsets"):
        if name not in tensors:
            raise ConfigError(
                f"{name}: absent; only traces with token and prompt ids can be scored"
            )
    a, b = (int(x) for x in batch.offsets[s : s + 2])
    c, d = (int(x) for x in tensors["prompt_offsets"][s : s + 2])
    sides = {
        name: tensors[f"{name}_logprobs"][a:b].astype(np.float64)
        if f"{name}_logprobs" in tensors
        else None
        for name in ("rollout", "train")
    }
    mask = tensors["mask"][a:b] != 0 if "mask" in tensors else np.ones(b - a, bool)
    ids = {
        "prompt": tensors["prompt_ids"][c:d].tolist(),
        "response": tensors["token_ids"][a:b].tolist(),
    }
    return {**ids, **sides, "mask": mask}


def rank(side: str, found: Sequence[F64], masks: Sequence[NDArray[np.bool_]],
         scores: Mapping[str, Sequence[Sequence[float]]]) -> Standing:  # fmt: skip
    """`found` (one side's rows) against the scores of each checkpoint, by name."""
    measured: list[tuple[str, F64, float, float]] = []
    for name, rows in scores.items():
        gaps = [
            np.asarray(row, np.float64)[mask] - values[mask]
            for row, values, mask in zip(rows, found, masks, strict=True)
        ]
        gaps = [gap[np.isfinite(gap)] for gap in gaps]
        flat = np.concatenate(gaps)
        samples = np.array([np.mean(gap**2) if len(gap) else np.nan for gap in gaps])
        measured.append((name, samples, float(np.mean(flat**2)), float(np.mean(np.abs(flat)))))
    measured.sort(key=lambda entry: entry[2])
    best = measured[0][1]
    return Standing(
        side,
        tuple(
            Candidate(name, square, gap, _standard_errors(samples - best))
            for name, samples, square, gap in measured
        ),
    )


def _standard_errors(differences: F64) -> float:
    """Mean over its standard error; samples are independent, tokens are not."""
    kept = differences[np.isfinite(differences)]
    if len(kept) < 2 or not np.any(kept):
        return 0.0
    return float(kept.mean() / max(kept.std(ddof=1) / math.sqrt(len(kept)), 1e-300))


@dataclass(frozen=True)
class Moved:
    """Share of the weights that differ between two checkpoints, as stored and as bfloat16."""

    older: str
    newer: str
    stored: float
    rounded: float


def conclude(standings: Sequence[Standing], newest: str, moved: Moved | None) -> list[str]:
    """What follows, in sentences. Checkpoints are given oldest first; `newest` is the last."""
    best = {standing.side: standing.best for standing in standings}
    found: list[str] = []
    for side, role in (("rollout", "engine"), ("train", "trainer")):
        if side not in best:
            continue
        if best[side] is None:
            found.append(f"{role}: the candidates cannot be told apart on these samples")
        elif best[side] == newest:
            found.append(f"{role}: agrees with the newest checkpoint, {newest}")
        else:
            found.append(f"{role} is stale: agrees with {best[side]}, not with {newest}")
    if moved is not None:
        text = (
            f"{moved.stored:.2%} of the weights moved from {moved.older} to {moved.newer}, "
            f"{moved.rounded:.2%} after rounding to bfloat16"
        )
        if moved.stored > 0.01 and moved.rounded < moved.stored / 10:
            text += ": the engine cannot see this update (update_lost_to_rounding)"
        found.append(text)
    return found


def as_json(standings: Sequence[Standing], texts: Sequence[str]) -> dict[str, Any]:
    """Everything, plain."""
    return {
        "conclusions": list(texts),
        "sides": [{**asdict(standing), "best": standing.best} for standing in standings],
    }
