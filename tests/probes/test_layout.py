"""Every form a host can pass gives the same flat tokens; the expectation is a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinscope.arrays import TORCH, Pad, write_parts
from twinscope.errors import WireError
from twinscope.layout import arrange, find_layout

Rows = list[list[float]]
Make = Callable[[Any], Any]
FORMS: dict[str, Make] = {
    "numpy": np.asarray,
    "torch": torch.tensor,
    "list": lambda rows: rows,
}


def _flatten(
    values: Any, mask: Any, pad: Pad, *, dtype: str = "F32"
) -> tuple[list[int], list[Any]]:
    layout = find_layout(values, field="logprobs", mask=mask, offsets=None, pad=pad)
    width = {"F32": 4, "U8": 1}[dtype]
    out = bytearray(width * layout.tokens)
    parts = arrange(values, layout, field="logprobs")
    if layout.tokens:
        write_parts(parts, dtype, memoryview(out), field="logprobs")  # type: ignore[arg-type]
    return layout.lengths, memoryview(out).cast("f" if dtype == "F32" else "B").tolist()


def _loop(rows: Rows, mask: Sequence[Sequence[int]], pad: Pad) -> tuple[list[int], list[float]]:
    """What `pad` means, written out by hand."""
    lengths, flat = [], []
    for row, bits in zip(rows, mask, strict=True):
        kept = [column for column, bit in enumerate(bits) if bit]
        first = 0 if pad in ("right", "none") else min(kept, default=0)
        end = len(row) if pad in ("left", "none") else max(kept, default=-1) + 1
        if pad != "none" and not kept:
            end = first
        lengths.append(end - first)
        flat += row[first:end]
    return lengths, flat


@st.composite
def _padded(draw: st.DrawFn) -> tuple[Rows, list[list[int]]]:
    samples, width = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    bits = st.lists(st.integers(0, 1), min_size=width, max_size=width)
    mask = draw(st.lists(bits, min_size=samples, max_size=samples))
    return [[-(s * 16.0 + t) for t in range(width)] for s in range(samples)], mask


@pytest.mark.parametrize("pad", ["both", "left", "right", "none"])
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40)
@given(case=_padded())
def test_padding_is_cut_off_as_the_words_say(
    form: str, pad: Pad, case: tuple[Rows, list[list[int]]]
) -> None:
    """Left, right, both or nothing; holes in the middle stay; all libraries agree with a loop."""
    rows, mask = case
    make = FORMS[form]
    named = pad
    if form == "list" and pad == "none":
        return  # nested lists without a named side are ragged, which is the same tokens

    assert _flatten(make(rows), make(mask), named) == _loop(rows, mask, pad)


@settings(max_examples=40)
@given(case=_padded())
def test_auto_cuts_both_sides_of_a_tensor(case: tuple[Rows, list[list[int]]]) -> None:
    """The default for [S,T] arrays."""
    rows, mask = case

    assert _flatten(np.asarray(rows), np.asarray(mask), "auto") == _loop(rows, mask, "both")


@settings(max_examples=40)
@given(case=_padded(), pad=st.sampled_from(["both", "left", "right"]))
def test_a_device_tensor_is_cut_as_a_host_tensor(
    case: tuple[Rows, list[list[int]]], pad: Pad
) -> None:
    """The code path of CUDA tensors, run here on the CPU."""
    rows, mask = case
    values, bits = torch.tensor(rows), torch.tensor(mask)
    starts, stops = TORCH.spans(bits, pad)
    out = bytearray(4 * sum(b - a for a, b in zip(starts, stops, strict=True)))
    if out:
        TORCH.write([TORCH.select(values, starts, stops)], "F32", memoryview(out), field="x")

    lengths, flat = _loop(rows, mask, pad)
    assert [b - a for a, b in zip(starts, stops, strict=True)] == lengths
    assert memoryview(out).cast("f").tolist() == flat


def test_a_hole_in_the_mask_stays_as_a_masked_token() -> None:
    """Tool output between two parts of an answer: the positions behind it must not move."""
    rows, mask = [[-1.0, -2.0, -3.0, -4.0, 0.0]], [[1, 0, 1, 1, 0]]

    assert _flatten(torch.tensor(rows), torch.tensor(mask), "auto")[1] == rows[0][:4]


RAGGED = [[-1.0, -2.0], [], [-3.0]]


@pytest.mark.parametrize(
    "values",
    [
        RAGGED,
        [np.array(row, np.float64) for row in RAGGED],
        [torch.tensor(row, dtype=torch.float16) for row in RAGGED],
        [np.array([-1.0, -2.0]), [], torch.tensor([-3.0])],
        tuple(tuple(row) for row in RAGGED),
    ],
    ids=["lists", "numpy", "torch", "mixed", "tuples"],
)
def test_ragged_samples_keep_their_lengths(values: Any) -> None:
    """A list with one array per sample, from any library; empty answers too."""
    assert _flatten(values, None, "auto") == ([2, 0, 1], [-1.0, -2.0, -3.0])


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_flat_arrays_follow_their_offsets(make: Make) -> None:
    """What packed trainers have."""
    values = make([-1.0, -2.0, -3.0])
    layout = find_layout(values, field="logprobs", mask=None, offsets=[0, 2, 2, 3], pad="auto")

    assert layout.lengths == [2, 0, 1]
    assert len(arrange(values, layout, field="logprobs")) == 1
    assert find_layout(values, field="x", mask=None, offsets=None, pad="auto").lengths == [3]


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str
)
def test_casting_equals_the_library_s_own(dtype: torch.dtype) -> None:
    """Every value of the source arrives as float32 of it, and bf16 exactly."""
    values = (
        -torch.rand(3, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 20
    )
    source = values.to(dtype)

    assert _flatten(source, None, "auto")[1] == source.to(torch.float32).flatten().tolist()


def test_tensors_that_are_strided_or_need_gradients_are_read_as_they_look() -> None:
    """Transposed views, slices with a step, and tensors inside a graph."""
    base = torch.arange(12.0, requires_grad=True).reshape(3, 4).T

    assert _flatten(base, None, "auto")[1] == base.flatten().tolist()
    assert _flatten(base[::2], None, "auto")[1] == base[::2].flatten().tolist()
    assert _flatten(np.arange(12.0).reshape(3, 4).T[::2], None, "auto")[1][:3] == [0.0, 4.0, 8.0]


def test_a_missing_log_prob_in_a_list_becomes_nan_not_zero() -> None:
    """Engines say None for a token they did not score; the service counts it as not finite."""
    flat = _flatten([[-1.0, None]], None, "auto")[1]

    assert flat[0] == -1.0
    assert flat[1] != flat[1]


@pytest.mark.parametrize("mask", [[[2, 0, -1]], [[True, False, True]], [[1.0, 0.0, 1.0]]])
@pytest.mark.parametrize("form", FORMS)
def test_a_mask_is_one_where_it_is_not_zero(mask: list[list[float]], form: str) -> None:
    """Booleans, integers and floats."""
    assert _flatten(FORMS[form](mask), None, "auto", dtype="U8")[1] == [1, 0, 1]


@pytest.mark.parametrize(
    ("values", "mask", "offsets", "pad", "words"),
    [
        (np.zeros((2, 3)), np.zeros((2, 4)), None, "auto", ["mask", "[2, 4]", "[2, 3]"]),
        (np.zeros((2, 3, 4)), None, None, "auto", ["logprobs", "[2, 3, 4]", "[S,T]"]),
        (np.zeros(3), None, [0, 2], "auto", ["logprobs", "[3]", "end at 2"]),
        (np.zeros(3), None, [0, 2, 1, 3], "auto", ["offsets", "[0, 2, 1, 3]", "never decrease"]),
        (np.zeros(3), None, [1, 3], "auto", ["offsets", "from 0"]),
        (np.zeros(3), None, [0, 3.0], "auto", ["offsets", "integers"]),
        (np.zeros((2, 3)), None, None, "centre", ["pad", "centre", "left, right"]),
        ([np.zeros((2, 2))], None, None, "auto", ["logprobs[0]", "[2, 2]", "1-D"]),
        (7, None, None, "auto", ["logprobs", "int", "a tensor, an array or a list"]),
        ([[1.0], [2.0, 3.0]], None, None, "right", ["padded list", "one length"]),
    ],
)
def test_what_does_not_fit_is_named(
    values: Any, mask: Any, offsets: Any, pad: Any, words: list[str]
) -> None:
    """The error names the field, what was found, and what to pass."""
    with pytest.raises(WireError) as caught:
        find_layout(values, field="logprobs", mask=mask, offsets=offsets, pad=pad)

    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([[1], [2, 3]], ["token_ids[0]", "1 tokens", "sample 0 has 2 tokens"]),
        ([[1, 2]], ["token_ids", "1 arrays", "2 samples"]),
        (np.zeros(4), ["token_ids", "[4]", "3 tokens together"]),
        (np.zeros((2, 2)), ["token_ids", "[2, 2]"]),
    ],
)
def test_all_tensors_of_a_call_must_agree(value: Any, words: list[str]) -> None:
    """A tensor with other lengths than the log-probs is refused, with the sample named."""
    layout = find_layout(
        [[-1.0, -2.0], [-3.0]], field="logprobs", mask=None, offsets=None, pad="auto"
    )

    with pytest.raises(WireError) as caught:
        arrange(value, layout, field="token_ids")
    for word in words:
        assert word in str(caught.value)


def test_integers_are_not_invented_from_fractions() -> None:
    """Float token ids are a mix-up of arguments."""
    for values in (np.zeros(2), torch.zeros(2), [0.5]):
        with pytest.raises((WireError, TypeError)):
            write_parts([values], "I32", memoryview(bytearray(8)), field="token_ids")
