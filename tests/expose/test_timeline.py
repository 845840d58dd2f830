"""A run as columns: the band of healthy steps by hand, columns that agree with the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from twinscope_service.expose import timeline
from twinscope_service.views import AlertView, TimelineRow

ROW = TimelineRow(
    step=0, verdict="ok", closed_at=0.0, counted=100, cause=None, metrics={}, scalars={}
)
SHIFT = AlertView(1, "level_shift", "firing", "k3", 12, 10, 1.0, 5.0, 5.0, "shifted")


def _rows(levels: list[float | None], **fields: Any) -> list[TimelineRow]:
    return [
        replace(ROW, step=step, metrics={"k3_mean": level}, **fields)
        for step, level in enumerate(levels)
    ]


def test_the_band_is_made_of_the_healthy_steps_before() -> None:
    """Too few before step 5; then the median of what came before, never of the step itself."""
    band = timeline.healthy_band([1.0, 2.0, 3.0, 4.0, 5.0, 99.0, 6.0], [True] * 7)

    assert band["middle"][:5] == [None] * 5
    assert band["middle"][5] == 3.0
    assert band["middle"][6] == 3.5
    assert band["low"][5] == pytest.approx(1.2)
    assert band["high"][5] == pytest.approx(4.8)


def test_a_bad_step_is_in_nobodys_band() -> None:
    """While the level is shifted the band stays where it was."""
    levels: list[float | None] = [1.0] * 10 + [5.0] * 10
    band = timeline.healthy_band(levels, [True] * 10 + [False] * 10)

    assert band["middle"][5:] == [1.0] * 15
    assert band["high"][5:] == [1.0] * 15


def test_the_band_slides_over_a_long_run() -> None:
    """Against numpy's quantiles of the last 50 values, at every step."""
    values = np.random.default_rng(0).lognormal(size=300)
    band = timeline.healthy_band(values.tolist(), [True] * 300)

    for step in range(timeline.LEAST, 300):
        before = values[max(0, step - timeline.WINDOW) : step]
        expected = np.quantile(before, timeline.QUANTILES)
        found = [band[name][step] for name in timeline.BAND]
        assert found == pytest.approx(expected)


def test_a_step_without_a_level_has_a_band_and_is_in_none() -> None:
    """None is unknown, not zero."""
    band = timeline.healthy_band([2.0] * 5 + [None, 2.0], [True] * 7)

    assert band["low"][5:] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("alert", "healthy"),
    [
        (SHIFT, [9]),
        (replace(SHIFT, state="resolved"), [9, 13]),
        (replace(SHIFT, series="abs_p99"), [9, 10, 12, 13]),
        (replace(SHIFT, onset_step=None), [9, 10]),
    ],
)
def test_an_alert_about_k3_makes_its_steps_unhealthy(alert: AlertView, healthy: list[int]) -> None:
    """From the onset on; after a resolved one the run is healthy again."""
    rows = [replace(ROW, step=step) for step in (9, 10, 12, 13)]

    assert [row.step for row in rows if timeline.is_healthy(row, [alert])] == healthy


def test_columns_are_equally_long_and_unknown_ones_are_left_out() -> None:
    """Skipped rows feed the band and nothing else."""
    rows = _rows([1.0] * 8, scalars={"reward": 0.5})
    events = [(None, "probe_attached", {}), (1, "restart", {}), (7, "weight_sync", {"version": 3})]
    found = timeline.describe_timeline(rows, alerts=[SHIFT], events=events, skip=6)

    assert found["step"] == [6, 7]
    assert found["metrics"] == {"k3_mean": [1.0, 1.0]}
    assert found["scalars"] == {"reward": [0.5, 0.5]}
    assert found["baseline"]["middle"] == [1.0, 1.0]
    assert [event["kind"] for event in found["events"]] == ["probe_attached", "weight_sync"]
    assert found["alerts"][0]["series"] == "k3"


def test_a_run_without_closed_steps_has_empty_columns() -> None:
    """Nothing is invented."""
    found = timeline.describe_timeline([], alerts=[], events=[])

    assert found["step"] == []
    assert found["baseline"] == {"low": [], "middle": [], "high": []}
