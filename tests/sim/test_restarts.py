"""Simulation: random traffic, crashes at every durable point, and books that must balance.

Everything random comes from one seed. A crash stops the pipeline between any two durable
operations; the client then sends again what was not acknowledged, as a probe does.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Sample, body_of, make_samples
from pipelines import Bench

from twinscope_service.views import Receipt

SEEDS = range(int(os.environ.get("TWINSCOPE_SIM_SEEDS", "6")))
STEPS, PER_STEP = 5, 8
DURABLE = ("add_batch", "close_step", "settle")


class Crash(BaseException):
    """The process died here. Not an Exception: nothing in the service may catch it."""


@dataclass
class Tripwire:
    """Stops the process at the `after`-th durable operation from now, before or after doing it."""

    after: int = -1  # never
    done_first: bool = False

    def guard(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        """The operation, with the wire in front of it and behind it."""

        def guarded(*arguments: Any, **named: Any) -> Any:
            self.after -= 1
            if self.after == 0 and not self.done_first:
                raise Crash
            result = operation(*arguments, **named)
            if self.after == 0:
                raise Crash
            return result

        return guarded


@dataclass
class World:
    """The bench under crashes, and what the clients know."""

    bench: Bench
    dice: random.Random
    wire: Tripwire = field(default_factory=Tripwire)
    receipts: dict[str, Receipt] = field(default_factory=dict)  # first acknowledgement by id
    crashes: int = 0

    def __post_init__(self) -> None:
        self._lay_wires()

    def _lay_wires(self) -> None:
        data = self.bench.pipeline._data
        for name in DURABLE:
            setattr(data.store, name, self.wire.guard(getattr(data.store, name)))
        inbox = data.bodies._inbox
        for name in ("put", "remove"):
            setattr(inbox, name, self.wire.guard(getattr(inbox, name)))

    def attempt(self, action: Callable[[], Any]) -> Any:
        """Do something until it does not end in a crash."""
        while True:
            try:
                return action()
            except Crash:
                self.crashes += 1
                self.wire.after = -1
                self.bench.pipeline._data.release()  # what the death of a process does
                self.bench.open()
                self._lay_wires()

    def send(self, name: str, body: bytes) -> None:
        """A probe's batch: sent until it is acknowledged."""
        if self.dice.random() < 0.5:
            self.wire.after = self.dice.randrange(1, 5)
            self.wire.done_first = self.dice.random() < 0.5
        receipt = self.attempt(lambda: self.bench.send(body, batch_id=name))
        self.wire.after = -1
        self.receipts.setdefault(name, receipt)
        assert replace(receipt, duplicate=False) == replace(self.receipts[name], duplicate=False)


def _traffic(dice: random.Random) -> tuple[list[tuple[str, bytes]], dict[int, list[Sample]]]:
    """Batches of all steps, roughly in order, a tenth sent twice; and the samples of each step."""
    posts: list[tuple[float, str, bytes]] = []
    steps: dict[int, list[Sample]] = {}
    for step in range(STEPS):
        made = [replace(s, name=f"{step}/{s.name}") for s in make_samples(100 + step, PER_STEP)]
        steps[step] = made
        for side in ("rollout", "train"):
            shuffled = dice.sample(made, PER_STEP)
            for number, part in enumerate(
                np.array_split(np.arange(PER_STEP), dice.randrange(1, 4))
            ):
                told = step if side == "train" or dice.random() < 0.3 else None
                body = body_of([shuffled[i] for i in part], side, step=told)
                posts.append((step + dice.random() * 1.5, f"{step}-{side}-{number}", body))
    posts += [(at + dice.random(), name, body) for at, name, body in posts if dice.random() < 0.1]
    return [(name, body) for _, name, body in sorted(posts)], steps


@pytest.mark.parametrize("seed", SEEDS)
def test_every_acknowledged_sample_is_counted_once_whatever_crashes(
    seed: int, tmp_path: Path
) -> None:
    """Steps are closed when their traffic is over: every pair must be in its step, once."""
    dice = random.Random(seed)
    world = World(Bench(tmp_path), dice)
    posts, steps = _traffic(dice)
    for name, body in posts:
        world.send(name, body)
        world.bench.clock.advance(dice.random())

    for step, samples in steps.items():
        world.wire.after, world.wire.done_first = dice.randrange(1, 4), dice.random() < 0.5
        view = world.attempt(lambda step=step: world.bench.pipeline.close_step("r", step))  # type: ignore[misc]
        assert (view.samples, view.joined, view.late, view.retokenized) == (
            PER_STEP,
            PER_STEP,
            0,
            0,
        )
        deltas = np.concatenate([s.p.astype(np.float64) - s.q for s in samples])
        assert view.metrics["k1_mean"] == pytest.approx(-deltas.mean(), rel=1e-9)
    world.wire.after = -1
    pipeline = world.bench.restart()
    health = pipeline.health()
    assert world.crashes > 0
    assert (health.waiting_samples, health.open_steps, health.errors) == (0, 0, {})
    assert world.bench.inbox() == []
    assert [view.samples for view in pipeline.steps("r")] == [PER_STEP] * STEPS
    pipeline.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_books_balance_when_steps_close_early_and_time_runs_out(seed: int, tmp_path: Path) -> None:
    """Each side of each sample ends as joined, late, repeated or given up; nothing stays behind."""
    dice = random.Random(1000 + seed)
    world = World(Bench(tmp_path, step_grace_s=2.0, pending_ttl_s=20.0), dice)
    posts, _ = _traffic(dice)
    for name, body in posts:
        world.send(name, body)
        world.bench.clock.advance(dice.random() * 2)
        world.attempt(world.bench.pipeline.tick if dice.random() < 0.5 else lambda: None)
    world.bench.clock.advance(100)
    world.attempt(lambda: world.bench.pipeline.tick())
    world.bench.clock.advance(100)
    world.attempt(lambda: world.bench.pipeline.tick())

    views = world.bench.pipeline.steps("r")
    assert all(view.state == "closed" for view in views)
    assert sum(view.samples for view in views) <= STEPS * PER_STEP
    for view in views:
        train = view.sides["train"].received
        assert view.joined <= min(train, PER_STEP)
        assert view.samples == view.joined
        given_up = sum(view.evicted.values())
        assert view.sides["rollout"].received + train == 2 * view.joined + given_up
    health = world.bench.pipeline.health()
    assert (health.waiting_samples, health.waiting_tokens, health.inbox_bytes) == (0, 0, 0)
    assert world.bench.inbox() == []
    world.bench.pipeline.close()
