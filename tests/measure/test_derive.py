"""Metrics from a Summary: quantiles, sequences, frameworks' names, unknown values."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_blocks import OPTIONS, make_block, random_block

from twinscope_service.bench import peers
from twinscope_service.measure.aliases import ALIASES
from twinscope_service.measure.derive import (
    clustered_error,
    coverage_block,
    derive,
    kl_reward_ratio,
    policy_ref_by_length,
)
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.merge import empty
from twinscope_service.measure.records import PairBlock, Summary

LEVELS = {"abs_p50": 0.5, "abs_p90": 0.9, "abs_p99": 0.99, "abs_p999": 0.999}


def measured(block: PairBlock) -> Summary:
    """By the reference engine."""
    return build_engine("reference").measure(block, OPTIONS)


@given(scale=st.floats(1e-6, 5), seed=st.integers(0, 999))
def test_quantiles_are_within_one_percent(scale: float, seed: int) -> None:
    """Against the sorted values, at every level that is published."""
    rng = np.random.default_rng(seed)
    q = (-10 - rng.exponential(1, 500)).astype(np.float32)
    p = (q + scale * rng.standard_t(2, 500)).clip(-999, 0).astype(np.float32)
    size = np.sort(np.abs(p.astype(np.float64) - q))
    metrics = derive(measured(make_block([q], [p])), OPTIONS)
    for name, level in LEVELS.items():
        exact = size[math.ceil(level * 500) - 1]
        assert metrics[name] == pytest.approx(exact, rel=0.01), name


def test_zeros_belong_to_the_quantiles() -> None:
    """Three of four tokens agree exactly: the median is 0, p99 is the fourth."""
    metrics = derive(measured(make_block([[-1.0] * 4], [[-1.0] * 3 + [-1.5]])), OPTIONS)
    assert metrics["abs_p50"] == 0.0
    assert metrics["abs_p99"] == pytest.approx(0.5, rel=0.01)


def test_nothing_measured_is_unknown_everywhere() -> None:
    """None, never 0 or NaN."""
    assert set(derive(empty(), OPTIONS).values()) == {None}
    assert set(coverage_block(empty()).values()) == {0}


def test_a_side_that_does_not_vary_has_no_correlation() -> None:
    """Unknown, not 0 and not a division by rounding noise."""
    metrics = derive(measured(make_block([[-1.1] * 9], [[-1.1] * 9])), OPTIONS)
    assert metrics["pearson_prob"] is None
    assert metrics["slope_p_on_q"] is None
    assert metrics["k3_mean"] == 0.0


def test_samples_far_apart_are_unknown_rather_than_infinite() -> None:
    """A perplexity of e^999 is beyond float64."""
    metrics = derive(measured(make_block([[-999.0]], [[-999.0]])), OPTIONS)
    assert metrics["train_ppl"] is None
    assert metrics["train_log_ppl"] == 999.0


def test_frameworks_would_print_the_same_numbers() -> None:
    """Every verl name against the same formulas in eager float64 torch, padded."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    block = random_block(11, [40, 7, 25, 60])
    theirs = peers.both(*(x.double() for x in peers.pad(block)))
    ours = derive(measured(block), OPTIONS)
    names = [a for a in ALIASES if a.framework.startswith("verl")]
    assert len(names) == 17
    for alias in names:
        short = alias.name.removeprefix("rollout_corr/")
        assert ours[alias.name] == pytest.approx(theirs[short], rel=1e-7), alias.name


def test_every_alias_names_a_metric_and_its_source() -> None:
    """One table; a name is used once."""
    metrics = derive(empty(), OPTIONS)
    assert len({alias.name for alias in ALIASES}) == len(ALIASES)
    for alias in ALIASES:
        assert alias.metric in metrics
        assert alias.source
        assert any(c.isdigit() for c in alias.framework)


def test_nemo_and_slime_average_as_they_do() -> None:
    """NeMo-RL: mean e^|Δ|; slime: mean over samples of the sample's mean |Δ|."""
    metrics = derive(measured(make_block([[-1.0], [-1.0] * 3], [[-1.5], [-1.0] * 3])), OPTIONS)
    assert metrics["token_mult_prob_error"] == pytest.approx((math.exp(0.5) + 3) / 4)
    assert metrics["train_rollout_logprob_abs_diff"] == 0.25
    assert metrics["abs_mean"] == 0.125


def test_standard_errors_follow_the_samples() -> None:
    """Tokens that repeat inside a sample add nothing: the error is that of the sample means."""
    rng = np.random.default_rng(0)
    means = rng.normal(0, 1, 200)
    n = np.full(200, 50.0)
    error = clustered_error(means * n, n)
    assert error == pytest.approx(means.std(ddof=1) / math.sqrt(200), rel=1e-12)
    assert clustered_error(means[:1], n[:1]) is None


def test_policy_against_ref_by_length() -> None:
    """Samples of 2 and of 8 tokens lie in different buckets, and add up to the whole."""
    p = [[-1.0] * 2, [-1.0] * 8]
    ref = np.array([-1.5] * 2 + [-1.25] * 8, np.float32)
    found = policy_ref_by_length(measured(make_block(p, p, ref_logprobs=ref)).rows)
    assert {bucket: tokens for bucket, (tokens, _) in found.items()} == {2: 2, 4: 8}
    assert found[2][1] == pytest.approx(math.exp(-0.5) - 0.5)


def test_kl_per_reward_needs_all_three() -> None:
    """And a reward that differs from its baseline."""
    assert kl_reward_ratio(0.2, 1.5, baseline_reward=1.0) == pytest.approx(0.4)
    assert kl_reward_ratio(0.2, 1.0, baseline_reward=1.0) is None
    assert kl_reward_ratio(None, 1.0, baseline_reward=0.0) is None
    assert kl_reward_ratio(0.2, None, baseline_reward=0.0) is None


def test_every_metric_is_documented() -> None:
    """docs/statistics.md names each in backticks; aliases have their own table in the code."""
    page = (Path(__file__).resolve().parents[2] / "docs/statistics.md").read_text()
    own = set(derive(empty(), OPTIONS)) - {alias.name for alias in ALIASES}
    assert {name for name in own if f"`{name}`" not in page} == set()
