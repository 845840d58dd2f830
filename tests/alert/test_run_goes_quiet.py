"""Silence of a whole run, restarts and ends, through the pipeline and its store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines import Bench

BatchOf = Callable[..., bytes]


def play(bench: Bench, batch: BatchOf, steps: range) -> None:
    """One small paired batch per step, a minute apart, each closed."""
    for step in steps:
        bench.send(batch(q=[-1.0, -2.0, -0.5], p=[-1.01, -1.98, -0.5], step=step, run="r",
                         sample_ids=[f"s{step}"]))  # fmt: skip
        bench.pipeline.close_step("r", step)
        bench.clock.advance(60.0)


def told(bench: Bench) -> list[tuple[str, str, str]]:
    """(kind, state, series) of the run's alerts, oldest first."""
    return [(a.kind, a.state, a.series) for a in reversed(bench.pipeline.alerts("r"))]


def test_a_run_that_stops_raises_silence_after_fifteen_minutes_and_a_restart_keeps_it(
    tmp_path: Path, batch: BatchOf
) -> None:
    """Not before; once; and its next step resolves it, also in another process."""
    bench = Bench(tmp_path / "data")
    play(bench, batch, range(6))
    bench.clock.advance(800.0)
    bench.pipeline.tick()
    assert told(bench) == []
    bench.clock.advance(100.0)
    bench.pipeline.tick()
    bench.pipeline.tick()
    assert told(bench) == [("silence", "firing", "step")]
    bench.restart()
    bench.pipeline.tick()
    assert told(bench) == [("silence", "firing", "step")]
    play(bench, batch, range(6, 7))
    assert told(bench) == [("silence", "resolved", "step")]
    bench.pipeline.close()


def test_a_service_that_was_away_lets_the_probes_send_what_they_hold(
    tmp_path: Path, batch: BatchOf
) -> None:
    """An hour without the service is no silence of the run, if it comes back within two minutes."""
    for comes_back in (True, False):
        bench = Bench(tmp_path / f"data{comes_back}")
        play(bench, batch, range(6))
        bench.clock.advance(3600.0)
        bench.restart()
        bench.clock.advance(100.0)
        bench.pipeline.tick()
        assert told(bench) == []
        if comes_back:
            play(bench, batch, range(6, 7))
        bench.clock.advance(100.0)
        bench.pipeline.tick()
        assert told(bench) == ([] if comes_back else [("silence", "firing", "step")])
        bench.pipeline.close()


def test_a_run_that_says_it_is_finished_is_left_in_peace(tmp_path: Path, batch: BatchOf) -> None:
    """The event `finished`, also over a restart of the service."""
    bench = Bench(tmp_path / "data")
    play(bench, batch, range(6))
    bench.pipeline.event("r", step=5, kind="finished", fields={})
    bench.restart()
    bench.clock.advance(7200.0)
    bench.pipeline.tick()
    assert told(bench) == []
    bench.pipeline.close()


def test_alerts_of_a_closing_step_are_in_the_outbox_of_every_target(
    tmp_path: Path, batch: BatchOf
) -> None:
    """Written in the same transaction; here silence, which no step brought."""
    targets: list[dict[str, Any]] = [
        {"name": name, "type": "webhook", "url": "http://127.0.0.1:9/"} for name in ("a", "b")
    ]
    bench = Bench(tmp_path / "data", alert_targets=targets)
    play(bench, batch, range(6))
    bench.clock.advance(1000.0)
    bench.pipeline.tick()
    rows = bench.pipeline.database.read("SELECT target FROM outbox WHERE delivered_at IS NULL")
    assert sorted(row["target"] for row in rows) == ["a", "b"]
    bench.pipeline.close()
