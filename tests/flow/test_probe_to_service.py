"""Probe and service as in the field: two processes, real HTTP, one of them killed in the middle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from service_process import free_port, running_service
from waiting import eventually

from twinscope import Probe

SAMPLES, WIDTH, STEPS = 6, 40, 6


def _step(step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Log-probs of both sides, ids and a right-padded mask with a hole, all [S,T]."""
    rng = np.random.default_rng(step)
    rollout = -rng.exponential(size=(SAMPLES, WIDTH)).astype(np.float32)
    noise = rng.normal(scale=0.02, size=rollout.shape)
    train = np.minimum(rollout + noise, 0).astype(np.float32)
    mask = np.arange(WIDTH) < rng.integers(8, WIDTH, size=(SAMPLES, 1))
    mask[:, 3:5] = False  # a tool's answer
    return rollout, train, rng.integers(0, 30_000, rollout.shape), mask


def _k3_mean(step: int) -> float:
    """By the definition, in float64."""
    rollout, train, _, mask = _step(step)
    delta = (train.astype(np.float64) - rollout.astype(np.float64))[mask]
    return float((np.expm1(delta) - delta).mean())


def _capture(probe: Probe, step: int) -> None:
    """The engine's side ragged, in lists; the trainer's side padded, ids as digests."""
    rollout, train, ids, mask = _step(step)
    lengths = [int(np.flatnonzero(row)[-1]) + 1 for row in mask]
    cut = [slice(0, n) for n in lengths]
    assert probe.rollout(
        logprobs=[row[c].tolist() for row, c in zip(rollout, cut, strict=True)],
        token_ids=[row[c] for row, c in zip(ids, cut, strict=True)],
        mask=[row[c] for row, c in zip(mask, cut, strict=True)],
        version=step,
    )
    assert probe.train(
        step=step,
        logprobs=torch.tensor(train),
        token_ids=torch.tensor(ids),
        ids="digest",
        mask=torch.tensor(mask),
        version=step,
        expect={"rollout": SAMPLES, "train": SAMPLES},
    )
    assert probe.scalar(step=step, reward=0.1 * step)


@pytest.mark.parametrize("spool", [False, True], ids=["memory", "spool"])
def test_a_service_killed_in_the_middle_has_every_step_in_the_end(
    tmp_path: Path, spool: bool
) -> None:
    """Joined by content across the kill, nothing twice, numbers as float64 says."""
    port = free_port()
    probe = Probe(
        f"http://127.0.0.1:{port}", "flow", spool_dir=tmp_path / "spool" if spool else None
    )
    with running_service(tmp_path, port=port) as service:
        for step in range(STEPS // 2):
            _capture(probe, step)
        assert probe.flush(120)
        service.process.kill()
        service.process.wait()
    for step in range(STEPS // 2, STEPS):
        _capture(probe, step)
    assert eventually(lambda: probe.stats().retries > 0)
    with running_service(tmp_path, port=port) as service:
        assert eventually(lambda: probe.flush(5), timeout_s=120)
        for step in range(STEPS):
            assert probe.close_step(step)
        assert probe.flush(120)
        found = [service.get(f"/v1/runs/flow/steps/{step}") for step in range(STEPS)]
        stats = probe.stats()
        probe.close()

    for step, view in enumerate(found):
        assert view["samples"] == SAMPLES
        assert view["coverage"]["counted"] == int(_step(step)[3].sum())
        assert view["metrics"]["k3_mean"] == pytest.approx(_k3_mean(step), rel=1e-6)
        assert view["scalars"] == pytest.approx({"reward": 0.1 * step})
    assert stats.balanced
    assert not stats.dropped
    assert stats.shipped.batches == 2 * STEPS
