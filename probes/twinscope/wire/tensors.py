"""Checks of the tensors: agreement of axes, sides and values; ends in a Batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twinscope.errors import WireError
from twinscope.wire.batch import Batch
from twinscope.wire.header import STEP_END
from twinscope.wire.limits import Limits
from twinscope.wire.schema import TENSOR_BY_NAME, Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Shape = tuple[int, ...]

# Log-probs that a side must bring, and those that it may bring besides.
SIDE_LOGPROBS: dict[Side, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rollout": (("rollout_logprobs",), ()),
    "train": (("train_logprobs",), ("ref_logprobs",)),
    "ref": (("ref_logprobs",), ()),
    "paired": (("rollout_logprobs", "train_logprobs"), ("ref_logprobs",)),
}
LOGPROBS = ("rollout_logprobs", "train_logprobs", "ref_logprobs")

# Integer tensors with a lowest and a highest value. Token ids are compared and hashed, never used
# as an index, so any int32 is accepted there.
VALUE_RANGES: dict[str, tuple[int, int]] = {
    "mask": (0, 1),
    "sampled_rank": (0, (1 << 31) - 1),
    "pad_left": (0, (1 << 31) - 1),
    "cached_tokens": (0, (1 << 31) - 1),
    "turn": (0, (1 << 31) - 1),
    "pack_slot": (0, (1 << 31) - 1),
    "rollout_version": (0, STEP_END - 1),
    "train_version": (0, STEP_END - 1),
}


def measure_axes(shapes: Mapping[str, Shape], limits: Limits) -> dict[str, int]:
    """The length of each axis (S, N, M, K), where every tensor agrees about it."""
    if "offsets" not in shapes:
        raise WireError("offsets", None, "send it: sample s is tokens offsets[s]:offsets[s+1]")
    axes: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        for axis, length in zip(_axis_names(name, shape), shape, strict=True):
            _agree(axes, axis, length, name)
    lengths = {axis: length for axis, (length, _) in axes.items()}
    _check_lengths(lengths, limits)
    return lengths


def _axis_names(name: str, shape: Shape) -> tuple[str, ...]:
    declared = TENSOR_BY_NAME[name].shape
    if len(shape) != len(declared):
        raise WireError(f"{name}.shape", list(shape), f"send shape [{', '.join(declared)}]")
    return declared


def _agree(axes: dict[str, tuple[int, str]], axis: str, length: int, name: str) -> None:
    """Record the length of `axis`, or compare it with what an earlier tensor said."""
    if axis.isdecimal():
        if length != int(axis):
            raise WireError(f"{name}.shape", length, f"the last axis has length {axis}")
        return
    if axis == "S+1":
        if length < 1:
            raise WireError(f"{name}.shape", length, "send S+1 offsets, at least [0]")
        axis, length = "S", length - 1
    known, source = axes.setdefault(axis, (length, name))
    if known != length:
        fix = f"axis {axis} is {known} in {source}: all tensors of a batch must agree"
        raise WireError(f"{name}.shape", length, fix)


def _check_lengths(lengths: Mapping[str, int], limits: Limits) -> None:
    bounds = {
        "S": ("samples", limits.samples),
        "N": ("tokens", limits.tokens),
        "M": ("prompt tokens", limits.prompt_tokens),
        "K": ("temperatures", limits.temperatures),
    }
    for axis, length in lengths.items():
        noun, most = bounds[axis]
        if length > most:
            raise WireError(noun, length, f"send at most {most} per batch: split it by samples")


def resolve_side(header: Mapping[str, Any], names: set[str]) -> Side:
    """The side of the batch, given or taken from its log-probs, with everything it needs."""
    present = tuple(name for name in LOGPROBS if name in names)
    side: Side = header.get("side") or _infer_side(present)
    needed, optional = SIDE_LOGPROBS[side]
    for name in needed:
        if name not in present:
            raise WireError(name, None, f"side {side} needs it")
    for name in present:
        if name not in needed + optional:
            fix = f"leave it out of a batch of side {side}, or send another side"
            raise WireError(name, f"side {side}", fix)
    for name in sorted(names):
        owner = TENSOR_BY_NAME[name].side
        if name not in LOGPROBS and owner in ("rollout", "train") and side not in (owner, "paired"):
            raise WireError(name, f"side {side}", f"send it with the {owner} side")
    if side in ("train", "paired") and header.get("step") is None:
        raise WireError("step", None, f"side {side} needs it: the trainer knows its step")
    return side


def _infer_side(present: tuple[str, ...]) -> Side:
    if "rollout_logprobs" in present:
        return "paired" if "train_logprobs" in present else "rollout"
    if "train_logprobs" in present:
        return "train"
    if "ref_logprobs" in present:
        return "ref"
    raise WireError("rollout_logprobs", None, f"send at least one of {', '.join(LOGPROBS)}")


def build_batch(
    header: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    *,
    limits: Limits,
) -> Batch:
    """The Batch of a checked header and of arrays with the declared dtypes."""
    axes = measure_axes({name: array.shape for name, array in tensors.items()}, limits)
    side = resolve_side(header, set(tensors))
    _check_pairs(header, tensors)
    _check_offsets("offsets", tensors["offsets"], axes.get("N", 0))
    if "prompt_offsets" in tensors:
        _check_offsets("prompt_offsets", tensors["prompt_offsets"], axes["M"])
    _check_counts(header, axes)
    _check_spans(header.get("version_spans") or (), tensors["offsets"])
    for name, (low, high) in VALUE_RANGES.items():
        if name in tensors:
            _check_range(name, tensors[name], low, high)
    fields = {name: value for name, value in header.items() if name not in ("schema", "side")}
    return Batch(side=side, tensors=tensors, **{"step": None, **fields})


def _check_pairs(header: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Things that mean something only together."""
    if ("prompt_ids" in tensors) != ("prompt_offsets" in tensors):
        raise WireError("prompt_ids", sorted(tensors), "send prompt_ids with prompt_offsets")
    if ("logsumexp_T" in tensors) != ("temperatures" in header):
        value = header.get("temperatures")
        raise WireError("temperatures", value, "send temperatures with logsumexp_T")
    if "token_ids" in tensors and "ids_digest" in tensors:
        raise WireError("ids_digest", "with token_ids", "send one of them: they say the same")


def _check_offsets(name: str, offsets: NDArray[np.int64], end: int) -> None:
    """From 0 to `end`, never down. Compared, not subtracted: a difference could overflow."""
    if int(offsets[0]) != 0:
        raise WireError(f"{name}[0]", int(offsets[0]), "offsets start at 0")
    down = offsets[1:] < offsets[:-1]
    if down.any():
        s = int(down.argmax())
        pair = [int(offsets[s]), int(offsets[s + 1])]
        raise WireError(f"{name}[{s + 1}]", pair, "offsets never decrease")
    if int(offsets[-1]) != end:
        fix = f"the last offset is the number of tokens, {end}"
        raise WireError(f"{name}[{len(offsets) - 1}]", int(offsets[-1]), fix)


def _check_counts(header: Mapping[str, Any], axes: Mapping[str, int]) -> None:
    """Header arrays that run along an axis have its length."""
    counts = [("sample_ids", header.get("sample_ids"), "S")]
    counts += [(f"groups.{name}", v, "S") for name, v in (header.get("groups") or {}).items()]
    counts += [("temperatures", header.get("temperatures"), "K")]
    for field, values, axis in counts:
        if values is not None and len(values) != axes[axis]:
            fix = f"send {axes[axis]}, one per entry of axis {axis}"
            raise WireError(field, f"{len(values)} entries", fix)


def _check_spans(spans: tuple[tuple[int, int, int], ...], offsets: NDArray[np.int64]) -> None:
    """Each span starts inside its sample, after the span before it."""
    before = (-1, -1)
    for i, (sample, first, _) in enumerate(spans):
        inside = sample < len(offsets) - 1 and first < int(offsets[sample + 1] - offsets[sample])
        if not inside:
            fix = "name a sample and a token of this batch"
            raise WireError(f"version_spans[{i}]", [sample, first], fix)
        if (sample, first) <= before:
            raise WireError(f"version_spans[{i}]", [sample, first], "sort by sample, then token")
        before = (sample, first)


def _check_range(name: str, values: NDArray[Any], low: int, high: int) -> None:
    if not values.size:
        return
    for found in (int(values.min()), int(values.max())):
        if not low <= found <= high:
            raise WireError(name, found, f"send values from {low} to {high}")
