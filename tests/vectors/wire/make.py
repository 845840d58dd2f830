"""Makes the golden bodies of version 1 with struct and json alone, not with TwinScope's encoder.

Run once, on the day the format was fixed: `python tests/vectors/wire/make.py`. Never run it
again to make a test pass: bytes that are out in the field do not change.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

HERE = Path(__file__).parent
WIDTH = {"I64": "q", "F32": "f", "I32": "i", "U8": "B"}
ORDER = ("I64", "F32", "I32", "U8")


def body(
    header: dict[str, object], tensors: dict[str, tuple[str, list[int], list[float]]]
) -> bytes:
    """header JSON + tensors (dtype, shape, values), laid out as docs/wire-format.md says."""
    compact = {"separators": (",", ":"), "ensure_ascii": False}
    layout: dict[str, object] = {"__metadata__": {"twinscope": json.dumps(header, **compact)}}
    data = b""
    for name in sorted(tensors, key=lambda n: (ORDER.index(tensors[n][0]), n)):
        dtype, shape, values = tensors[name]
        raw = struct.pack(f"<{len(values)}{WIDTH[dtype]}", *values)
        layout[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    head = json.dumps(layout, **compact).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + data


PAIRED = body(
    {
        "schema": 1,
        "run": "golden",
        "step": 7,
        "side": "paired",
        "sample_ids": ["a", "b", "ü"],
        "sampling": {"temperature": 0.7, "top_p": 0.95},
        "rollout": {"engine": "vllm", "logprobs_mode": "processed_logprobs"},
        "train": {"trainer": "fsdp", "dtype": "bfloat16"},
        "expect": {"rollout": 3, "train": 3},
        "temperatures": [0.7, 1.0],
        "groups": {"engine": ["x", "y", "x"]},
        "version_spans": [[0, 1, 6]],
        "part": {"rank": 1, "index": 4},
    },
    {
        "offsets": ("I64", [4], [0, 2, 2, 5]),
        "token_ids": ("I32", [5], [11, 12, 13, 14, 151643]),
        "rollout_logprobs": ("F32", [5], [-0.5, -1.25, -0.125, float("nan"), -9999.0]),
        "train_logprobs": ("F32", [5], [-0.5, -1.5, 0.0, float("-inf"), -2.0]),
        "ref_logprobs": ("F32", [5], [-0.75, -1.5, -0.25, -3.0, -2.0]),
        "mask": ("U8", [5], [1, 1, 0, 1, 1]),
        "entropy": ("F32", [5], [0.5, 1.0, 0.25, 2.0, 1.5]),
        "logsumexp_T": ("F32", [2, 5], [9.5, 9.0, 8.5, 8.0, 7.5, 7.0, 6.5, 6.0, 5.5, 5.0]),
        "kept_mass": ("F32", [5], [1.0, 0.5, 0.75, 1.0, 1.0]),
        "sampled_rank": ("I32", [5], [0, 3, 1, 0, 40]),
        "prompt_ids": ("I32", [4], [1, 2, 3, 4]),
        "prompt_offsets": ("I64", [4], [0, 1, 3, 4]),
        "pad_left": ("I32", [3], [2, 1, 2]),
        "cached_tokens": ("I32", [3], [0, 0, 16]),
        "turn": ("I32", [3], [0, 1, 0]),
        "pack_slot": ("I32", [3], [0, 0, 1]),
        "rollout_version": ("I64", [3], [6, 6, 5]),
        "train_version": ("I64", [3], [7, 7, 7]),
        "advantage": ("F32", [3], [0.5, -0.5, 0.0]),
        "reward": ("F32", [3], [1.0, 0.0, 0.5]),
    },
)
ROLLOUT = body(
    {"schema": 1, "run": "golden", "side": "rollout"},
    {
        "offsets": ("I64", [3], [0, 1, 3]),
        "rollout_logprobs": ("F32", [3], [-0.5, -1.25, -0.125]),
        "ids_digest": ("U8", [2, 16], list(range(32))),
    },
)
EMPTY = body(
    {"schema": 1, "run": "golden", "step": 9007199254740991, "side": "train"},
    {"offsets": ("I64", [1], [0]), "train_logprobs": ("F32", [0], [])},
)

if __name__ == "__main__":
    (HERE / "paired_v1.safetensors").write_bytes(PAIRED)
    (HERE / "rollout_v1.safetensors").write_bytes(ROLLOUT)
    (HERE / "empty_v1.safetensors").write_bytes(EMPTY)
