"""Faults are pure, seeded, and do to the numbers what they say."""

from __future__ import annotations

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.lab.draft import LabError
from twinscope_service.lab.faults import FAULTS, apply
from twinscope_service.replay import recording, take


@pytest.fixture(scope="module")
def healthy() -> Batch:
    """Twelve recorded samples."""
    return take(recording("healthy_bf16"), range(12))


def changed(name: str, batch: Batch) -> Batch:
    """The batch with fault `name`, seed 1."""
    return apply(FAULTS[name], batch, seed=1)


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_changes_its_batch_and_never_the_recording(name: str, healthy: Batch) -> None:
    """Same seed, same bytes; the input's arrays stay as they were."""
    before = {key: values.copy() for key, values in healthy.tensors.items()}
    one, two = changed(name, healthy), changed(name, healthy)

    for key, values in before.items():
        assert np.array_equal(healthy.tensors[key], values), key
    for key, values in one.tensors.items():
        assert np.array_equal(values, two.tensors[key], equal_nan=values.dtype.kind == "f"), key
    assert any(
        key not in one.tensors or not np.array_equal(one.tensors[key], values)
        for key, values in before.items()
    )


def test_a_shift_moves_every_sample_within_itself(healthy: Batch) -> None:
    """p[t + 1] of the changed batch is p[t] of the recording."""
    p, moved = healthy.tensors["train_logprobs"], changed("token_shift", healthy)
    for begin, end in zip(healthy.offsets[:-1], healthy.offsets[1:], strict=True):
        assert np.array_equal(moved.tensors["train_logprobs"][begin + 1 : end], p[begin : end - 1])


def test_bfloat16_rounding_keeps_the_high_half_and_rounds_to_nearest(healthy: Batch) -> None:
    """Against numpy arithmetic: the error is at most half a step of 2^-8 relative."""
    p, grid = healthy.tensors["train_logprobs"], changed("bf16_logprob_storage", healthy)
    stored = grid.tensors["train_logprobs"]

    assert not np.any(stored.view(np.uint32) & 0xFFFF)
    assert np.all(np.abs(stored - p) <= np.abs(p) * 2.0**-8)


def test_a_permutation_keeps_the_values_of_each_sample_together(healthy: Batch) -> None:
    """What a sample got is another sample's p, cut or repeated to its length."""
    given = changed("sample_permutation", healthy).tensors["train_logprobs"]
    spans = list(zip(healthy.offsets[:-1], healthy.offsets[1:], strict=True))
    heads = {float(healthy.tensors["train_logprobs"][begin]) for begin, _ in spans}

    assert {float(given[begin]) for begin, _ in spans} <= heads
    assert not np.array_equal(given, healthy.tensors["train_logprobs"])


def test_simulated_disturbances_keep_the_engine_honest() -> None:
    """E[ρ] stays 1 within its standard error: q remains the sampled density."""
    batch = recording("healthy_bf16")
    noisy = apply(FAULTS["partial_weight_sync"], batch, seed=2).tensors["train_logprobs"]
    gap = noisy.astype(np.float64) - batch.tensors["train_logprobs"]
    excess = np.expm1(gap)

    assert gap.std() > 0.1
    assert abs(excess.mean()) < 4 * excess.std() / np.sqrt(len(excess))


def test_a_batch_that_lacks_what_a_fault_needs_is_refused(healthy: Batch) -> None:
    """The error says what is missing."""
    bare = Batch("r", "rollout", 0, {k: healthy.tensors[k] for k in ("offsets", "token_ids")})
    without = {k: v for k, v in healthy.tensors.items() if k not in ("pad_left", "token_ids")}

    with pytest.raises(LabError, match="rollout_logprobs, train_logprobs"):
        changed("bypass_mode", bare)
    with pytest.raises(LabError, match="pad_left"):
        changed("token_shift_padding", Batch("r", "paired", 0, without))
    with pytest.raises(LabError, match="token_ids"):
        changed("penalty_not_mirrored", Batch("r", "paired", 0, without))
