"""A Summary over the wire: the same when read back, and nothing else gets in."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from pair_blocks import OPTIONS, assert_same, blocks, random_block, sizes_of

from twinscope.errors import WireError
from twinscope_service.measure import codec
from twinscope_service.measure.codec import decode_summary, encode_summary
from twinscope_service.measure.container import pack, unpack
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.merge import empty, without_rows
from twinscope_service.measure.records import COLUMN, PairBlock, Summary

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def measured(block: PairBlock) -> Summary:
    """By the reference engine."""
    return build_engine("reference").measure(block, OPTIONS)


@SLOW
@given(block=blocks())
def test_what_was_written_is_read(block: PairBlock) -> None:
    """Bit for bit, with rows, groups, worst tokens and all."""
    summary = measured(block)
    body = encode_summary(summary)
    assert_same(decode_summary(body), summary, rel=0.0, sizes=sizes_of(block))
    assert encode_summary(decode_summary(body)) == body


def test_an_empty_summary_and_one_without_rows_travel_too() -> None:
    """The identity of merge, and what long retention keeps."""
    block = random_block(0, [5, 6], sides=True)
    for summary in (empty(), without_rows(measured(block))):
        read = decode_summary(encode_summary(summary))
        assert_same(read, summary, rel=0.0, sizes=sizes_of(block))


def test_the_body_is_a_safetensors_file() -> None:
    """Their library reads it."""
    load = pytest.importorskip("safetensors.numpy").load
    summary = measured(random_block(0, [5, 6]))
    np.testing.assert_array_equal(load(encode_summary(summary))["sums"], summary.sums)


def test_columns_are_found_by_name() -> None:
    """A writer with other columns in another order: known ones are taken, missing ones are 0."""
    summary = measured(random_block(0, [5, 6], sides=True))
    header, arrays = unpack(codec.KEY, encode_summary(summary))
    names = header["axes"]["sums"]
    order = [i for i in reversed(range(len(names))) if names[i] != "d4"]
    header["axes"]["sums"] = [*(names[i] for i in order), "a_new_one"]
    for name in ("sums", "rows.sums"):
        extra = np.ones((*arrays[name].shape[:-1], 1))
        arrays[name] = np.concatenate([arrays[name][..., order], extra], axis=-1)
    read = decode_summary(pack(codec.KEY, header, arrays))
    assert read.sums[COLUMN["d4"]] == 0
    others = [i for name, i in COLUMN.items() if name != "d4"]
    np.testing.assert_array_equal(read.sums[others], summary.sums[others])
    np.testing.assert_array_equal(read.rows.sums[:, others], summary.rows.sums[:, others])


def change(name: str, value: Any) -> tuple[str, Any]:
    """A change of the header."""
    return name, value


BAD_HEADERS = [
    change("schema", 2),
    change("samples", -1),
    change("samples", 10**9),
    change("samples", 1),
    change("axes", {}),
    change("axes", None),
    change("fixed", {}),
    change("version_lag", ["x"]),
    change("groups", [["a"]]),
    change("temperature", [-1]),
    change("row_groups", [["engine", []]]),
    change("worst", [[1, 2, 3]]),
    change("worst", [["aa", 0, 1e9, -1.0, 0, ""]]),
]


@pytest.mark.parametrize(("name", "value"), BAD_HEADERS)
def test_a_bad_header_is_refused_by_name(name: str, value: Any) -> None:
    """The message says which field."""
    header, arrays = unpack(
        codec.KEY, encode_summary(measured(random_block(0, [5, 6], sides=True)))
    )
    with pytest.raises(WireError) as caught:
        decode_summary(pack(codec.KEY, {**header, name: value}, arrays))
    assert caught.value.field.split(".")[0] in (name, "rows", "row_groups")
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sums", np.full(3, 1.0)),
        ("sums", None),
        ("coverage", np.full(10, -1)),
        ("coverage", np.full(10, 1.0)),
        ("histogram", np.zeros((2, 8), np.int64)),
        ("rows.keys", np.zeros((7, 16), np.uint8)),
        ("lags", np.full((17, 8), np.nan)),
        ("rows.max_abs", np.full(2, np.inf)),
    ],
)
def test_a_bad_array_is_refused_by_name(name: str, value: Any) -> None:
    """Wrong shape, wrong type, missing, not finite, negative counts."""
    header, arrays = unpack(codec.KEY, encode_summary(measured(random_block(0, [5, 6]))))
    arrays = {k: v for k, v in ({**arrays, name: value}).items() if v is not None}
    with pytest.raises(WireError, match=name):
        decode_summary(pack(codec.KEY, header, arrays))


@pytest.mark.parametrize("name", ["coverage", "sums", "histogram", "rows.sums"])
def test_counts_that_do_not_add_up_are_refused(name: str) -> None:
    """A tampered or half-written summary would poison every merge after it."""
    header, arrays = unpack(codec.KEY, encode_summary(measured(random_block(0, [5, 6]))))
    changed = arrays[name].copy()
    changed.reshape(-1)[0] += 1
    with pytest.raises(WireError):
        decode_summary(pack(codec.KEY, header, {**arrays, name: changed}))


def test_damaged_bodies_never_do_more_than_raise_a_wire_error() -> None:
    """Cut anywhere, and thousands of changed bytes."""
    body = encode_summary(measured(random_block(0, [3, 4], sides=True)))
    rng = random.Random(0)
    head = 8 + int.from_bytes(body[:8], "little")
    for cut in [*range(64), *(rng.randrange(len(body)) for _ in range(60))]:
        with pytest.raises(WireError):
            decode_summary(body[:cut])
    for _ in range(1500):
        damaged = bytearray(body)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(head)] = rng.randrange(256)
        with contextlib.suppress(WireError):
            decode_summary(bytes(damaged))


def test_json_that_repeats_a_key_is_refused() -> None:
    """Readers differ in which one wins."""
    text = b'{"__metadata__":{"twinscope-summary":"{}"},"__metadata__":{}}'
    body = len(text).to_bytes(8, "little") + text
    with pytest.raises(WireError):
        decode_summary(body)
    assert json.loads(text)  # the standard library would have taken it
