"""Where two runs part: hand-made series with a known answer, and recorded runs."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import pytest
from looking import HEALTHY
from service_process import ServiceProcess

from twinscope_service.cli import main
from twinscope_service.detect.findings import DetectOptions
from twinscope_service.report.diff import Pair, Parting, part

OPTIONS = DetectOptions()


def _series(
    factor: Callable[[int], float],
    *,
    steps: int = 120,
    noise: float = 0.05,
    seed: int = 0,
    common: Callable[[int], float] = lambda _: 1.0,
    first: int = 0,
) -> list[Pair]:
    """Two runs of level 0.002 with noise of their own; B's is `factor`(step) times higher."""
    draw = random.Random(seed)
    pairs = []
    for step in range(first, first + steps):
        a, b = (0.002 * common(step) * math.exp(draw.gauss(0.0, noise)) for _ in "ab")
        pairs.append(Pair(step, a, b * factor(step), 10_000))
    return pairs


def _part(pairs: list[Pair], name: str = "k3_mean") -> Parting:
    return part(name, pairs, options=OPTIONS)


def test_a_level_that_shifts_in_one_run_parts_them_there() -> None:
    """A third more from step 60 on, in noise of a twentieth: found within two steps of it."""
    found = _part(_series(lambda step: 1.33 if step >= 60 else 1.0))

    assert found.outcome == "parted"
    assert found.differs == 0
    assert found.parts is not None
    assert abs(found.parts - 60) <= 2
    assert found.a == pytest.approx(0.002, rel=0.03)
    assert found.b == pytest.approx(0.00266, rel=0.03)


@pytest.mark.parametrize("factor", [1.3, 0.7, 3.0])
@pytest.mark.parametrize("first", [0, 100])
def test_a_difference_since_the_start_is_not_learnt_as_usual(factor: float, first: int) -> None:
    """The first common step, be it step 0 or another."""
    assert _part(_series(lambda _: factor, first=first)).parts == first


def test_what_happens_to_both_parts_nobody() -> None:
    """Ten times the level from step 50 on in both runs: their ratio is what it was."""
    found = _part(_series(lambda _: 1.0, common=lambda step: 10.0 if step >= 50 else 1.0))

    assert (found.outcome, found.parts) == ("together", None)


def test_a_spike_is_no_parting() -> None:
    """One step, thirty times as high."""
    assert _part(_series(lambda step: 30.0 if step == 70 else 1.0)).outcome == "together"


def test_slow_growth_parts_before_it_has_doubled() -> None:
    """Two per cent a step from step 40 on."""
    found = _part(_series(lambda step: 1.02 ** max(step - 40, 0)))

    assert found.outcome == "parted"
    assert found.parts is not None
    assert 36 <= found.parts <= 40 + math.log(2.0) / math.log(1.02)


def test_equal_numbers_are_equal_and_their_first_difference_is_named() -> None:
    """Bit for bit; a last digit that differs from step 30 on is a difference and no parting."""
    same = [Pair(pair.step, pair.a, pair.a, pair.tokens) for pair in _series(lambda _: 1.0)]
    nearly = [
        Pair(p.step, p.a, math.nextafter(p.a, 1.0) if p.step >= 30 else p.a, p.tokens) for p in same
    ]

    assert (_part(same).outcome, _part(same).differs) == ("equal", None)
    assert (_part(nearly).outcome, _part(nearly).differs) == ("together", 30)


def test_few_steps_say_nothing() -> None:
    """Nineteen: the detectors have no usual level yet."""
    assert _part(_series(lambda _: 3.0, steps=19)).outcome == "unknown"
    assert _part(_series(lambda _: 3.0, steps=20)).outcome == "parted"


def test_a_trainers_number_of_either_sign_is_compared_by_its_difference() -> None:
    """A reward around -1 that falls by a half from step 60 on, in noise of a tenth."""
    draw = random.Random(1)
    pairs = [
        Pair(step, -1.0 + draw.gauss(0, 0.1), -1.0 + draw.gauss(0, 0.1) - 0.5 * (step >= 60), 9999)
        for step in range(120)
    ]
    found = _part(pairs, "reward")

    assert found.parts is not None
    assert abs(found.parts - 60) <= 3


def test_equal_runs_seldom_part() -> None:
    """Sixty pairs of 200 steps: 1.2 false alarms are expected at one in 10 000 steps; 5 are not."""
    parted = [
        seed for seed in range(60)
        if _part(_series(lambda _: 1.0, steps=200, noise=0.15, seed=seed)).outcome == "parted"
    ]  # fmt: skip

    assert len(parted) < 5


def test_recorded_runs_part_where_the_fault_began(
    service: ServiceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """`demo` has a fault from step 30 on, `reference` has none: status 1, in words and JSON."""
    assert main(["diff", "demo", "reference", "--url", service.url]) == 1
    said = capsys.readouterr().out
    assert main(["diff", "demo", "reference", "--json", "--url", service.url]) == 1
    found = {one["metric"]: one for one in json.loads(capsys.readouterr().out)["metrics"]}

    assert found["k3_mean"]["parts"] == HEALTHY
    assert f"they part at step {HEALTHY}" in said
    assert "rollout_train_kl" in said
    assert f"verdicts differ first at step {HEALTHY}" in said


def test_a_run_is_equal_to_itself(
    service: ServiceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 0, and a doubt: two names for the same data look like this."""
    assert main(["diff", "demo", "demo", "--url", service.url]) == 0
    assert "equal to the last bit" in capsys.readouterr().out


def test_runs_without_enough_common_steps_are_unknown(
    service: ServiceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2. A run that is not there is named."""
    from looking import HOSTILE

    assert main(["diff", "demo", HOSTILE, "--url", service.url]) == 2
    assert "unknown: fewer than 20 steps" in capsys.readouterr().out
    assert main(["diff", "demo", "nobody", "--url", service.url]) == 2
    assert "nobody" in capsys.readouterr().err
