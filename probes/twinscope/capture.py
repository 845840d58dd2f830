"""Capture: one call's tensors, made into a flat Block.

Runs on the sending thread, on copies (snapshot.py); on the host's only for a call that is too
large to be copied twice. `check_call` always runs on the host's: it looks at names, not at arrays.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from twinscope.arrays import Array, DType, Pad, recognise, write_parts
from twinscope.culprit import blame
from twinscope.errors import WireError
from twinscope.fields import FIELDS_BY_SIDE
from twinscope.items import Block
from twinscope.layout import Layout, arrange, find_layout
from twinscope.plain import plain_object, read_integer, read_step
from twinscope.slabs import Slab, SlabPool
from twinscope.wire.schema import ITEM_BYTES, TENSOR_BY_NAME

TOKEN_TENSORS = ("token_ids", "mask", "entropy", "kept_mass", "sampled_rank", "ref_logprobs")
SAMPLE_TENSORS = (
    "pad_left",
    "cached_tokens",
    "turn",
    "pack_slot",
    "rollout_version",
    "train_version",
    "advantage",
    "reward",
)
LOGPROBS_OF = {"rollout": "rollout_logprobs", "train": "train_logprobs", "ref": "ref_logprobs"}


class Capture:
    """One capturing call under construction: the header and the columns of its Block."""

    def __init__(self, pool: SlabPool, layout: Layout) -> None:
        self._pool = pool
        self._layout = layout
        self._slabs: list[Slab] = []
        self.columns: dict[str, tuple[memoryview, ...]] = {}
        self.header: dict[str, Any] = {}

    def block(self, *, digest_ids: bool, masked: bool) -> Block:
        """The finished block. `masked`: the host said which tokens count."""
        return Block(
            self.header,
            self._layout.offsets(),
            self.columns,
            tuple(self._slabs),
            digest_ids=digest_ids,
            unmasked_width=None if masked else self._layout.width,
        )

    def tokens(self, name: str, value: Array, *, field: str) -> None:
        """A per-token tensor."""
        parts = arrange(value, self._layout, field=field)
        self.columns[name] = (self._copy(name, parts, self._layout, field),)

    def samples(self, name: str, value: Array, *, field: str) -> None:
        """A per-sample tensor; one number stands for all samples."""
        count = self._layout.samples
        value = [value] * count if isinstance(value, (int, float)) else value
        dialect, native = recognise(value, field=field)
        shape = dialect.shape(native)
        if shape not in ((count,), (count, 1)):
            fix = f"pass {count} values, one per sample, or one for all"
            raise WireError(field, f"shape {list(shape)}", fix)
        self.columns[name] = (self._copy(name, [native], count, field),)

    def temperatures(self, logsumexp: Mapping[float, Array]) -> None:
        """Log-sum-exp at K temperatures: one per-token array each."""
        views = []
        for temperature, value in logsumexp.items():
            field = f"logsumexp[{temperature}]"
            parts = arrange(value, self._layout, field=field)
            views.append(self._copy("logsumexp_T", parts, self._layout, field))
        if views:
            self.columns["logsumexp_T"] = tuple(views)
            self.header["temperatures"] = [float(temperature) for temperature in logsumexp]

    def prompts(self, ids: Array, *, mask: Array, offsets: Any, pad: Pad) -> Layout:
        """Prompt ids in a layout of their own."""
        layout = find_layout(ids, field="prompt_ids", mask=mask, offsets=offsets, pad=pad)
        if layout.samples != self._layout.samples:
            fix = f"the call has {self._layout.samples} samples: pass one prompt for each"
            raise WireError("prompt_ids", f"{layout.samples} prompts", fix)
        parts = arrange(ids, layout, field="prompt_ids")
        self.columns["prompt_ids"] = (self._copy("prompt_ids", parts, layout, "prompt_ids"),)
        self.columns["prompt_offsets"] = (layout.offsets().cast("B"),)
        return layout

    def _copy(
        self, name: str, parts: Sequence[Array], shape: Layout | int, field: str
    ) -> memoryview:
        """One tensor: the tokens of a layout, or that many values, one per sample."""
        dtype = cast("DType", TENSOR_BY_NAME[name].dtype)
        count = shape if isinstance(shape, int) else shape.tokens
        lengths = None if isinstance(shape, int) else shape.lengths
        slab = self._pool.take(count * ITEM_BYTES[dtype])
        view = slab.view(count * ITEM_BYTES[dtype])
        if count:
            _write(parts, dtype, view, field, lengths)
        self._slabs.append(slab)
        return view


def _write(
    parts: Sequence[Array], dtype: DType, view: memoryview, field: str, lengths: list[int] | None
) -> None:
    """Copy; what the array library or Python itself refuses is bad input, with a name."""
    try:
        write_parts(parts, dtype, view, field=field)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, WireError):
            raise
        raise blame(parts, dtype, field=field, lengths=lengths, why=str(error)) from error


def check_call(
    side: str, step: Any, logprobs: Mapping[str, Array], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields that are given (None: not). Raises WireError for what their names tell."""
    for name, value in logprobs.items():
        if value is None:
            raise WireError(name, None, "pass the log-probs of the sampled tokens")
    _step(side, step)
    given = {name: value for name, value in fields.items() if value is not None}
    _check_names(side, given)
    return given


def capture_side(
    side: str,
    step: Any,
    logprobs: Mapping[str, Array],
    *,
    run: str,
    fields: Mapping[str, Any],
    part: Mapping[str, int],
    pool: SlabPool,
    dtypes: Mapping[str, str | None] | None = None,
) -> Block:
    """The block of one call whose names are checked.

    `logprobs`: tensor name -> values, the first sets the layout; `dtypes`: tensor name -> element
    type that the host used (None: unknown). Raises WireError naming the argument, what was found
    and what to pass.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    first = next(iter(logprobs))
    field = first if side == "paired" else "logprobs"
    pad: Pad = given.get("pad", "auto")
    layout = find_layout(
        logprobs[first], field=field, mask=given.get("mask"), offsets=given.get("offsets"), pad=pad
    )
    capture = Capture(pool, layout)
    capture.header.update(run=run, side=side, part=dict(part), **_step(side, step))
    check_joinable(side, given, samples=layout.samples)
    for name, value in logprobs.items():
        capture.tokens(name, value, field=name if side == "paired" else "logprobs")
    _add_tensors(capture, side, given)
    _add_prompts(capture, side, given)
    _add_header(capture.header, side, given, samples=layout.samples)
    for name, dtype in (dtypes or {}).items():
        if dtype is not None:
            _remember_dtype(capture.header, name, dtype)
    masked = "mask" in given or pad == "none"
    return capture.block(digest_ids=_wants_digest(given), masked=masked)


def _check_names(side: str, given: Mapping[str, Any]) -> None:
    known = FIELDS_BY_SIDE[side]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            fix = f"use {near[0]}" if near else f"known: {', '.join(sorted(known))}"
            raise WireError(name, "an unknown argument", fix)


def check_joinable(side: str, given: Mapping[str, Any], *, samples: int) -> None:
    """One side alone must say which samples it has, or the service could never join them.

    `samples`: how many, or, on the host's thread, any number above 0 if there are some.
    """
    named = "token_ids" in given or "sample_ids" in given
    if side != "paired" and samples and not named:
        fix = "pass token_ids or sample_ids on both sides: without them the sides cannot be joined"
        raise WireError("token_ids", None, fix)


def _wants_digest(given: Mapping[str, Any]) -> bool:
    ids = given.get("ids", "full")
    if ids not in ("full", "digest"):
        raise WireError("ids", ids, "use full or digest")
    return bool(ids == "digest")


def _step(side: str, step: Any) -> dict[str, int]:
    """The step, which only the trainer is sure to know."""
    if step is None and side in ("rollout", "ref"):
        return {}
    return {"step": read_step(step)}


def _add_tensors(capture: Capture, side: str, given: Mapping[str, Any]) -> None:
    for name in TOKEN_TENSORS:
        if name in given:
            capture.tokens(name, given[name], field=name)
    if "logsumexp" in given:
        capture.temperatures(given["logsumexp"])
    for name in SAMPLE_TENSORS:
        if name in given:
            capture.samples(name, given[name], field=name)
    if "version" in given:
        capture.samples(f"{side}_version", given["version"], field="version")


def _add_prompts(capture: Capture, side: str, given: Mapping[str, Any]) -> None:
    """Prompts; the trainer's left padding is read off the prompt mask, unless it is given."""
    if given.get("prompt_ids") is None:
        return
    layout = capture.prompts(
        given["prompt_ids"],
        mask=given.get("prompt_mask"),
        offsets=given.get("prompt_offsets"),
        pad="auto",
    )
    if side in ("train", "paired") and "prompt_mask" in given and "pad_left" not in given:
        capture.samples("pad_left", layout.starts or [0] * layout.samples, field="prompt_mask")


def _add_header(
    header: dict[str, Any], side: str, given: Mapping[str, Any], *, samples: int
) -> None:
    """The parts of the header that are not tensors, as plain JSON values, copied."""
    if "sample_ids" in given:
        ids = given["sample_ids"]
        ids = [ids] if isinstance(ids, str) else ids
        header["sample_ids"] = _labels("sample_ids", ids, samples)
    if "groups" in given:
        header["groups"] = {
            str(name): _labels(f"groups[{name}]", value, samples)
            for name, value in given["groups"].items()
        }
    if "version_spans" in given:
        spans = given["version_spans"]
        header["version_spans"] = [[read_integer("version_spans", n) for n in s] for s in spans]
    if "expect" in given:
        expect = given["expect"]
        if not isinstance(expect, Mapping):
            expect = dict.fromkeys(("rollout", "train") if side == "paired" else (side,), expect)
        header["expect"] = {str(k): read_integer("expect", v) for k, v in expect.items()}
    if "sampling" in given:
        header["sampling"] = plain_object("sampling", given["sampling"])
    for name in ("rollout", "train"):
        field = "fingerprint" if side == name else f"{name}_fingerprint"
        if field in given:
            header[name] = plain_object(field, given[field])


def _labels(field: str, value: Iterable[Any] | str, samples: int) -> list[str]:
    """One string per sample; one string stands for all (never for ids: they are unique)."""
    if isinstance(value, str):
        return [value] * samples
    labels = [item if isinstance(item, str) else str(item) for item in value]
    if len(labels) != samples:
        raise WireError(field, f"{len(labels)} values", f"pass {samples}, one per sample")
    return labels


def _remember_dtype(header: dict[str, Any], name: str, dtype: str) -> None:
    """The element type of the source: log-probs that were bf16 before the cast are a finding."""
    side = name.removesuffix("_logprobs")
    if side in ("rollout", "train"):
        header.setdefault(side, {}).setdefault("logprob_dtype", dtype)
