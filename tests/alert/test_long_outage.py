"""A target that answers 500 for an hour of virtual time, while a run goes wrong and recovers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from twinscope.wire.codec import decode, encode_batch
from twinscope_service import replay
from twinscope_service.alert.sender import Sender, plan_alerts
from twinscope_service.clock import ManualClock
from twinscope_service.config import load_settings
from twinscope_service.pipeline import Pipeline, open_pipeline
from twinscope_service.store.outbox import Outbox

from .faulty_run import FAULTY, HEALTHY
from .receivers import receiving

HOUR, STEP_S = 3600.0, 60.0
PLAN = [(HEALTHY, 25), (FAULTY, 6), (HEALTHY, 25), (FAULTY, 6), (HEALTHY, 25)]


def steps() -> Iterator[tuple[int, bytes]]:
    """(step, body of its batch): wrong twice, and back each time."""
    batches = [replay.recording(name) for name, count in PLAN for _ in range(count)]
    for batch in replay.steps(batches, run="grpo", samples_per_step=16, seed=1):
        assert batch.step is not None
        yield batch.step, b"".join(bytes(piece) for piece in encode_batch(batch))


class Trainer:
    """One step a minute to every pipeline, each closed after its data."""

    def __init__(self, pipelines: Sequence[Pipeline], clock: ManualClock) -> None:
        self._pipelines, self._clock = pipelines, clock
        self._stream, self._due = steps(), clock.time()
        self.finished = False

    def catch_up(self) -> None:
        """What is due by now. Every sample is joined at once, whatever the target does."""
        while self._due <= self._clock.time() and not self.finished:
            self._due += STEP_S
            step, body = next(self._stream, (-1, b""))
            self.finished = step < 0
            for pipeline in self._pipelines if body else ():
                receipt = pipeline.ingest(body, decode(body), batch_id=None)
                assert receipt.joined == receipt.samples == 16
                pipeline.close_step("grpo", step)


def test_an_hour_of_refusals_loses_nothing_keeps_the_order_and_does_not_touch_ingest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender waits by the clock, longer and longer; its answers are real ones over HTTP."""
    monkeypatch.setattr("twinscope_service.alert.sender.random.uniform", lambda low, high: high)
    clock, attempts = ManualClock(), list[float]()

    def answer(n: int) -> int:
        attempts.append(clock.time())
        return 500 if clock.time() < attempts[0] + HOUR else 200

    with receiving(answer) as receiver:
        told = load_settings(
            data_dir=tmp_path / "told",
            alert_targets=[{"name": "ops", "type": "webhook", "url": receiver.url}],
        )
        alone = load_settings(data_dir=tmp_path / "alone")
        with (
            closing(open_pipeline(told, clock=clock)) as pipeline,
            closing(open_pipeline(alone, clock=clock)) as untold,
        ):
            trainer, outbox = Trainer([pipeline, untold], clock), Outbox(pipeline.database, ["ops"])
            plan = plan_alerts(told)
            sender = Sender(
                plan.targets[0], plan.deliveries[0], outbox, clock=clock,
                stop=threading.Event(), count=lambda *_: None, muted=lambda news: False,
            )  # fmt: skip
            while not trainer.finished or outbox.pending()["ops"]:
                trainer.catch_up()
                clock.advance(sender.send_next())
            plan.deliveries[0].close()
            stored = pipeline.database.read("SELECT news FROM outbox ORDER BY id")
            views = [[view.as_json() for view in p.steps("grpo")] for p in (pipeline, untold)]
    refused = [at for at in attempts if at < attempts[0] + HOUR]
    waits = [later - earlier for earlier, later in pairwise(refused)]
    assert waits[:10] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0]
    assert waits[9:] == [300.0] * len(waits[9:])
    assert sum(waits) > HOUR - 300.0
    expected = [key(json.loads(row["news"])) for row in stored]
    assert receiver.told() == expected
    assert [state for _, kind, state in expected if kind == "level_shift"].count("resolved") == 2
    assert views[0] == views[1]
    assert len(views[0]) == sum(count for _, count in PLAN)


def key(news: dict[str, Any]) -> tuple[str, str, str]:
    """As a receiver tells it."""
    return news["run"], news["kind"], news["state"]
