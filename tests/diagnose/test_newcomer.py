"""What a first integration gets wrong: the sign, the fills, the padding, the keys, the order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import Cause
from twinscope_service.diagnose.context import Context, JoinCounts
from twinscope_service.diagnose.rank import diagnose
from twinscope_service.lab.cases import Case
from twinscope_service.lab.faults import FAULTS, apply
from twinscope_service.measure.merge import empty

Diagnose = Callable[[Batch], tuple[Cause, ...]]
F32 = NDArray[np.float32]


def sides(batch: Batch) -> tuple[F32, F32]:
    """q and p, float32 [N], nats."""
    return batch.tensors["rollout_logprobs"], batch.tensors["train_logprobs"]


def with_sides(batch: Batch, q: F32, p: F32) -> Batch:
    """The batch with other log-probs."""
    return replace(batch, tensors={**batch.tensors, "rollout_logprobs": q, "train_logprobs": p})


def k3_of(q: F32, p: F32) -> float:
    """Mean of e^Δ − 1 − Δ, float64."""
    d = p.astype(np.float64) - q
    return float((np.expm1(d) - d).mean())


@pytest.mark.parametrize("sent", [np.negative, np.exp], ids=["loss", "probability"])
@pytest.mark.parametrize("both", [True, False], ids=["both", "train"])
def test_a_loss_or_a_probability_is_told_from_a_marker(
    sent: Callable[[F32], F32], both: bool, healthy: Case, diagnosed: Diagnose
) -> None:
    """All tokens of a side are above 0: the sign or the exponent is wrong, nothing is missing."""
    q, p = sides(healthy.batch)
    first = diagnosed(with_sides(healthy.batch, sent(q) if both else q, sent(p)))[0]

    assert first.cause == "missing_value_sentinel"
    assert "wrong sign" in first.evidence
    assert "probabilities" in first.evidence
    assert "nats, <= 0" in first.fix
    assert first.k3_after is None


def test_a_few_positive_tokens_are_markers_still(healthy: Case, diagnosed: Diagnose) -> None:
    """One token in twenty is +1: the others are log-probs, and their k3 is what remains."""
    q, p = sides(healthy.batch)
    marked = q.copy()
    marked[::20] = 1.0
    kept = np.arange(len(q)) % 20 != 0
    first = diagnosed(with_sides(healthy.batch, marked, p))[0]

    assert first.cause == "missing_value_sentinel"
    assert "markers" in first.evidence
    assert first.k3_after == pytest.approx(k3_of(q[kept], p[kept]), rel=1e-5)


def test_zeros_on_both_sides_are_fills_and_no_agreement(healthy: Case, diagnosed: Diagnose) -> None:
    """q = p = 0 on every token: nothing was compared, so nothing agrees."""
    zero = np.zeros_like(sides(healthy.batch)[0])
    first = diagnosed(with_sides(healthy.batch, zero, zero))[0]

    assert (first.cause, first.estimate["side"]) == ("missing_value_sentinel", "both")
    assert first.confidence > 0.9


def test_sides_that_both_came_and_never_met_have_other_keys() -> None:
    """30 rollouts wait while the step's 30 train samples wait: the probes are attached."""
    join = JoinCounts(train_samples=30, waiting_rollout=30, waiting_train=30)
    (first, *_) = diagnose(empty(), context=Context(join=join))

    assert (first.cause, first.estimate["side"]) == ("side_missing", "rollout")
    assert "30 rollout samples of this run wait and none matches" in first.evidence
    assert "prompt_ids must come from both sides or from neither" in first.fix


def test_a_side_that_nobody_sent_is_still_a_probe_that_is_not_attached() -> None:
    """No rollout sample waits anywhere."""
    join = JoinCounts(train_samples=30, waiting_train=30)
    (first, *_) = diagnose(empty(), context=Context(join=join))

    assert "has no rollout side" in first.evidence
    assert "both probes are attached" in first.fix


@pytest.mark.parametrize("fault", ["sample_permutation", "sample_permutation_tenth"])
def test_what_remains_after_a_permutation_is_the_repaired_matching(
    fault: str, healthy: Case, diagnosed: Diagnose
) -> None:
    """Not the k3 of the few samples that look right by chance; the recording's own is known."""
    truth = k3_of(*sides(healthy.batch))
    first = diagnosed(apply(FAULTS[fault], healthy.batch, seed=3))[0]

    assert first.cause == "sample_permutation"
    assert first.k3_after is not None
    assert truth / 4 < first.k3_after < truth * 4


def test_without_a_partner_no_remainder_is_claimed(healthy: Case, diagnosed: Diagnose) -> None:
    """Samples paired with some that are not in the step: what the right ones hold is unknown."""
    batch = apply(FAULTS["sample_permutation"], healthy.batch, seed=3)
    q, p = (x.copy() for x in sides(batch))
    for first, last in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        p[first:last] = p[first:last][::-1]  # heads that fit nobody's q
    found = diagnosed(with_sides(batch, q, p))

    assert all(c.k3_after is None for c in found if c.cause == "sample_permutation")
