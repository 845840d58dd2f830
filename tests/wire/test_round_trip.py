"""What goes in comes out: any valid batch survives encode and decode unchanged."""

from __future__ import annotations

import hashlib
import struct
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from twinscope import wire
from twinscope.wire.schema import TENSORS

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=12)
DTYPES = {"I64": np.int64, "F32": np.float32, "I32": np.int32, "U8": np.uint8}
TRAIN_SIDE = [t for t in TENSORS if t.side == "train" and t.name not in ("logsumexp_T",)]


@st.composite
def batches(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A header and arrays of a train batch: any lengths, any float bits, any subset of tensors."""
    lengths = draw(st.lists(st.integers(0, 5), max_size=6))
    axes = {"N": sum(lengths), "S": len(lengths)}
    chosen = draw(st.sets(st.sampled_from([t.name for t in TRAIN_SIDE])))
    tensors = {"offsets": np.cumsum([0, *lengths], dtype=np.int64)}
    for spec in TRAIN_SIDE:
        if spec.name in chosen | {"train_logprobs"}:
            dtype = np.dtype(DTYPES[spec.dtype])
            shape = tuple(axes[axis] for axis in spec.shape)
            low = {"elements": st.integers(0, 1000)} if dtype.kind == "i" else {}
            tensors[spec.name] = draw(arrays.arrays(dtype, shape, **low))
    header = {"run": draw(TEXT), "step": draw(st.integers(0, 2**53 - 1)), "side": "train"}
    if draw(st.booleans()):
        ids = st.lists(TEXT, min_size=len(lengths), max_size=len(lengths), unique=True)
        header["sample_ids"] = draw(ids)
    return header, tensors


@given(batches())
@settings(max_examples=150, deadline=None)
def test_a_batch_survives_the_wire_bit_for_bit(
    batch: tuple[dict[str, Any], dict[str, np.ndarray]],
) -> None:
    """Header fields equal, array bytes equal (NaN payloads included)."""
    header, tensors = batch
    body = b"".join(wire.encode(header, {n: (a, a.shape) for n, a in tensors.items()}))
    found = wire.decode(body)
    assert (found.run, found.step, found.side) == (header["run"], header["step"], "train")
    assert found.sample_ids == (tuple(header["sample_ids"]) if "sample_ids" in header else None)
    assert set(found.tensors) == set(tensors)
    for name, values in tensors.items():
        assert found.tensors[name].tobytes() == values.tobytes()
        assert found.tensors[name].shape == values.shape


def test_encode_takes_plain_arrays_without_numpy() -> None:
    """An engine without numpy sends the array module's buffers."""
    pieces = wire.encode(
        {"run": "r", "side": "rollout"},
        {
            "offsets": (array("q", [0, 2]), (2,)),
            "rollout_logprobs": (array("f", [-0.5, -1.0]), (2,)),
        },
    )
    assert wire.decode(b"".join(pieces)).tensors["rollout_logprobs"].tolist() == [-0.5, -1.0]


def test_encode_does_not_copy_its_buffers() -> None:
    """A piece is a view of the caller's buffer: what is written there later is seen in it."""
    values = array("f", [-0.5, -1.0])
    pieces = wire.encode(
        {"run": "r"}, {"offsets": (array("q", [0, 2]), (2,)), "rollout_logprobs": (values, (2,))}
    )
    values[0] = -3.0
    assert struct.unpack("<2f", pieces[-1]) == (-3.0, -1.0)


@pytest.mark.parametrize(
    ("header", "tensors", "field"),
    [
        ({"runn": "r"}, {}, "runn"),
        ({"run": "r"}, {"logprobs": (b"", (0,))}, "logprobs"),
        ({"run": "r"}, {"mask": (b"\1\1", (3,))}, "mask"),
        ({"run": "r", "sampling": {"temperature": float("nan")}}, {}, "header"),
        ({"run": "\ud800"}, {}, "header"),
    ],
)
def test_encode_refuses_what_no_reader_would_take(
    header: dict[str, Any], tensors: dict[str, Any], field: str
) -> None:
    """The sender hears of its mistake, by name."""
    with pytest.raises(wire.WireError, match=field):
        wire.encode(header, tensors)


def test_encode_refuses_a_strided_buffer() -> None:
    """A view with gaps would be sent with the wrong neighbours."""
    column = np.zeros((4, 2), np.float32)[:, 0]
    with pytest.raises(wire.WireError, match="contiguous"):
        wire.encode({"run": "r"}, {"rollout_logprobs": (column, (4,))})


def test_the_digest_is_blake2b_of_little_endian_int32() -> None:
    """The same sixteen bytes from a list, an int32 array and the specification."""
    expected = hashlib.blake2b(struct.pack("<3i", 5, -1, 151643), digest_size=16).digest()
    assert wire.digest([5, -1, 151643]) == expected
    assert wire.digest(np.array([5, -1, 151643], np.int32)) == expected
    with pytest.raises(wire.WireError, match="int32"):
        wire.digest(np.array([5, -1, 151643], np.int64))
