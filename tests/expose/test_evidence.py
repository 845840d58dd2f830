"""Kept samples as the API tells them: the lag at which the two sides of each fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from twinscope.wire.batch import Batch
from twinscope.wire.codec import encode_batch
from twinscope_service.expose.evidence import describe_evidence, sample_lags
from twinscope_service.lab.faults import FAULTS, apply
from twinscope_service.replay import recording


def _lags(fault: str) -> tuple[Batch, np.ndarray]:
    """The recording with a fault, and which samples' p the fault changed."""
    before = recording("healthy_bf16")
    after = apply(FAULTS[fault], before, seed=1)
    moved = before.tensors["train_logprobs"] != after.tensors["train_logprobs"]
    inside = np.add.reduceat(moved, before.offsets[:-1]) > 0
    return after, inside


def test_shifted_samples_have_their_lag_and_the_others_none() -> None:
    """p late by a token in a quarter of the samples: q[t] fits p[t + 1] in these alone."""
    batch, shifted = _lags("token_shift_quarter")

    assert 0 < shifted.sum() < batch.samples
    assert sample_lags(batch) == [1 if moved else 0 for moved in shifted]


def test_a_shift_the_other_way_has_the_other_sign() -> None:
    """p early by three tokens."""
    batch, _ = _lags("token_shift_early")

    assert set(sample_lags(batch)) == {-3}


def test_a_sample_that_differs_but_is_not_shifted_has_lag_0() -> None:
    """Strong noise on p: no other lag fits better."""
    batch, _ = _lags("corrupt_weight_layout")

    assert set(sample_lags(batch)) == {0}


def test_a_sample_of_few_tokens_has_no_lag() -> None:
    """Unknown is None: three pairs fit anywhere."""
    batch = recording("healthy_bf16")
    tensors = {"offsets": np.array([0, 3]), **{
        name: batch.tensors[name][:3] for name in ("rollout_logprobs", "train_logprobs")
    }}  # fmt: skip
    short = replace(batch, tensors=tensors, sample_ids=("short",), groups={}, part=None)

    assert sample_lags(short) == [None]


def test_the_evidence_carries_the_lags_in_the_order_of_its_samples() -> None:
    """Through the bytes that are kept."""
    batch, shifted = _lags("token_shift_quarter")
    body = b"".join(encode_batch(batch))
    samples = describe_evidence(None, body)["samples"]

    assert [sample["lag"] for sample in samples] == [int(moved) for moved in shifted]
