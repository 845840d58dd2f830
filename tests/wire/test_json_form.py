"""The JSON form: the same names, the same checks, lists instead of bytes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from twinscope import wire

NESTED: dict[str, Any] = {
    "schema": 1,
    "run": "r",
    "step": 0,
    "sample_ids": ["a", "b", "c"],
    "token_ids": [[5, 6], [], [8]],
    "rollout_logprobs": [[-0.5, -1.25], [], [-2]],
    "train_logprobs": [[-0.5, -1.5], [], [-2.5]],
    "prompt_ids": [[1], [2, 3], []],
    "logsumexp_T": [[[9, 8], [], [7]], [6, 5, 4]],
    "temperatures": [0.7, 1],
    "reward": [1, 0.5, 0],
}


def _decode(**changes: Any) -> wire.Batch:
    merged = {**NESTED, **changes}
    return wire.decode_json(json.dumps({k: v for k, v in merged.items() if v is not None}))


def test_nested_lists_become_flat_tensors_with_offsets() -> None:
    """One list per sample; offsets and prompt_offsets follow from the lengths."""
    batch = _decode()
    assert batch.side == "paired"
    assert batch.offsets.tolist() == [0, 2, 2, 3]
    assert batch.tensors["prompt_offsets"].tolist() == [0, 1, 3, 3]
    assert batch.tensors["rollout_logprobs"].tolist() == [-0.5, -1.25, -2]
    assert batch.tensors["logsumexp_T"].tolist() == [[9, 8, 7], [6, 5, 4]]
    assert batch.tensors["reward"].dtype == np.float32


def test_flat_lists_with_offsets_say_the_same() -> None:
    """Both spellings give one and the same body."""
    flat = _decode(
        offsets=[0, 2, 2, 3],
        token_ids=[5, 6, 8],
        rollout_logprobs=[-0.5, -1.25, -2],
        train_logprobs=[-0.5, -1.5, -2.5],
    )
    assert b"".join(wire.encode_batch(flat)) == b"".join(wire.encode_batch(_decode()))


def test_a_json_batch_travels_on_as_a_binary_one() -> None:
    """The service keeps binary bodies only: re-encoding loses nothing."""
    batch = _decode(token_ids=None, ids_digest=["00" * 16, "ff" * 16, "0123456789abcdef" * 2])
    again = wire.decode(b"".join(wire.encode_batch(batch)))
    assert again.tensors["ids_digest"][2].tobytes().hex() == "0123456789abcdef" * 2
    for name, array in batch.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array)
    assert again.sample_ids == batch.sample_ids


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"offsets": [0, 1, 2, 3]}, "offsets"),
        ({"train_logprobs": [[-0.5], [-1.5], [-2.5]]}, "train_logprobs"),
        ({"train_logprobs": [-0.5, -1.5]}, "train_logprobs.shape"),
        ({"train_logprobs": [[-0.5, True], [], [-2.5]]}, "train_logprobs[1]"),
        ({"train_logprobs": [[-0.5, "x"], [], [-2.5]]}, "train_logprobs[1]"),
        ({"train_logprobs": [[-0.5, None], [], [-2.5]]}, "train_logprobs[1]"),
        ({"train_logprobs": [[-0.5, -1e39], [], [-2.5]]}, "train_logprobs[1]"),
        ({"train_logprobs": [[-0.5, -1.5], 3, [-2.5]]}, "train_logprobs[0]"),
        ({"train_logprobs": {"0": -0.5}}, "train_logprobs"),
        ({"token_ids": [[5, 2**31], [], [8]]}, "token_ids[1]"),
        ({"token_ids": [[5, 6.0], [], [8]]}, "token_ids[1]"),
        ({"logsumexp_T": [[9, 8, 7], [6, 5]]}, "logsumexp_T"),
        ({"logsumexp_T": [9, 8]}, "logsumexp_T[0]"),
        ({"token_ids": None, "ids_digest": ["00", "11", "22"]}, "ids_digest[0]"),
        ({"token_ids": None, "ids_digest": [1, 2, 3]}, "ids_digest[0]"),
        ({"logprobs": [1]}, "field 'logprobs'"),
        ({"step": -1}, "step"),
        ({"mask": [[1, -1], [], [1]]}, "mask[1]"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_json_field_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    """Numbers are checked before numpy could round, wrap or guess."""
    with pytest.raises(wire.WireError) as caught:
        _decode(**changes)
    assert caught.value.field == field


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_nan_and_infinity_are_refused(token: str) -> None:
    """JSON has no such numbers, whatever Python's reader accepts."""
    text = json.dumps({**NESTED, "train_logprobs": [[0.5, 1.5], [], [9.5]]}).replace("9.5", token)
    with pytest.raises(wire.WireError, match="finite") as caught:
        wire.decode_json(text)
    assert caught.value.field == "train_logprobs[2][0]"


def test_a_json_body_over_its_limit_is_refused() -> None:
    """JSON costs many times its size in memory: its limit is its own."""
    with pytest.raises(wire.WireError, match="x-safetensors"):
        wire.decode_json(json.dumps(NESTED), limits=wire.Limits(json_bytes=100))
