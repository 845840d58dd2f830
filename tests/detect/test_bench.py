"""The benchmark measures what it says: hand-worked scores, calibration, and its own small run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from twinscope_service.bench import arl, detect, detect_report, detect_rivals, detect_series
from twinscope_service.bench.detect_series import Case, covering, f_measure
from twinscope_service.detect import kernels as k
from twinscope_service.detect.thresholds import likelihood_arl, limits


def test_f_measure_and_covering_of_hand_worked_segmentations() -> None:
    """One annotator sees a change at 50 of 100, the other none."""
    notes = {"a": [50], "b": []}
    assert f_measure(notes, []) == pytest.approx(2 * 1 * 0.75 / 1.75)  # P 1, R (1/2 + 1)/2
    assert f_measure(notes, [53]) == pytest.approx(1.0)
    assert f_measure(notes, [60]) == pytest.approx(2 * 0.5 * 0.75 / 1.25)
    assert covering(notes, [], 100) == pytest.approx((0.5 + 1.0) / 2)
    assert covering(notes, [50], 100) == pytest.approx((1.0 + 0.5) / 2)


def test_one_predicted_point_serves_one_true_point() -> None:
    """Two changes three steps apart are not both found by one report."""
    assert f_measure({"a": [50, 53]}, [51]) == pytest.approx(2 * 1 * (2 / 3) / (5 / 3))


def test_the_score_of_a_step_is_the_longest_run_length_at_which_it_alarms() -> None:
    """Against the detector itself: alarms are where the score passes log of the target."""
    y, s2 = arl.noise(arl.NORMAL, 400, seed=3)
    y[300:] += 2.0
    scores = detect.score(y)
    for target in (200.0, 3_000.0, 1e5):
        bits = arl.watcher()(y, s2, 1, np.array(limits(target)), False)
        alarmed = (bits & ~k.GROWTH) != 0
        assert alarmed.tolist() == (scores >= np.log(target)).tolist()


def test_straight_lines_of_the_score_are_those_of_the_thresholds() -> None:
    """Inside and beyond the table."""
    for statistic in (2.0, 2.7, 3.3, 4.0, 5.5):
        shown = float(detect._log_run_length(np.array([statistic]))[0])
        assert shown == pytest.approx(np.log(likelihood_arl(statistic)), abs=1e-6)


def test_a_limit_gives_the_run_length_that_was_asked_for() -> None:
    """Uniform scores: one in 500 lies above 0.998."""
    rng = np.random.default_rng(1)
    limit = detect.limit_at([rng.random(5000) for _ in range(200)], 500.0)
    assert limit == pytest.approx(1 - 1 / 500, abs=3e-4)


def test_a_detector_that_knows_the_change_has_delay_one_and_zero_never_alarms() -> None:
    """The two ends of the table."""
    y, _ = arl.noise(arl.NORMAL, 120, seed=1)
    cases = [Case("n", "n healthy", y, None), Case("n", "n 5σ", y, 60)]
    oracle = np.where(np.arange(120) >= 60, 1.0, 0.0)
    scores = {"oracle": [np.zeros(120), oracle], "zero": [np.zeros(120), np.zeros(120)]}
    rows = {row.detector: row for row in detect.compare(cases, scores)}
    assert (rows["oracle"].median_delay, rows["oracle"].missed) == (1.0, 0.0)
    assert (rows["zero"].median_delay, rows["zero"].missed) == (detect_series.AFTER, 1.0)


def test_detections_are_counted_by_hand() -> None:
    """Four cases: found at the third step, missed, alarmed before the change, found at once."""
    y, _ = arl.noise(arl.NORMAL, 120, seed=1)
    case = Case("n", "n 5σ", y, 60)

    def alarm(*at: int) -> np.ndarray:
        scores = np.zeros(120)
        scores[list(at)] = 1.0
        return scores

    placed = np.full(120, 61.0)
    found = detect.detections(
        [(case, alarm(62), placed), (case, alarm(), None), (case, alarm(30, 70), None),
         (case, alarm(60), None)], 1.0,
    )  # fmt: skip
    assert found.delays == {0: 3, 1: detect_series.AFTER, 3: 1}  # the third alarmed too early
    assert found.errors == [1.0, 0.0]  # estimated 61 for 60; without an estimate the alarm
    assert (found.missed, found.early) == (1, 1)
    assert found.exposure == 40 + 40 + 10 + 40  # after a burn-in of 20


def test_chance_of_an_uneven_split_is_that_of_a_coin() -> None:
    """Later in 8 of 10, level in one, one alarmed before the change: P(at least 8) twice."""

    def row(delays: dict[int, int]) -> detect.Row:
        return detect.Row("a", "x", 3.0, 3.0, 0.0, 0, 100, 0.0, delays)

    mine = row({**dict.fromkeys(range(8), 4), 8: 1, 9: 1, 10: 3})
    other = row({**dict.fromkeys(range(11), 3), 11: 1})
    assert detect.by_chance(mine, other) == (8, 2, pytest.approx(2 * (45 + 10 + 1) / 1024))
    assert detect.by_chance(mine, mine) == (0, 0, 1.0)


def test_an_alarm_on_an_outlier_is_neither_false_nor_a_find() -> None:
    """Two outliers, of the healthy series and of the other; counted strictly, both are alarms."""
    y, _ = arl.noise(arl.NORMAL, 120, seed=1)
    wild = np.arange(120) == 50
    cases = [Case("n", "n healthy", y, None, wild), Case("n", "n 5σ", y, 60, wild)]
    scores = {"x": [np.where(wild, 9.0, 0.1), np.where(wild, 9.5, np.where(y == y[70], 9.1, 0.05))]}
    (row,) = detect.compare(cases, scores)
    assert (row.early, row.delays) == (0, {0: 11})
    (strict,) = detect_report.strictly(cases, scores)
    assert (strict.early, strict.delays) == (1, {})


def test_a_detector_is_judged_on_the_cases_it_looked_at() -> None:
    """The slowest see a part of them only."""
    y, _ = arl.noise(arl.NORMAL, 120, seed=1)
    cases = [Case("n", "n healthy", y, None), *[Case("n", "n 5σ", y, 60)] * 2]
    late = np.where(np.arange(120) >= 61, 1.0, 0.0)
    (row,) = detect.compare(cases, {"slow": [np.zeros(120), None, late]})
    assert row.delays == {0: 2}


def test_our_onset_of_a_large_shift_is_exact() -> None:
    """From the second step of the shift on."""
    y, _ = arl.noise(arl.NORMAL, 130, seed=4)
    y[120:] += 8.0
    assert detect.onsets(y)[122:].tolist() == [120.0] * 8


def test_the_table_says_where_somebody_is_earlier_and_what_it_costs_them() -> None:
    """One family lost to a detector that misses a third of it, one that is level."""

    def row(family: str, detector: str, median: float, missed: float = 0.0) -> detect.Row:
        delays = dict.fromkeys(range(6), int(median)) | {6: 2}
        return detect.Row(family, detector, median, median, missed, 0, 100, 0.0, delays)

    rows = [row("a", detect.OURS, 3), row("a", "x", 1, 1 / 3), row("b", detect.OURS, 2),
            row("b", "x", 2)]  # fmt: skip
    assert detect_report.losses(rows)[2:] == ["| a | 3 | 1 | x (33% missed) | 6 / 0 | 0.03 |"]
    ours = detect_report.summary_table(rows, {})[2]
    assert ours.startswith(f"| {detect.OURS} | 1 of 2 | 0 | 2.5 |")


def test_kept_answers_are_used_for_the_same_series_only(tmp_path: Path) -> None:
    """Made by running the script again when the series differ; here nothing can run."""
    series = {"c0": np.arange(30.0)}
    kept = tmp_path / "kept.npz"
    script = Path(detect_rivals.__file__)
    answers = {"zero|c0": np.zeros(30), "zero|cost": np.array([1e-6])}
    np.savez(kept, digest=np.array(detect._digest(series, script)), **answers)  # type: ignore[arg-type]
    found = detect.ask_rivals(series, Path("/no/such/python"), kept=kept)
    assert found.costs == {"zero": 1e-6}
    with pytest.raises(FileNotFoundError):
        detect.ask_rivals({"c0": np.ones(30)}, Path("/no/such/python"), kept=kept)


@pytest.mark.parametrize("name", ["three_sigma", "ewma", "bocpd"])
def test_rivals_that_are_written_here_see_a_large_shift_and_nothing_later(name: str) -> None:
    """Scores rise at the change, and do not depend on the future."""
    y, _ = arl.noise(arl.NORMAL, 160, seed=2)
    y[120:] += 6.0
    detector = detect_rivals.RIVALS[name]
    scores = np.atleast_2d(detector(y))
    assert scores[0, 120:126].max() > scores[0, 20:120].max()
    assert np.atleast_2d(detector(y[:100])) == pytest.approx(scores[:, :100])


def test_public_series_are_read_from_the_folder_that_is_named(tmp_path: Path) -> None:
    """Univariate series with annotations, z-scored, gaps carried forward."""
    folder = tmp_path / "tcpd"
    folder.mkdir()
    raw = [1.0, None, 3.0, 5.0]
    document = {"name": "small", "n_dim": 1, "series": [{"raw": raw}]}
    (folder / "small.json").write_text(json.dumps(document))
    wide = {"name": "wide", "n_dim": 2, "series": []}
    (folder / "wide.json").write_text(json.dumps(wide))
    (folder / "annotations.json").write_text(json.dumps({"small": {"6": [2]}, "wide": {}}))
    (one,) = detect_series.tcpd(tmp_path)
    assert one.name == "small"
    assert one.annotations == {"6": [2]}
    values = np.array([1.0, 1.0, 3.0, 5.0])
    assert one.y == pytest.approx((values - values.mean()) / values.std())
