"""One watched series: what is reported, when, and what never is."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from twinscope_service.detect import level
from twinscope_service.detect.findings import DetectOptions, Finding, Observation
from twinscope_service.detect.level import SeriesState

OPTIONS = DetectOptions()


def healthy(steps: int, *, seed: int, center: float = 1e-4, noise: float = 0.1) -> np.ndarray:
    """Log-normal levels around `center` with `noise` per step."""
    rng = np.random.default_rng(seed)
    return center * np.exp(noise * rng.standard_normal(steps))


def watch(
    values: Sequence[float | None] | np.ndarray,
    *,
    options: DetectOptions = OPTIONS,
    state: SeriesState | None = None,
    first_step: int = 0,
    **fields: object,
) -> tuple[SeriesState, list[Finding]]:
    """Feed values one by one."""
    state, findings = state or level.fresh("k3"), []
    for i, value in enumerate(values):
        plain = None if value is None else float(value)
        seen = Observation("k3", first_step + i, plain, 100_000, 512, **fields)  # type: ignore[arg-type]
        state, found = level.update(state, seen, options=options)
        findings += found
    return state, findings


def of(findings: list[Finding], kind: str, state: str = "firing") -> list[Finding]:
    """Findings of one kind and state."""
    return [f for f in findings if f.kind == kind and f.state == state]


@pytest.mark.parametrize("seed", range(5))
def test_a_twentyfold_shift_is_reported_at_once_and_confirmed_within_five_steps(seed: int) -> None:
    """1e-4 to 2e-3: something within 2 steps, the shift confirmed by the fifth, onset exact."""
    values = healthy(160, seed=seed)
    values[100:] *= 20
    _, findings = watch(values)
    assert min(f.step for f in findings) <= 101
    shift = of(findings, "level_shift")[0]
    assert shift.step <= 104
    assert shift.onset_step == 100
    assert shift.before == pytest.approx(1e-4, rel=0.1)
    assert shift.ratio == pytest.approx(20, rel=0.25)
    assert shift.confidence is not None
    assert shift.confidence > 0.9
    assert "shifted at step 100" in shift.message


@pytest.mark.parametrize("before", [25, 60])
def test_a_twentyfold_shift_is_sure_within_five_steps_whatever_the_noise_does(before: int) -> None:
    """Five wild values in a row are enough: the clipped statistic alone took up to nine steps."""
    for seed in range(31_000 + before, 31_060 + before):
        rng = np.random.default_rng(seed)
        values = np.concatenate([
            1e-4 * np.exp(0.1 * rng.standard_normal(before)),
            2e-3 * np.exp(0.1 * rng.standard_normal(8)),
        ])  # fmt: skip
        findings = [f for f in watch(values)[1] if f.step >= before and f.state != "resolved"]
        assert findings[0].step <= before + 1
        shift = of(findings, "level_shift")[0]
        assert (shift.step <= before + 4, shift.onset_step) == (True, before), seed
        assert shift.evidence["detectors"]


def test_a_wild_batch_above_a_shift_that_stands_is_a_spike() -> None:
    """The alert of a new level may stand for the rest of the run; it must not hide what follows."""
    values = healthy(260, seed=11)
    values[60:] *= 1.4
    values[200] *= 100
    _, findings = watch(values)
    late = [f for f in findings if f.step >= 100]
    assert late[0].evidence["detectors"] == []
    assert [(f.kind, f.state, f.onset_step) for f in late] == [
        ("spike", "firing", 200), ("spike", "resolved", 200),
    ]  # fmt: skip


def test_a_great_rise_above_a_level_that_fell_is_reported_at_once() -> None:
    """Less mismatch for sixteen steps, told as such; then twenty times as much."""
    for seed in range(10):
        values = healthy(90, seed=seed)
        values[60:] *= 0.5
        values[76:] *= 20
        late = [f for f in watch(values)[1] if f.step >= 76]
        assert (late[0].kind, late[0].step) == ("spike", 76)
        shift = of(late, "level_shift")[0]
        assert (shift.step <= 80, shift.onset_step) == (True, 76), seed


# rollout_train_kl of examples/grpo_cpu.py: weights no longer synchronised from step 10 on.
NO_SYNC_FROM_10 = [
    .000398, .000386, .000401, .000373, .000399, .000431, .000423, .000402, .000425, .000434,
    .00227, .00723, .0150, .0273, .0408, .0531, .0701, .0892, .103, .109,
    .131, .150, .154, .158, .187, .198, .209, .239, .259, .273,
]  # fmt: skip


def test_a_fault_that_begins_inside_the_burn_in_is_reported_when_it_ends() -> None:
    """A real run that went wrong at step 10: the twentieth value brings the shift, onset exact."""
    _, findings = watch(NO_SYNC_FROM_10)

    shift, *news = of(findings, "level_shift")
    assert (shift.step, shift.onset_step) == (19, 10)
    assert [n.onset_step for n in news] == [10] * len(news)
    assert shift.before == pytest.approx(4.0e-4, rel=0.02)
    assert shift.ratio is not None
    assert shift.ratio > 100


# The same on other weights (seed 1): the first stale step is off by less than a factor of two.
NO_SYNC_FROM_10_GENTLE = [
    .000563, .000596, .000598, .000589, .000572, .000587, .000586, .000606, .000548, .00061,
    .00111, .00215, .00358, .00498, .00717, .00784, .0104, .0128, .014, .0163, .0179, .0222,
]  # fmt: skip


def test_a_fault_that_begins_gently_inside_the_burn_in_is_reported_just_so() -> None:
    """The first step is x1.8, the next ones x2 and x1.7: no gap of two anywhere, yet x15 in all."""
    _, findings = watch(NO_SYNC_FROM_10_GENTLE)

    (shift,) = of(findings, "level_shift")
    assert (shift.step, shift.onset_step) == (19, 10)
    assert shift.before == pytest.approx(5.9e-4, rel=0.02)


def test_the_burn_in_of_a_healthy_run_says_nothing() -> None:
    """20 000 of them, steady, noisy, autocorrelated or rising 5 % a step: no rise is reported."""
    rng = np.random.default_rng(7)
    noise = rng.standard_normal((20_000, 20)) * rng.choice([0.02, 0.1, 0.4], (20_000, 1))
    slope = rng.choice([0.0, 0.02, 0.05], (20_000, 1)) * np.arange(20)
    smooth = noise + 0.4 * np.roll(noise, 1, axis=1)

    found = [level.newest_apart(list(y), least=np.log(2.0)) for y in smooth + slope]
    assert found.count(None) == len(found)


def test_a_shift_of_a_factor_1_3_is_found_in_time_and_placed_well() -> None:
    """After 60 healthy steps with 10 % noise: median delay 12 steps at most, onset within 2."""
    delays, errors = [], []
    for seed in range(41):
        values = healthy(130, seed=seed)
        values[60:] *= 1.3
        shifts = of(watch(values)[1], "level_shift")
        delays.append(shifts[0].step - 59 if shifts else 1000)
        errors.append(abs((shifts[0].onset_step or 0) - 60) if shifts else 1000)
    assert np.median(delays) <= 12
    assert np.median(errors) <= 2


@settings(max_examples=25, deadline=None)
@given(
    size=st.floats(math.log(5.0), 25.0),
    at=st.integers(30, 110),
    seed=st.integers(0, 1000),
)
def test_one_wild_batch_of_any_size_is_a_spike_and_never_a_level_shift(
    size: float, at: int, seed: int
) -> None:
    """A single batch, from five times to e^25 times the level.

    In about three of a thousand such series a neighbour is nearly wild, too: a provisional shift.
    """
    values = healthy(140, seed=seed)
    assume(not watch(values)[1])  # one seed in a hundred raises its promised false alarm
    values[at] *= math.exp(size)
    _, findings = watch(values)
    assert [f.step for f in of(findings, "spike")] == [at]
    (over,) = of(findings, "spike", "resolved")
    assert over.step == at + 1
    assert over.after == pytest.approx(values[at])  # not that of the step after it
    assert not [f for f in findings if f.kind == "level_shift"]


def test_a_wild_batch_on_top_of_values_that_happen_to_be_high_is_a_spike_all_the_same() -> None:
    """The values before it bring the statistic near its limit; it would have been a shift x87."""
    values = healthy(160, seed=123_109, center=2.5e-4)
    values[60] *= 100
    _, findings = watch(values)
    assert [(f.kind, f.state, f.step) for f in findings] == [
        ("spike", "firing", 60), ("spike", "resolved", 61),
    ]  # fmt: skip


def test_a_ramp_is_called_growth_before_it_has_grown_fourfold() -> None:
    """Doubling every 50 steps from step 150 on."""
    for seed in range(5):
        values = healthy(260, seed=seed)
        values[150:] *= 2 ** (np.arange(110) / 50)
        grown = of(watch(values)[1], "growth")
        assert grown
        assert grown[0].step < 250
        assert 25 < grown[0].evidence["doubling_steps"] < 100


def test_slow_drift_of_a_healthy_run_is_not_growth_and_no_stream_of_shifts() -> None:
    """A tenth of a percent of the noise per step: the level rises by a third in 3000 steps."""
    values = healthy(3000, seed=4) * np.exp(1e-4 * np.arange(3000))
    findings = watch(values)[1]
    assert not of(findings, "growth")
    assert len(of(findings, "level_shift")) <= 2  # the promise allows 0.6 on average


def test_a_fault_of_500_steps_is_one_shift_that_fires_and_one_that_is_resolved() -> None:
    """Nothing in between, although the new level is learnt."""
    values = healthy(700, seed=8)
    values[100:600] *= 5
    findings = [f for f in watch(values)[1] if f.kind == "level_shift"]
    states = [f.state for f in findings if f.state != "provisional"]
    assert states == ["firing", "resolved"]
    assert findings[-1].step <= 620


@pytest.mark.parametrize("steps", [5, 8, 12, 20])
def test_a_short_fault_is_one_alert_and_its_end_is_no_second_one(steps: int) -> None:
    """Whether its level was learnt, half learnt or not learnt when the old one comes back.

    Faulty levels are noisier than healthy ones, as they are in recorded runs.
    """
    for seed in range(20):
        values = healthy(180, seed=seed)
        values[100 : 100 + steps] *= healthy(steps, seed=seed, center=20.0, noise=0.6)
        findings = [f for f in watch(values)[1] if f.kind == "level_shift"]
        states = [f.state for f in findings if f.state != "provisional"]
        assert states == ["firing", "resolved"], (seed, findings)


def test_a_spike_that_goes_on_says_that_it_is_a_shift_now() -> None:
    """In the step that reports the shift: both reach a person in one message."""
    values = healthy(140, seed=4)
    values[100:] *= 20
    _, findings = watch(values)
    spike = of(findings, "spike", "resolved")[0]
    shift = next(f for f in findings if f.kind == "level_shift")
    assert spike.step == shift.step
    assert spike.message == (
        "rollout_train_kl: the spike of step 100 goes on as a level shift (step 101)"
    )


def test_a_shift_that_goes_on_rising_is_news_of_the_same_alert() -> None:
    """The level before stays that of the healthy run, and the onset is when it was left."""
    values = healthy(200, seed=3)
    values[80:] *= 3
    values[140:] *= 3
    shifts = of(watch(values)[1], "level_shift")
    assert [round(f.ratio or 0) for f in shifts] == [3, 9]
    assert [f.onset_step for f in shifts] == [80, 80]


def test_a_pair_of_wild_batches_is_provisional_and_withdrawn() -> None:
    """Two batches twenty times up, then healthy again."""
    values = healthy(160, seed=2)
    values[100:102] *= 20
    findings = [f for f in watch(values)[1] if f.kind == "level_shift"]
    assert [f.state for f in findings] == ["provisional", "resolved"]
    assert findings[-1].message.endswith("level shift of step 100 was not confirmed (step 112)")


def test_alarms_do_not_depend_on_the_unit() -> None:
    """Times a constant: the same steps, onsets and ratios."""
    values = healthy(200, seed=6)
    values[90:] *= 2.5
    base, scaled = watch(values)[1], watch(values * 1e5)[1]
    assert base
    assert [(f.kind, f.state, f.step, f.onset_step) for f in base] == [
        (f.kind, f.state, f.step, f.onset_step) for f in scaled
    ]
    assert [f.ratio for f in base] == pytest.approx([f.ratio for f in scaled])


def test_alarms_do_not_depend_on_the_noise_level() -> None:
    """The log stretched fourfold: the same statistics, so the same steps and onsets."""
    values = healthy(200, seed=6, center=1.0)
    values[90:] *= 2.5
    options = DetectOptions(min_ratio=1.0, spike_ratio=1.0)
    base, stretched = (watch(v, options=options)[1] for v in (values, values**4))
    assert base
    assert [(f.state, f.step, f.onset_step) for f in base if f.kind == "level_shift"] == [
        (f.state, f.step, f.onset_step) for f in stretched if f.kind == "level_shift"
    ]


@pytest.mark.parametrize("stop", [5, 25, 101, 102, 103, 108, 150])
def test_a_state_stored_and_loaded_in_mid_excursion_gives_the_same_findings(stop: int) -> None:
    """Through JSON text, at the burn-in, in a spike, in a pair, while a new level is learnt."""
    values = healthy(180, seed=1)
    values[100:] *= 20
    whole, findings = watch(values, standard_error=1e-6)
    state, first = watch(values[:stop], standard_error=1e-6)
    loaded = level.from_json(json.loads(json.dumps(state.as_json())))
    assert loaded == state
    end, second = watch(values[stop:], state=loaded, first_step=stop, standard_error=1e-6)
    assert first + second == findings
    assert end == whole


def test_a_state_is_as_large_after_a_long_run_as_after_a_short_one() -> None:
    """Rings, not histories."""
    state, _ = watch(healthy(250, seed=2))
    early = len(json.dumps(state.as_json()))
    state, _ = watch(healthy(2000, seed=3), state=state, first_step=250)
    assert abs(len(json.dumps(state.as_json())) - early) < 100


def test_update_leaves_the_old_state_alone() -> None:
    """Pure: the same state twice gives the same answer twice."""
    state, _ = watch(healthy(50, seed=1))
    before = json.dumps(state.as_json())
    seen = Observation("k3", 50, 5e-3, 100_000, 512)
    assert level.update(state, seen, options=OPTIONS) == level.update(state, seen, options=OPTIONS)
    assert json.dumps(state.as_json()) == before


def test_a_constant_series_followed_by_a_jump_alarms() -> None:
    """No noise at all in the burn-in."""
    findings = watch(np.where(np.arange(80) < 60, 1e-4, 1.5e-4))[1]
    assert [f.onset_step for f in of(findings, "level_shift")] == [60]


def test_nothing_is_said_before_the_burn_in_is_over() -> None:
    """Twenty values: `unknown` until then."""
    state, findings = watch(healthy(19, seed=1) * np.where(np.arange(19) > 10, 50.0, 1.0))
    assert not findings
    assert not level.ready(state)
    assert level.ready(watch(healthy(20, seed=1))[0])


def test_missing_and_nonfinite_values_change_nothing() -> None:
    """None, NaN and infinities are no observations."""
    state, _ = watch(healthy(40, seed=1))
    again, findings = watch([None, math.nan, math.inf, -math.inf], state=state)
    assert again == state
    assert not findings


def test_a_level_of_zero_is_a_level() -> None:
    """k3 = 0 is floored, not dropped: the fall is a level shift downwards."""
    values = healthy(120, seed=1)
    values[60:] = 0.0
    shifts = of(watch(values)[1], "level_shift")
    assert shifts
    assert shifts[0].onset_step == 60


def test_a_lower_level_that_lasts_is_over_and_learnt() -> None:
    """A policy that sharpens has less mismatch: told once, and nothing waits for it to rise."""
    values = healthy(160, seed=1)
    values[60:] /= 3
    state, findings = watch(values)
    shifts = [f for f in findings if f.kind == "level_shift"]
    assert [f.state for f in shifts] == ["firing", "resolved"]
    assert shifts[1].step - shifts[0].step == OPTIONS.resolve_steps
    assert "the lower level is the usual one" in shifts[1].message
    _, found = watch(healthy(40, seed=2), state=state, first_step=160)  # three times the new level
    again = of(found, "level_shift")[0]
    assert again.onset_step == 160
    assert again.ratio == pytest.approx(3, rel=0.25)


def test_a_rise_from_a_lower_level_is_told_though_it_ends_below_the_first_one() -> None:
    """1e-4, 1e-5, then 5e-5: five times the level it had fallen to, within the fall's 20 steps."""
    values = healthy(100, seed=3)
    values[60:] /= 10
    values[72:] *= 5
    shifts = [f for f in watch(values)[1] if f.kind == "level_shift" and f.state != "provisional"]
    assert [(f.state, f.onset_step) for f in shifts][:3] == [
        ("firing", 60), ("resolved", 60), ("firing", 72),
    ]  # fmt: skip
    assert shifts[2].before == pytest.approx(1e-5, rel=0.25)
    assert shifts[2].ratio == pytest.approx(5, rel=0.3)


def test_a_fall_below_where_a_rise_began_ends_the_rise() -> None:
    """1e-4, 2e-3, 1e-5: the rise is over, and what follows is a fall."""
    values = healthy(140, seed=4)
    values[60:90] *= 20
    values[90:] /= 10
    shifts = [f for f in watch(values)[1] if f.kind == "level_shift" and f.state != "provisional"]
    firing = [f for f in shifts if f.state == "firing"]
    assert [f.onset_step for f in firing] == [60, 90]
    assert firing[0].ratio > 10 > 1 > firing[1].ratio
    assert [f.state for f in shifts] == ["firing", "resolved", "firing", "resolved"]


def test_a_wild_batch_cannot_excuse_itself_by_its_own_standard_error() -> None:
    """Its error is as large as its value, as when one sample made it; it is a spike anyway."""
    state = level.fresh("k3")
    findings = []
    for step, value in enumerate(healthy(60, seed=1)):
        error = 0.05 * value
        if step == 50:
            value, error = 1e-2, 1e-2
        seen = Observation("k3", step, float(value), 100_000, 512, float(error))
        state, found = level.update(state, seen, options=OPTIONS)
        findings += found
    assert [f.step for f in of(findings, "spike")] == [50]


def test_a_small_batch_is_allowed_to_be_noisier() -> None:
    """Batches of 1/100 of the tokens, ten times the sampling noise: no alarm about them."""
    rng = np.random.default_rng(5)
    state, findings = level.fresh("k3"), []
    for step in range(400):
        tokens = 1_000 if step % 40 == 39 else 100_000
        noise = 0.05 * math.sqrt(100_000 / tokens)
        value = 1e-4 * math.exp(noise * rng.standard_normal())
        seen = Observation("k3", step, value, tokens, 512, noise * value)
        state, found = level.update(state, seen, options=OPTIONS)
        findings += found
    assert not findings


def test_a_signed_series_is_watched_on_both_sides() -> None:
    """E[rho] - 1 falls from 0 to -0.05: a spike downwards, then a shift without a ratio."""
    rng = np.random.default_rng(2)
    values = 0.001 * rng.standard_normal(120)
    values[80:] -= 0.05
    state, findings = level.fresh("rho_excess", two_sided=True), []
    for step, value in enumerate(values):
        seen = Observation("rho_excess", step, float(value), 100_000, 512, scale="linear")
        state, found = level.update(state, seen, options=OPTIONS)
        findings += found
    assert min(f.step for f in findings) == 80
    shift = of(findings, "level_shift")[0]
    assert shift.onset_step == 80
    assert shift.ratio is None
    assert shift.after == pytest.approx(-0.05, abs=0.003)
