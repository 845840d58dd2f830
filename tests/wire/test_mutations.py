"""Thousands of damaged bodies: each is a batch or a WireError, never another exception."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np

from twinscope import wire

NASTY = (0, 1, 0x7F, 0x80, 0xFF, ord('"'), ord("{"), ord("["), ord("9"), ord("-"))
NASTY_TOKENS = (
    b"-1",
    b"NaN",
    b"1e999",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"9" * 30,
    b"true",
    b"\\ud800",
)


def _outcome(decode: Callable[[bytes], wire.Batch], body: bytes) -> str:
    """Decode and walk the batch: a batch that passes must be safe to use."""
    try:
        batch = decode(body)
    except wire.WireError as error:
        return "refused" if str(error) else "silent"
    assert int(np.diff(batch.offsets).sum()) == batch.tokens
    for array in batch.tensors.values():
        array.sum()
    str(batch.run).encode()
    return "read"


def _damage(body: bytes, rng: random.Random) -> bytes:
    """One to four random edits, most of them in the header, where the decisions are."""
    spoilt = bytearray(body)
    head = 8 + int.from_bytes(body[:8], "little")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(head) if rng.random() < 0.8 else rng.randrange(len(spoilt))
        match rng.randrange(5):
            case 0:
                spoilt[at % len(spoilt)] = rng.choice(NASTY)
            case 1:
                spoilt[at % len(spoilt)] ^= 1 << rng.randrange(8)
            case 2:
                del spoilt[at : at + rng.randint(1, 8)]
            case 3:
                spoilt[at:at] = rng.choice(NASTY_TOKENS)
            case _:
                spoilt[at : at + 3] = rng.choice(NASTY_TOKENS)
    if rng.random() < 0.7:  # keep the length honest, so that the damage reaches deeper checks
        spoilt[:8] = max(0, len(spoilt) - len(body) + head - 8).to_bytes(8, "little")
    return bytes(spoilt)


def test_damaged_bodies_are_read_or_refused(golden: Callable[[str], bytes]) -> None:
    """Seeded damage to every golden body."""
    rng = random.Random(1)
    outcomes = [
        _outcome(wire.decode, _damage(golden(name), rng))
        for name in ("paired", "rollout", "empty")
        for _ in range(2000)
    ]
    assert {"read", "refused"} == set(outcomes)


def test_damaged_header_values_are_read_or_refused(golden: Callable[[str], bytes]) -> None:
    """Valid JSON with any value of it replaced by another kind of value."""
    body = golden("paired")
    length = int.from_bytes(body[:8], "little")
    layout = json.loads(body[8 : 8 + length])
    header = json.loads(layout["__metadata__"]["twinscope"])
    values = (None, -1, 2**62, 1e300, "", "x\0", [], [[]], {}, {"a": [1]}, True, ["a"], [1, 2, 3])
    outcomes = set()
    for name in header:
        for value in values:
            layout["__metadata__"]["twinscope"] = json.dumps({**header, name: value})
            head = json.dumps(layout).encode()
            spoilt = len(head).to_bytes(8, "little") + head + body[8 + length :]
            outcomes.add(_outcome(wire.decode, spoilt))
    assert outcomes == {"read", "refused"}


def test_random_bytes_are_refused() -> None:
    """Noise with a plausible length in front."""
    rng = random.Random(2)
    for _ in range(2000):
        noise = rng.randbytes(rng.randrange(200))
        assert _outcome(wire.decode, len(noise).to_bytes(8, "little") + noise) == "refused"


def test_damaged_json_bodies_are_read_or_refused() -> None:
    """The same for the JSON form."""
    text = json.dumps(
        {
            "schema": 1, "run": "r", "step": 0, "sample_ids": ["a", "b"],
            "token_ids": [[5, 6], [8]], "rollout_logprobs": [[-0.1, -1.2], [-2]],
            "train_logprobs": [-0.1, -1.3, -2.1], "mask": [[1, 0], [1]],
            "logsumexp_T": [[1, 2, 3]], "temperatures": [0.7], "prompt_ids": [[], [1]],
        }
    ).encode()  # fmt: skip
    rng = random.Random(3)
    framed = len(text).to_bytes(8, "little") + text
    outcomes = {_outcome(wire.decode_json, _damage(framed, rng)[8:]) for _ in range(4000)}
    assert outcomes == {"read", "refused"}
