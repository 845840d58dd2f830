"""Every engine gives the same Summary: worked by hand, on drawn blocks, on recorded runs."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from pair_blocks import (
    OPTIONS,
    assert_same,
    blocks,
    count,
    key_of,
    make_block,
    random_block,
    sizes_of,
    take,
)

from twinscope.errors import ConfigError
from twinscope.wire.codec import read_trace
from twinscope_service.join.gather import paired_blocks
from twinscope_service.measure.derive import derive
from twinscope_service.measure.engine import MeasureEngine, build_engine, warm_up
from twinscope_service.measure.merge import merge_all
from twinscope_service.measure.records import (
    ATTRIBUTE,
    COLUMN,
    COVERAGE,
    EXTREME,
    LAG_COLUMNS,
    LAGS,
    PROFILE_COLUMNS,
    SIDE_COLUMN,
    MeasureOptions,
    PairBlock,
)

# How far engines may differ from the reference, relative to Σ|x|: torch computes in float64 with
# library functions, the compiled engine with polynomials of its own (cpu_math.py, errors < 1e-11).
REL = {"reference": 0.0, "torch": 1e-12, "cuda": 1e-12, "cpu": 1e-10}
RARE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def test_three_tokens_worked_by_hand(engine: MeasureEngine) -> None:
    """q = −1, −2, −3 against p = −1.5, −2, −2.5: Δ = −½, 0, ½."""
    block = make_block([[-1.0, -2.0, -3.0]], [[-1.5, -2.0, -2.5]])
    metrics = derive(engine.measure(block, OPTIONS), OPTIONS)
    expected = {
        "k1_mean": 0.0,
        "k2_mean": 0.25 / 3,  # (⅛ + 0 + ⅛) / 3
        "k3_mean": (math.exp(-0.5) + math.exp(0.5) - 2) / 3,
        "abs_mean": 1 / 3,
        "abs_max": 0.5,
        "delta_max": 0.5,
        "delta_min": -0.5,
        "rho_mean": (math.exp(-0.5) + 1 + math.exp(0.5)) / 3,
        "chi2": (math.exp(-1) + 1 + math.exp(1)) / 3 - 1,
        "prob_diff_mean": (
            math.exp(-1) - math.exp(-1.5) + math.exp(-2.5) - math.exp(-3)
        ) / 3,
        "clip_fraction": 2 / 3,
        "outside_08_12": 2 / 3,
        "delta_zero_fraction": 1 / 3,
        "train_log_ppl": 2.0,
        "log_ppl_diff": 0.0,
        "seq_rho_mean": 1.0,
    }  # fmt: skip
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-10, abs=1e-15), name


def test_every_impossible_value_is_counted_under_its_name(engine: MeasureEngine) -> None:
    """NaN, ±inf, sentinels and +0.3 are excluded and change no mean; exact zeros count."""
    good_q, good_p = [-1.0, -0.5, -2.0], [-1.1, -0.4, -2.0]
    bad = [np.nan, np.inf, -np.inf, -9999.0, -3.4e38, 0.3]
    block = make_block([good_q + bad, [0.0, *[-1.0] * 6]], [good_p + [-1.0] * 6, [-0.0, *bad]])
    clean = make_block([good_q, [0.0]], [good_p, [-0.0]])
    found, expected = engine.measure(block, OPTIONS), engine.measure(clean, OPTIONS)
    assert [count(found, name) for name in COVERAGE] == [16, 4, 0, 6, 4, 2, 1, 1, 2, 0]
    columns = [COLUMN[name] for name in ("q", "d", "abs", "k3", "rho_m1", "prob_abs", "eqp", "n")]
    np.testing.assert_array_equal(found.sums[columns], expected.sums[columns])
    np.testing.assert_array_equal(found.extremes, expected.extremes)


def test_a_masked_token_is_masked_whatever_its_value(engine: MeasureEngine) -> None:
    """The mask is looked at first."""
    mask = np.array([0, 1, 0, 1], np.uint8)
    block = make_block([[np.nan, -1, 0.3, -1]], [[-1, -1, -1, -9999.0]], mask=mask)
    found = engine.measure(block, OPTIONS)
    assert [count(found, name) for name in COVERAGE[:6]] == [4, 1, 2, 0, 1, 0]


def test_a_token_98_nats_apart_is_clamped_and_nothing_is_infinite(engine: MeasureEngine) -> None:
    """Means are clamped at 20 nats, the maximum is not."""
    found = engine.measure(make_block([[-98.0, -1.0]], [[0.0, -1.0]]), OPTIONS)
    metrics = derive(found, OPTIONS)
    assert all(value is None or math.isfinite(value) for value in metrics.values())
    assert count(found, "clamped") == 1
    assert metrics["abs_max"] == 98.0
    assert metrics["abs_mean"] == 49.0
    assert metrics["k3_mean"] == pytest.approx((math.expm1(20.0) - 20.0) / 2, rel=1e-10)


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 3, 0]])
def test_no_counted_token_means_unknown(engine: MeasureEngine, lengths: list[int]) -> None:
    """Nothing to measure: every mean is None, not 0."""
    block = random_block(0, lengths)
    block = dataclasses.replace(block, mask=np.zeros(sum(lengths), np.uint8))
    found = engine.measure(block, OPTIONS)
    metrics = derive(found, OPTIONS)
    assert found.samples == len(lengths)
    assert count(found, "masked_out") == sum(lengths)
    assert metrics["k3_mean"] is None
    assert {v for k, v in metrics.items() if k != "length_mean"} == {None}


@RARE
@given(block=blocks())
def test_engines_agree_on_drawn_blocks(engine: MeasureEngine, block: PairBlock) -> None:
    """Ragged, empty, masked, with specials, with and without side information."""
    expected = build_engine("reference").measure(block, OPTIONS)
    found = engine.measure(block, OPTIONS)
    assert_same(found, expected, rel=REL[engine.name], sizes=sizes_of(block))
    classes = ("counted", "masked_out", "nonfinite", "sentinel", "positive")
    assert count(found, "received") == sum(count(found, name) for name in classes)


def test_engines_agree_on_long_samples(engine: MeasureEngine) -> None:
    """Longer than a block of the compiled engine, so that positions and neighbours span blocks."""
    block = random_block(3, [5000, 1, 1024, 1025, 300], sides=True)
    options = MeasureOptions()
    expected = build_engine("reference").measure(block, options)
    sizes = sizes_of(block, options)
    assert_same(engine.measure(block, options), expected, rel=REL[engine.name], sizes=sizes)


def test_order_of_samples_changes_nothing(engine: MeasureEngine) -> None:
    """Bit for bit: rows are sorted by key before anything is added up."""
    block = random_block(1, [5, 0, 17, 40, 3, 3, 29], sides=True)
    whole = engine.measure(block, OPTIONS)
    shuffled = engine.measure(take(block, [6, 2, 0, 5, 1, 4, 3]), OPTIONS)
    exact = engine.name in ("reference", "cpu")  # torch sums in parallel
    assert_same(shuffled, whole, rel=0.0 if exact else 1e-12, sizes=sizes_of(block))


def test_equal_samples_under_one_key_stay_two_rows(engine: MeasureEngine) -> None:
    """A group may sample the same response twice; the order of the two rows is canonical."""
    keys = np.array([key_of("a"), key_of("b"), key_of("a")])
    block = make_block([[-1.0, -2.0], [-1.0], [-1.0, -2.0]], [[-1.5, -2.0], [-1.0], [-1.0, -2.5]])
    block = dataclasses.replace(block, sample_keys=keys)
    one, other = (engine.measure(take(block, order), OPTIONS) for order in ([0, 1, 2], [2, 1, 0]))
    assert len(one.rows.keys) == 3
    np.testing.assert_array_equal(one.rows.sums, other.rows.sums)
    assert one.worst == other.worst


def test_padding_with_mask_0_is_the_same_as_no_padding(engine: MeasureEngine) -> None:
    """Left or right padded rows give the ragged result; only what was received differs."""
    lengths = [5, 9, 1, 7]
    ragged = dataclasses.replace(random_block(2, lengths), mask=None)
    rng = np.random.default_rng(0)
    q, p, mask = (np.zeros((4, 12), np.float32) for _ in range(3))
    for s, n in enumerate(lengths):
        at = int(rng.integers(0, 12 - n + 1))
        here = slice(ragged.offsets[s], ragged.offsets[s + 1])
        q[s, at : at + n], p[s, at : at + n] = (
            ragged.rollout_logprobs[here],
            ragged.train_logprobs[here],
        )
        mask[s, at : at + n] = 1
    padded = dataclasses.replace(
        ragged,
        offsets=np.arange(5, dtype=np.int64) * 12,
        rollout_logprobs=q.reshape(-1),
        train_logprobs=p.reshape(-1),
        mask=mask.astype(np.uint8).reshape(-1),
    )
    found, expected = engine.measure(padded, OPTIONS), engine.measure(ragged, OPTIONS)
    assert count(found, "masked_out") == 48 - sum(lengths)
    found = dataclasses.replace(found, coverage=expected.coverage, worst=expected.worst)
    assert_same(found, expected, rel=1e-15, sizes=sizes_of(ragged))


def test_values_on_a_bfloat16_grid_are_seen(engine: MeasureEngine) -> None:
    """q is rounded to bfloat16, p to float16: by construction every one lies on its grid."""
    rng = np.random.default_rng(5)
    x = -rng.uniform(0.3, 9.0, 400).astype(np.float32)
    bf16 = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    fp16 = x.astype(np.float16).astype(np.float32)
    sums = engine.measure(make_block([bf16], [fp16]), OPTIONS).sums
    both = int(((np.abs(bf16) >= 0.25) & (np.abs(fp16) >= 0.25)).sum())
    assert sums[COLUMN["grid_n"]] == both == 400
    assert sums[COLUMN["grid_q_bf16"]] == sums[COLUMN["grid_p_fp16"]] == 400
    assert sums[COLUMN["grid_p_bf16"]] < 80  # 1 in 8 by chance: three bits fewer
    assert sums[COLUMN["grid_q_fp16"]] == 400  # bfloat16 has fewer bits than float16 here


@pytest.mark.parametrize("lag", [-8, -3, 0, 1, 5])
def test_a_shifted_sample_is_best_at_its_lag(engine: MeasureEngine, lag: int) -> None:
    """p[t + lag] = q[t], with noise: the scan finds it, and only there is the mean small."""
    rng = np.random.default_rng(7)
    q = -rng.exponential(1, 60)
    p = np.roll(q, lag) - 0.001
    found = engine.measure(make_block([q], [p]), OPTIONS)
    row = found.rows.attributes[0]
    assert row[ATTRIBUTE["best_lag"]] == lag
    assert row[ATTRIBUTE["best_lag_abs"]] == pytest.approx(0.001, abs=2e-6)
    sums = found.lags[LAGS.index(lag)]
    assert sums[LAG_COLUMNS.index("n")] == OPTIONS.lag_window - abs(lag)


@pytest.mark.parametrize("kind", ["repeated", "shifted", "spread"])
@pytest.mark.parametrize("depth", [1.0, 15.0, 30.0])
def test_k3_keeps_its_digits_at_every_lag(engine: MeasureEngine, kind: str, depth: float) -> None:
    """One repeated q with Δ near 1e-4, a sample shifted by 3, some tokens at `depth`; clamp 20."""
    rng = np.random.default_rng(8)
    noise = 1e-4 * rng.standard_normal(40)
    q, p = {
        "repeated": (np.full(40, -depth), np.full(40, -depth) + noise),
        "shifted": (drawn := -depth * rng.random(40), np.roll(drawn, 3) - 2e-4),
        "spread": (some := np.where(np.arange(40) % 7 == 3, -depth, -1.0), some + noise),
    }[kind]
    found = engine.measure(make_block([q], [p]), OPTIONS)
    size = OPTIONS.lag_window
    a, b = q.astype(np.float32).astype(np.float64), p.astype(np.float32).astype(np.float64)
    for k, lag in enumerate(LAGS):
        d = b[max(0, lag) : size + min(0, lag)] - a[max(0, -lag) : size - max(0, lag)]
        d = np.clip(d, -20, 20)
        small = d**2 / 2 * (1 + d / 3 * (1 + d / 4 * (1 + d / 5 * (1 + d / 6))))
        exact = np.where(np.abs(d) < 1e-2, small, np.exp(d) - 1 - d).sum()
        assert found.lags[k, LAG_COLUMNS.index("k3")] == pytest.approx(exact, rel=1e-9, abs=0), lag


def test_a_shift_by_the_left_padding_is_found(engine: MeasureEngine) -> None:
    """Lags +pad_left and −pad_left are scanned beside the fixed ones."""
    q = -np.random.default_rng(7).exponential(1, 60)
    pad = np.array([13], np.int32)
    found = engine.measure(make_block([q], [np.roll(q, -13) - 0.001], pad_left=pad), OPTIONS)
    assert found.rows.attributes[0, ATTRIBUTE["best_lag"]] == -13


def test_version_spans_split_a_sample_between_lags(engine: MeasureEngine) -> None:
    """Ten tokens: four sampled by version 2, six by version 3, trained at 5."""
    block = make_block([[-1.0] * 10, [-1.0] * 5], [[-1.5] * 10, [-1.0] * 5])
    block = dataclasses.replace(
        block,
        rollout_version=np.array([2, 4]),
        train_version=np.array([5, 5]),
        version_spans=((0, 4, 3),),
    )
    found = engine.measure(block, OPTIONS).version_lag
    n, size = PROFILE_COLUMNS.index("n"), PROFILE_COLUMNS.index("abs")
    assert {lag: (row[n], row[size]) for lag, row in found.items()} == {
        3: (4, 2.0),
        2: (6, 3.0),
        1: (5, 0.0),
    }


def test_ref_gives_the_second_measurement_with_the_same_ruler(engine: MeasureEngine) -> None:
    """Policy p against ref is what the pair (q = p, p = ref) would be."""
    block = random_block(4, [30, 20], sides=False)
    ref = np.minimum(block.train_logprobs - 0.25, 0).astype(np.float32)
    with_ref = dataclasses.replace(block, ref_logprobs=ref)
    as_pair = dataclasses.replace(block, rollout_logprobs=block.train_logprobs, train_logprobs=ref)
    found = derive(engine.measure(with_ref, OPTIONS), OPTIONS)
    expected = derive(engine.measure(as_pair, OPTIONS), OPTIONS)
    for name in ("k1", "k2", "k3", "abs"):
        assert found[f"policy_ref_{name}"] == pytest.approx(expected[f"{name}_mean"], rel=1e-9)
    assert found["policy_ref_kl_seq_mean"] == pytest.approx(expected["k3_seq_mean"], rel=1e-9)


def test_counterfactual_temperature_brings_back_the_pair(engine: MeasureEngine) -> None:
    """q at T = 0.7 against p at 1: with logsumexp at both, the recomputed p at 0.7 equals q."""
    rng = np.random.default_rng(9)
    logits = rng.normal(0, 2, (200, 50))
    lse = {t: np.log(np.exp(logits / t).sum(1)) for t in (1.0, 0.7)}
    q, p = logits[:, 0] / 0.7 - lse[0.7], logits[:, 0] - lse[1.0]
    tensor = np.stack([lse[1.0], lse[0.7]]).astype(np.float32)
    block = make_block([q], [p], logsumexp_T=tensor, temperatures=(1.0, 0.7))
    found = engine.measure(block, OPTIONS)
    assert found.temperature[1.0][2] == pytest.approx(found.sums[COLUMN["abs"]], rel=1e-5)
    assert found.temperature[0.7][2] / 200 < 2e-6  # float32 rounding of q, p and lse
    assert found.bounds[2] == 0  # no token breaks the bound of T = 0.7


def test_kept_mass_explains_truncation(engine: MeasureEngine) -> None:
    """q renormalised on 80 % of the mass, p not: after p − ln kept nothing is left."""
    p = -np.random.default_rng(3).uniform(0.5, 3, 50).astype(np.float32)
    q = p - np.float32(math.log(0.8))
    kept = np.full(50, 0.8, np.float32)
    found = engine.measure(make_block([q], [p], kept_mass=kept), OPTIONS)
    assert found.side[SIDE_COLUMN["kept_n"]] == 50
    assert found.side[SIDE_COLUMN["kept_abs"]] / 50 < 1e-6


def test_worst_tokens_are_the_largest_differences_unclamped(engine: MeasureEngine) -> None:
    """All of them in order, those with Δ = 0 never."""
    p = [-1.0 - x for x in (0.1, 50.0, 0.0, 0.3, 0.2)]
    found = engine.measure(make_block([[-1.0] * 5], [p]), OPTIONS)
    assert [token.position for token in found.worst] == [1, 3, 4, 0]
    assert found.extremes[EXTREME["abs"]] == 50.0


def test_options_that_make_no_sense_are_refused() -> None:
    """The message names the field."""
    with pytest.raises(ConfigError, match="clip_low"):
        MeasureOptions(clip_low=1.5)
    with pytest.raises(ConfigError, match="clamp"):
        MeasureOptions(clamp=-1)


def test_warming_up_leaves_an_engine_as_it_was(engine: MeasureEngine) -> None:
    """It measures one pair and forgets it."""
    warm_up(engine)
    assert engine.measure(make_block([], []), OPTIONS).samples == 0


def test_an_engine_that_does_not_exist_is_refused() -> None:
    """And the message lists those that do."""
    with pytest.raises(ConfigError, match="fpga-emulator"):
        build_engine("gpu")


@pytest.mark.parametrize("trace", range(26))
def test_recorded_runs_give_the_published_numbers(engine: MeasureEngine, trace: int) -> None:
    """k1, k3, |Δ| of every recorded run, against values computed apart from this code."""
    folder = os.environ.get("TWINSCOPE_TRACES")
    if not folder:
        pytest.skip("TWINSCOPE_TRACES names no folder of recorded traces")
    entry = json.loads((Path(folder) / "index.json").read_text())[trace]
    batch = read_trace(Path(folder) / entry["file"])
    parts = [engine.measure(b, OPTIONS) for b in paired_blocks(batch, block_tokens=3000)]
    found = merge_all(parts)
    metrics = derive(found, OPTIONS)
    for name in ("k3_mean", "k1_mean", "abs_mean", "abs_max"):
        assert metrics[name] == pytest.approx(entry[name], rel=1e-6), name
    assert count(found, "counted") == entry["tokens"]
