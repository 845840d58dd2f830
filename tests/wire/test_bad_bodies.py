"""Malformed bodies: each ends in a WireError that names the field, the value and the fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from twinscope import wire

Spoil = Callable[..., bytes]
INT64_MAX = 2**63 - 1


def _refusal(body: bytes, **limits: int) -> wire.WireError:
    with pytest.raises(wire.WireError) as caught:
        wire.decode(body, limits=wire.Limits(**limits))
    assert caught.value.fix
    return caught.value


def test_the_unspoilt_body_is_good(spoil: Spoil) -> None:
    """Every refusal below is the doing of its one change."""
    assert wire.decode(spoil()).tokens == 5


def test_a_body_cut_anywhere_is_refused(golden: Callable[[str], bytes]) -> None:
    """No prefix of a body is a batch."""
    body = golden("paired")
    for length in range(len(body)):
        _refusal(body[:length])


def test_bytes_behind_the_end_are_refused(golden: Callable[[str], bytes]) -> None:
    """A body has nothing behind its tensors, where something could hide."""
    assert _refusal(golden("paired") + b"\0").field == "body"


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 10**6, 8 << 20])
def test_a_header_longer_than_the_body_is_refused(spoil: Spoil, length: int) -> None:
    """The length field is believed only after it was compared with what arrived."""
    error = _refusal(length.to_bytes(8, "little") + spoil()[8:])
    assert error.field == "header length"
    assert error.value == str(length)


@pytest.mark.parametrize(
    "text",
    [b"not json", b"", b"[]", b"1", b'"x"', b"null", b"{", b'{"a":1}{', b"\xff\xfe", b"{} x"],
)
def test_a_header_that_is_no_json_object_is_refused(text: bytes) -> None:
    """Whatever stands where the layout should be."""
    assert _refusal(len(text).to_bytes(8, "little") + text).field in ("header", "__metadata__")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_refused(opening: str) -> None:
    """A hundred thousand brackets cost a parser its stack."""
    text = (opening * 100_000).encode()
    assert "nest" in _refusal(len(text).to_bytes(8, "little") + text).fix
    shallow = ("[" * 20 + "]" * 20).encode()
    assert "nest" in _refusal(len(shallow).to_bytes(8, "little") + shallow).fix


def test_a_million_brackets_are_refused() -> None:
    """Empty lists are the cheapest way to make a parser fill the memory."""
    text = b"[" + b"[]," * 1_000_000 + b"[]]"
    assert "arrays" in _refusal(len(text).to_bytes(8, "little") + text).fix


HEADERS: list[tuple[dict[str, Any], str]] = [
    ({"schema": 2}, "schema"),
    ({"schema": True}, "schema"),
    ({"schema": None}, "schema"),
    ({"run": None}, "run"),
    ({"run": ""}, "run"),
    ({"run": 7}, "run"),
    ({"run": "a\nb"}, "run"),
    ({"run": "a\x00b"}, "run"),
    ({"run": "a\u202eb"}, "run"),
    ({"run": "\ud800"}, "run"),
    ({"run": "x" * 10_000}, "run"),
    ({"run": ".."}, "run"),
    ({"step": -1}, "step"),
    ({"step": 2**53}, "step"),
    ({"step": 2**63}, "step"),
    ({"step": 10**400}, "step"),
    ({"sampling": {"seed": 2**64}}, "sampling"),
    ({"step": 1.0}, "step"),
    ({"step": True}, "step"),
    ({"step": "3"}, "step"),
    ({"step": None}, "step"),
    ({"side": "both"}, "side"),
    ({"side": ["train"]}, "side"),
    ({"side": "train"}, "rollout_logprobs"),
    ({"side": "ref"}, "ref_logprobs"),
    ({"sample_ids": ["a", "b"]}, "sample_ids"),
    ({"sample_ids": ["a", "b", "a"]}, "sample_ids[2]"),
    ({"sample_ids": ["a", "b", 3]}, "sample_ids[2]"),
    ({"sample_ids": ["a", "b", ""]}, "sample_ids[2]"),
    ({"sample_ids": ["a", "b", "c\r"]}, "sample_ids[2]"),
    ({"sample_ids": "abc"}, "sample_ids"),
    ({"expect": {"trainer": 3}}, "expect"),
    ({"expect": {"train": -1}}, "expect.train"),
    ({"expect": {"train": 2.5}}, "expect.train"),
    ({"sampling": []}, "sampling"),
    ({"sampling": {"temperature": "hot"}}, "sampling.temperature"),
    ({"sampling": {"temperature": -0.5}}, "sampling.temperature"),
    ({"sampling": {"top_p": 1.5}}, "sampling.top_p"),
    ({"rollout": {"engine": "x\x1b[31m"}}, "rollout"),
    ({"rollout": {"engine": "\ud800"}}, "rollout"),
    ({"rollout": {"engine": "x" * 5000}}, "rollout"),
    ({"train": {str(i): i for i in range(5000)}}, "train"),
    ({"temperatures": [0.7]}, "temperatures"),
    ({"groups": {"engine": ["x", "y"]}}, "groups.engine"),
    ({"groups": {"engine": ["x", "y", 3]}}, "groups.engine[2]"),
    ({"groups": {"engine": ["x", "y", "z" * 65]}}, "groups.engine[2]"),
    ({"groups": {"a b": ["x", "y", "z"]}}, "groups"),
    ({"groups": {f"g{i}": ["x", "y", "z"] for i in range(9)}}, "groups"),
    ({"version_spans": [[0, 0, 1], [0, 0, 2]]}, "version_spans[1]"),
    ({"version_spans": [[1, 0, 1]]}, "version_spans[0]"),
    ({"version_spans": [[9, 0, 1]]}, "version_spans[0]"),
    ({"version_spans": [[0, -1, 1]]}, "version_spans[0]"),
    ({"version_spans": [[0, 0]]}, "version_spans[0]"),
    ({"runn": "typo"}, "header field 'runn'"),
]


@pytest.mark.parametrize(("change", "field"), HEADERS, ids=lambda value: str(value)[:40])
def test_a_bad_header_field_is_refused_by_name(
    spoil: Spoil, change: dict[str, Any], field: str
) -> None:
    """One header field wrong, everything else right."""
    assert _refusal(spoil(header=change)).field == field


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ('{"schema": 1, "run": "r", "run": "s"}', "once"),
        ('{"schema": 1, "run": "r", "sampling": {"temperature": NaN}}', "finite"),
        ('{"schema": 1, "run": "r", "sampling": {"temperature": -Infinity}}', "finite"),
        ('{"schema": 1, "run": "r", "sampling": {"temperature": 1e999}}', "finite"),
        ('{"schema": 1, "run": ', "valid JSON"),
        ("[]", "object"),
    ],
)
def test_a_header_text_that_readers_would_read_differently_is_refused(
    spoil: Spoil, text: str, fix: str
) -> None:
    """Keys sent twice, NaN, numbers that overflow."""
    assert fix in _refusal(spoil(header_text=text)).fix


def _int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


FLOAT5 = np.full(5, -1, np.float32)
TENSORS: list[tuple[dict[str, Any], str]] = [
    ({"offsets": None}, "offsets"),
    ({"offsets": _int64()}, "offsets.shape"),
    ({"offsets": _int64(0, 3, 2, 5)}, "offsets[2]"),
    ({"offsets": _int64(1, 2, 3, 5)}, "offsets[0]"),
    ({"offsets": _int64(0, 2, 3, 6)}, "offsets[3]"),
    ({"offsets": _int64(0, 2, 3, 4)}, "offsets[3]"),
    ({"offsets": _int64(0, INT64_MAX, -INT64_MAX - 1, 5)}, "offsets[2]"),
    ({"offsets": _int64(0, -2, 2, 5)}, "offsets[1]"),
    ({"offsets": np.array([0, 2, 2, 5], np.int32)}, "offsets.dtype"),
    ({"offsets": _int64(0, 2, 2, 5).reshape(2, 2)}, "offsets.shape"),
    ({"train_logprobs": FLOAT5[:4]}, "train_logprobs.shape"),
    ({"train_logprobs": FLOAT5.astype(np.float64)}, "train_logprobs.dtype"),
    ({"train_logprobs": FLOAT5.astype(np.float16)}, "train_logprobs.dtype"),
    ({"train_logprobs": None}, "train_logprobs"),
    ({"mask": np.array([1, 2, 0, 1, 1], np.uint8)}, "mask"),
    ({"mask": np.ones(4, np.uint8)}, "mask.shape"),
    ({"pad_left": np.array([0, -1, 0], np.int32)}, "pad_left"),
    ({"turn": np.zeros(4, np.int32)}, "turn.shape"),
    ({"rollout_version": _int64(0, 2**53, 0)}, "rollout_version"),
    ({"rollout_version": _int64(0, -1, 0)}, "rollout_version"),
    ({"ids_digest": np.zeros((3, 16), np.uint8)}, "ids_digest"),
    ({"ids_digest": np.zeros((3, 8), np.uint8), "token_ids": None}, "ids_digest.shape"),
    ({"prompt_ids": np.zeros(2, np.int32)}, "prompt_ids"),
    (
        {"prompt_ids": np.zeros(2, np.int32), "prompt_offsets": _int64(0, 1, 2, 9)},
        "prompt_offsets[3]",
    ),
    ({"logsumexp_T": np.zeros((1, 5), np.float32)}, "temperatures"),
    ({"extra": FLOAT5}, "tensor 'extra'"),
]


@pytest.mark.parametrize(("change", "field"), TENSORS, ids=lambda value: str(value)[:40])
def test_a_bad_tensor_is_refused_by_name(spoil: Spoil, change: dict[str, Any], field: str) -> None:
    """One tensor wrong, everything else right."""
    assert _refusal(spoil(tensors=change)).field == field


def _set(name: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(entries: dict[str, Any]) -> None:
        entries[name][key] = value

    return change


LAYOUTS: list[tuple[str, str, Any]] = [
    ("mask", "data_offsets", [91, 96]),
    ("mask", "data_offsets", [93, 98]),
    ("mask", "data_offsets", [-5, 0]),
    ("mask", "data_offsets", [97, 92]),
    ("mask", "data_offsets", [2**63 - 5, 2**63]),
    ("mask", "data_offsets", [92, 97, 1]),
    ("mask", "data_offsets", [92.0, 97.0]),
    ("mask", "data_offsets", "92,97"),
    ("mask", "shape", [-5]),
    ("mask", "shape", [5, 1]),
    ("mask", "shape", [2**62]),
    ("mask", "shape", [True]),
    ("mask", "shape", None),
    ("mask", "dtype", "BOOL"),
    ("mask", "dtype", ["U8"]),
    ("mask", "stride", [1]),
]


@pytest.mark.parametrize(("name", "key", "value"), LAYOUTS)
def test_a_bad_layout_entry_is_refused_by_name(
    spoil: Spoil, name: str, key: str, value: Any
) -> None:
    """Overlap, gap, negative, reversed, overflowing or mistyped numbers in the layout."""
    assert _refusal(spoil(layout=_set(name, key, value))).field.split(".")[0] == name


def test_two_tensors_on_the_same_bytes_are_refused(spoil: Spoil) -> None:
    """An overlap would let one tensor be read as two."""

    def overlap(entries: dict[str, Any]) -> None:
        entries["train_logprobs"]["data_offsets"] = entries["rollout_logprobs"]["data_offsets"]

    assert "overlap" in _refusal(spoil(layout=overlap)).fix


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"body_bytes": 100}, "body"),
        ({"header_bytes": 100}, "header length"),
        ({"samples": 2}, "sample_ids"),
        ({"tokens": 4}, "tokens"),
    ],
)
def test_a_batch_over_a_limit_is_refused(spoil: Spoil, limits: dict[str, int], field: str) -> None:
    """Each bound holds, and is named."""
    assert field in _refusal(spoil(), **limits).field


def test_metadata_of_other_tools_is_refused_by_name(spoil: Spoil) -> None:
    """Only `format`, which writers of safetensors add by themselves, is passed over."""

    def add(key: str) -> Callable[[dict[str, Any]], None]:
        return lambda entries: entries["__metadata__"].update({key: "pt"})

    assert wire.decode(spoil(layout=add("format"))).tokens == 5
    assert _refusal(spoil(layout=add("pickle"))).field == "__metadata__.pickle"


def test_one_sided_tensors_stay_on_their_side(spoil: Spoil) -> None:
    """The engine cannot know the trainer's entropy: such a batch was put together wrongly."""
    body = spoil(header={"side": "rollout"}, tensors={"train_logprobs": None, "entropy": FLOAT5})
    assert _refusal(body).field == "entropy"


def test_an_error_shows_the_value_in_short(spoil: Spoil) -> None:
    """A message of 10 kB would be the next problem."""
    error = _refusal(spoil(header={"run": "x" * 10_000}))
    assert len(str(error)) < 300


def test_no_body_at_all_is_refused() -> None:
    """Nothing, and less than a length."""
    for length in range(8):
        assert _refusal(b"\0" * length).field == "body"


def test_a_side_left_out_follows_from_the_logprobs(spoil: Spoil) -> None:
    """Trace files say no side: both log-probs present is a pair, one is its side."""
    assert wire.decode(spoil(header={"side": None})).side == "paired"
    one = spoil(header={"side": None, "step": None}, tensors={"train_logprobs": None})
    assert wire.decode(one).side == "rollout"
    none = {"train_logprobs": None, "rollout_logprobs": None}
    assert "at least one" in _refusal(spoil(header={"side": None}, tensors=none)).fix


def test_what_engines_really_send_is_taken(spoil: Spoil) -> None:
    """Stop strings with newlines, 64-bit seeds, zero-width and Chinese characters, nulls."""
    sampling = {"stop": ["\r\n\n", "用户：\u200b"], "seed": 2**64 - 1, "logit_bias": {"5": -100}}
    header = {
        "sampling": {**sampling, "top_k": -1, "top_p": None, "temperature": 0},
        "rollout": {"engine": "vllm", "rope_scaling": {"factor": [1.0] * 64}},
        "groups": {"engine.id": ["a b", "", "中"], "replica-0": ["x", "x", "x"]},
    }
    batch = wire.decode(spoil(header=header))
    assert batch.sampling == header["sampling"]
    assert batch.groups["engine.id"] == ("a b", "", "中")


def test_a_header_is_json_inside_a_json_string(spoil: Spoil) -> None:
    """A header sent as an object instead of a string is refused with the fix."""

    def as_object(entries: dict[str, Any]) -> None:
        entries["__metadata__"]["twinscope"] = json.loads(entries["__metadata__"]["twinscope"])

    assert "string" in _refusal(spoil(layout=as_object)).fix
