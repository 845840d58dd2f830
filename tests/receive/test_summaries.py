"""Summaries that ranks reduced themselves: they add up to what the raw pairs would have given."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from twinscope_service.measure.codec import encode_summary
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.records import MeasureOptions, PairBlock

BINARY = "application/x-safetensors"


def _block(seed: int, *, samples: int = 40, length: int = 50) -> PairBlock:
    """Pairs with σ(Δ) = 0.05; sample keys are unique to the seed."""
    random = np.random.default_rng(seed)
    q = -random.exponential(1.0, samples * length).astype(np.float32) - np.float32(0.3)
    p = (q + random.normal(0, 0.05, q.size)).astype(np.float32)
    keys = [
        hashlib.blake2b(f"{seed}-{s}".encode(), digest_size=16).digest() for s in range(samples)
    ]
    return PairBlock(
        offsets=np.arange(samples + 1) * length,
        rollout_logprobs=q,
        train_logprobs=p,
        sample_keys=np.frombuffer(b"".join(keys), np.uint8).reshape(samples, 16),
    )


def _body(block: PairBlock) -> bytes:
    return bytes(encode_summary(build_engine("reference").measure(block, MeasureOptions())))


def _send(service: Any, body: bytes, *, step: Any = 0, **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    parameters = {"run": "ranks", "step": step}
    kinds = {"content-type": BINARY, **named}
    return service.post("/v1/summaries", params=parameters, content=body, headers=kinds)


def test_summaries_of_two_ranks_add_up(start: Callable[..., Any]) -> None:
    """k1 and k3 are the float64 means over both ranks' pairs; a re-send adds nothing."""
    service, blocks = start(), [_block(1), _block(2)]
    for block in (*blocks, blocks[0]):
        assert _send(service, _body(block)).status_code == 202
    step = service.post("/v1/runs/ranks/steps/0/close").json()
    delta = np.concatenate(
        [b.train_logprobs.astype(np.float64) - b.rollout_logprobs for b in blocks]
    )
    assert step["tokens"] == delta.size
    assert step["samples"] == 80
    assert step["metrics"]["k1_mean"] == pytest.approx(-delta.mean(), rel=1e-9)
    k3 = (np.expm1(delta) - delta).mean()
    assert step["metrics"]["k3_mean"] == pytest.approx(k3, rel=1e-6)
    assert service.metric('rollout_train_kl{run="ranks"}') == step["metrics"]["k3_mean"]


def test_bad_summaries_are_refused(start: Callable[..., Any]) -> None:
    """Cut, no summary at all, a bad step, another kind of body: 4xx, and no run appears."""
    service, body = start(), _body(_block(3, samples=2, length=3))
    for spoilt in (b"", body[:20], body[:-1], body + b"\0", b"\xff" * 100):
        answer = _send(service, spoilt)
        assert answer.status_code == 422, answer.text
        assert answer.json()["fix"]
    assert _send(service, body, step=-1).json()["field"] == "step"
    assert _send(service, body, content_type="application/json").status_code == 415
    assert service.post("/v1/summaries", content=body).status_code == 422  # no run, no step
    assert service.get("/v1/runs").json()["runs"] == []
