"""Samples gathered from an engine's thread: batches of one kind, bounded, nothing lost silently."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from twinscope.guard import Guard
from twinscope.hosts.collector import MOST_SAMPLES, Collector


@dataclass(frozen=True)
class Sample:
    kind: str
    number: int
    tokens: int = 1


def _collector(
    delivered: list[list[Sample]], lost: list[object], *, capacity_tokens: int = 10_000
) -> Collector:
    return Collector(
        delivered.append, lose=lost.append, guard=Guard(raise_errors=False),
        capacity_tokens=capacity_tokens, gather_s=0.01,
    )  # fmt: skip


def test_batches_hold_one_kind_in_order_of_arrival() -> None:
    """Two engines, or two temperatures, never share a batch."""
    delivered: list[list[Sample]] = []
    collector = _collector(delivered, [])

    for number in range(MOST_SAMPLES + 10):
        collector.add(Sample("ab"[number % 2], number))

    assert collector.drain(10)
    assert all(len({sample.kind for sample in batch}) == 1 for batch in delivered)
    for kind in "ab":
        numbers = [s.number for batch in delivered for s in batch if s.kind == kind]
        assert numbers == sorted(numbers)
    assert sum(map(len, delivered)) == MOST_SAMPLES + 10


def test_full_collector_refuses_the_newest_and_says_so() -> None:
    """Memory is bounded in tokens while a delivery hangs; the host's thread does not wait."""
    release, entered = threading.Event(), threading.Event()
    lost: list[object] = []

    def deliver(batch: list[Sample]) -> None:
        entered.set()
        release.wait(10)

    collector = Collector(
        deliver, lose=lost.append, guard=Guard(raise_errors=False), capacity_tokens=10, gather_s=0.0
    )
    collector.add(Sample("a", 0, tokens=6))
    assert entered.wait(10)
    collector.add(Sample("a", 1, tokens=4))
    refused = Sample("a", 2, tokens=1)

    assert not collector.add(refused)
    assert lost == [refused]
    release.set()
    assert collector.drain(10)
    assert collector.add(refused)
    assert collector.drain(10)


def test_what_is_left_when_the_process_ends_is_counted() -> None:
    """A delivery hangs: the exit waits no longer than it may, and what never left is lost."""
    release, entered = threading.Event(), threading.Event()
    lost: list[object] = []

    def deliver(_: list[Sample]) -> None:
        entered.set()
        release.wait(20)

    collector = Collector(
        deliver, lose=lost.append, guard=Guard(raise_errors=False), gather_s=0.0, exit_s=0.05
    )
    collector.add(Sample("a", 0))
    assert entered.wait(10)
    left = [Sample("a", 1), Sample("b", 2)]
    for sample in left:
        collector.add(sample)

    collector.close_at_exit()

    assert lost == left
    release.set()
    assert collector.drain(10)


def test_delivery_that_fails_loses_its_batch_and_nothing_else() -> None:
    """The thread lives on."""
    delivered: list[list[Sample]] = []

    def deliver(batch: list[Sample]) -> None:
        if batch[0].kind == "bad":
            raise ValueError("unreadable")
        delivered.append(batch)

    collector = Collector(deliver, lose=lambda _: None, guard=Guard(), gather_s=0.0)
    collector.add(Sample("bad", 0))
    collector.add(Sample("good", 1))

    assert collector.drain(10)
    collector.add(Sample("good", 2))
    assert collector.drain(10)
    assert [s.number for batch in delivered for s in batch] == [1, 2]
