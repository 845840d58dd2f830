"""A job that starts again under the name of its run, without saying so, is not silently unseen."""

from __future__ import annotations

import pytest
from batches import body_of, make_samples
from pipelines import Bench

from twinscope_service.errors import Conflict

SAMPLES = make_samples(5, 6)
AGAIN = make_samples(6, 6)


def train(bench: Bench, step: int, *, again: bool = False, same_ids: bool = False) -> None:
    """One step of a minute: its data, its close."""
    samples = AGAIN if again else SAMPLES
    tag = "" if same_ids or not again else "again-"
    ids = [f"{tag}{step}-{i}" for i in range(len(samples))]
    bench.clock.advance(60.0)
    bench.send(body_of(samples, "paired", step=step, sample_ids=ids, named=False))
    bench.pipeline.close_step("r", step)
    bench.pipeline.tick()


def alerts(bench: Bench) -> list[tuple[str, str, str]]:
    """(kind, state, message) of the run, newest first."""
    return [(a.kind, a.state, a.message) for a in bench.pipeline.alerts("r")]


def test_a_job_that_starts_again_at_zero_is_told_within_a_few_steps(bench: Bench) -> None:
    """Nothing of it is used, so nothing is judged: silence, with the remedy; which works."""
    for step in range(10):
        train(bench, step)
    for step in range(3):
        assert not alerts(bench)
        train(bench, step, again=True)
    ((kind, state, message),) = alerts(bench)
    assert (kind, state) == ("silence", "firing")
    assert "only data of closed steps come (0 to 2, after step 9)" in message
    assert "event `restart`" in message

    bench.pipeline.event("r", step=3, kind="restart", fields={})
    train(bench, 3, again=True)
    assert alerts(bench)[0][:2] == ("silence", "resolved")


def test_the_same_ids_with_other_values_are_told_as_well(bench: Bench) -> None:
    """Each batch is a conflict then, and the probe drops it."""
    for step in range(10):
        train(bench, step)
    for step in range(3):
        with pytest.raises(Conflict):
            train(bench, step, again=True, same_ids=True)
    bench.pipeline.tick()
    assert alerts(bench)[0][:2] == ("silence", "firing")


def test_a_slow_rank_is_no_job_that_starts_again(bench: Bench) -> None:
    """Its data are late too, but meanwhile steps close."""
    for step in range(10):
        train(bench, step)
    for step in range(5):
        train(bench, step, again=True)
        train(bench, 10 + step)
    assert not alerts(bench)
