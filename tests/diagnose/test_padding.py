"""Padding counted as tokens is told from tokens that the policy is certain of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import Cause
from twinscope_service.replay import recording

Diagnose = Callable[[Batch], tuple[Cause, ...]]
HEALTHY = ("healthy_bf16", "temperature_0.7_restored")
SIDES = ("rollout_logprobs", "train_logprobs")


def bare(batch: Batch) -> Batch:
    """Only the two sides and where samples end."""
    kept = {name: batch.tensors[name] for name in ("offsets", *SIDES)}
    return replace(batch, tensors=kept)


def padded(batch: Batch, width: int) -> Batch:
    """Both sides as rectangles [S, width], zeros behind the samples' ends, all of it counted."""
    offsets = np.arange(batch.samples + 1, dtype=np.int64) * width
    tensors = {"offsets": offsets}
    for name in SIDES:
        rows = np.zeros((batch.samples, width), np.float32)
        for row, first, last in zip(rows, batch.offsets[:-1], batch.offsets[1:], strict=True):
            row[: last - first] = batch.tensors[name][first:last]
        tensors[name] = rows.ravel()
    return replace(batch, tensors=tensors)


def certain(batch: Batch, where: np.ndarray) -> Batch:
    """q = p = 0 on the tokens `where` [N]."""
    sides = {name: np.where(where, np.float32(0), batch.tensors[name]) for name in SIDES}
    return replace(batch, tensors={**batch.tensors, **sides})


def k3_of(batch: Batch) -> float:
    """Mean of e^Δ − 1 − Δ, float64."""
    q, p = (batch.tensors[name].astype(np.float64) for name in SIDES)
    return float((np.expm1(p - q) - (p - q)).mean())


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("width", [150, 400])
def test_counted_padding_is_named_with_the_k3_it_hides(
    name: str, width: int, diagnosed: Diagnose
) -> None:
    """Without it the recording's own k3 is left."""
    batch = bare(recording(name))
    first = diagnosed(padded(batch, width))[0]

    assert first.cause == "mask_includes_non_response"
    assert "padding that the mask lets through" in first.evidence
    assert first.k3_after == pytest.approx(k3_of(batch), rel=0.05)


def test_the_padding_is_counted_to_the_token(diagnosed: Diagnose) -> None:
    """This recording has no natural zero, and every row ends in padding."""
    batch = bare(recording("healthy_bf16"))
    first = diagnosed(padded(batch, 200))[0]

    assert first.estimate["tokens"] == 200 * batch.samples - batch.tokens
    assert first.estimate["samples"] == batch.samples


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.95])
def test_a_certain_policy_is_not_accused(name: str, share: float, diagnosed: Diagnose) -> None:
    """As many zeros, but anywhere; in samples of their own and of one length."""
    batch = bare(recording(name))
    whole = np.flatnonzero(np.diff(batch.offsets) >= 100)
    equal = np.concatenate([np.arange(f, f + 100) for f in batch.offsets[whole]])
    cut = {n: batch.tensors[n][equal] for n in SIDES}
    cut["offsets"] = np.arange(len(whole) + 1, dtype=np.int64) * 100
    one_length = replace(batch, tensors=cut, sample_ids=None)

    for one in (batch, one_length):
        where = np.random.default_rng(5).random(one.tokens) < share
        assert diagnosed(certain(one, where))[0].cause == "numerical_noise"


@pytest.mark.parametrize("name", HEALTHY)
def test_sure_last_words_are_not_padding(name: str, diagnosed: Diagnose) -> None:
    """The last 15 to 30 tokens of samples of their own lengths are certain."""
    batch = bare(recording(name))
    where = np.zeros(batch.tokens, bool)
    ends = np.random.default_rng(2).integers(15, 31, batch.samples)
    for first, last, words in zip(batch.offsets[:-1], batch.offsets[1:], ends, strict=True):
        where[max(first, last - words) : last] = True

    assert diagnosed(certain(batch, where))[0].cause == "numerical_noise"


def test_a_temperature_is_still_named_beside_the_padding(diagnosed: Diagnose) -> None:
    """Padding dilutes a fault, it does not explain it."""
    found = diagnosed(padded(bare(recording("temperature_0.7_unrestored")), 200))

    assert [c.cause for c in found[:2]] == [
        "mask_includes_non_response",
        "temperature_not_restored",
    ]
