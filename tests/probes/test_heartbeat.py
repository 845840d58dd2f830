"""Signs of life: on time, without data, outside the books, and never in the way."""

from __future__ import annotations

import os

import pytest
from moving_clock import MovingClock
from waiting import eventually

from twinscope import Probe
from twinscope.answers import Answer
from twinscope.items import Post
from twinscope.testing import ACCEPTED, InMemorySink


def _look_again(probe: Probe) -> None:
    """The sending thread waits in real seconds: have it read the clock now."""
    assert probe.flush(10)


def test_an_idle_process_is_heard_from_every_minute() -> None:
    """By the name of its greeting; twice within a minute says nothing new."""
    clock, sink = MovingClock(), InMemorySink()
    environment = {"RANK": "3"}
    with Probe(sink=sink, clock=clock, environment=environment) as probe:
        _look_again(probe)
        clock.now += 59
        _look_again(probe)
        assert sink.events("probe_alive") == []
        for minute in (1, 2):
            clock.now += 60
            _look_again(probe)
            assert eventually(lambda: len(sink.events("probe_alive")) == minute)  # noqa: B023
        _look_again(probe)

    (greeting,) = sink.events("probe_attached")
    first, second = (event["fields"] for event in sink.events("probe_alive"))
    assert first == second
    assert first["process"] == greeting["fields"]["process"]
    assert (first["pid"], first["rank"], first["heartbeat_s"]) == (os.getpid(), 3, 60.0)
    (farewell,) = sink.events("probe_detached")
    assert farewell["fields"]["process"] == first["process"]


def test_signs_of_life_are_not_in_the_books() -> None:
    """Captured is what the host gave; a lost sign of life is no loss."""
    clock = MovingClock()
    tried: list[bytes] = []

    def answer(post: Post) -> Answer:
        body = b"".join(post.pieces)
        if b"probe_alive" not in body:
            return ACCEPTED
        tried.append(body)
        return Answer("failed", 503)

    with Probe(sink=InMemorySink(answer), clock=clock) as probe:
        _look_again(probe)
        before = probe.stats()
        clock.now += 61
        _look_again(probe)
        assert eventually(lambda: len(tried) == 1)
        assert probe.flush(10)  # nothing waits for it
        probe.event("weight_sync")
        assert probe.flush(10)  # and nothing is held up by it
        after = probe.stats()

    assert after.captured.messages == before.captured.messages + 1
    assert (after.retries, after.dropped, after.errors) == (0, {}, {})
    assert after.balanced
    assert len(tried) == 1  # not tried again


def test_zero_switches_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """TWINSCOPE_HEARTBEAT_S=0: the greeting at the start, and no more."""
    monkeypatch.setenv("TWINSCOPE_HEARTBEAT_S", "0")
    clock, sink = MovingClock(), InMemorySink()
    with Probe(sink=sink, clock=clock) as probe:
        _look_again(probe)
        clock.now += 1e5
        probe.event("weight_sync")
        _look_again(probe)

    assert sink.events("probe_alive") == []
    assert sink.events("probe_attached")[0]["fields"]["heartbeat_s"] == 0


def test_a_real_second_passes_without_anybody_calling() -> None:
    """The sending thread wakes up by itself, on the machine's clock."""
    sink = InMemorySink()
    with Probe(sink=sink, heartbeat_s=0.05):
        assert eventually(lambda: len(sink.events("probe_alive")) >= 3)


def test_a_service_that_is_away_is_asked_to_take_the_data_first() -> None:
    """Due for an hour, a sign of life does not go before what waits."""
    clock = MovingClock()
    kinds: list[bool] = []

    def answer(post: Post) -> Answer:
        kinds.append(b"probe_alive" in b"".join(post.pieces))
        return Answer("unreachable")

    probe = Probe(sink=InMemorySink(answer), clock=clock)
    for attempts in range(1, 4):
        assert not probe.flush(0.0)
        assert eventually(lambda: len(kinds) >= attempts)  # noqa: B023
        clock.now += 3600
    probe.close(timeout=0.2)

    assert kinds[:3] == [False] * 3
    assert not any(kinds)
