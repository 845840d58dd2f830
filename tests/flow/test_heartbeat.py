"""An idle probe and a dead one, told apart by the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from waiting import eventually

from twinscope import Probe
from twinscope_service.cli.doctor import process_findings, service_findings
from twinscope_service.processes import BEAT, FAREWELL, GREETING, MOST_PROCESSES, Processes


def _fields(name: str = "a", *, rank: int | None = None, every_s: float = 60.0) -> dict[str, Any]:
    fields = {"process": name, "pid": 7, "heartbeat_s": every_s}
    return fields if rank is None else {**fields, "rank": rank}


def test_a_process_is_alive_until_it_misses_two_signs_of_life() -> None:
    """Then it is lost; one that said goodbye is closed; one that gives no signs is quiet."""
    processes = Processes()
    processes.hear("r", GREETING, _fields("b", rank=1), at=0.0)
    processes.hear("r", GREETING, _fields("c"), at=0.0)
    processes.hear("r", GREETING, _fields("a", rank=0), at=0.0)
    processes.hear("r", GREETING, _fields("d", every_s=0.0), at=0.0)
    processes.hear("r", BEAT, _fields("a", rank=0), at=120.0)
    processes.hear("r", FAREWELL, _fields("c"), at=130.0)

    found = [heard.as_json(200.0) for heard in processes.of("r")]

    assert [(f["process"], f["state"]) for f in found] == [
        ("a", "alive"), ("b", "lost"), ("d", "quiet"), ("c", "closed"),
    ]  # fmt: skip
    assert found[0]["last_heard_s"] == 80.0
    assert processes.of("another") == ()


@pytest.mark.parametrize(
    "fields",
    [{}, {"process": 7}, {"process": ""}, {"process": "x" * 65}],
)
def test_what_does_not_name_a_process_is_left_alone(fields: dict[str, Any]) -> None:
    """Anybody may post an event of this kind."""
    processes = Processes()
    processes.hear("r", BEAT, fields, at=0.0)

    assert processes.of("r") == ()


def test_fields_of_other_types_are_unknown() -> None:
    """Nothing of them reaches the arithmetic."""
    processes = Processes()
    odd = {"process": "a", "pid": "7", "rank": True, "heartbeat_s": "often"}
    processes.hear("r", BEAT, odd, at=0.0)

    (heard,) = processes.of("r")
    assert (heard.pid, heard.rank, heard.state(1e9)) == (None, None, "quiet")


def test_memory_is_bounded() -> None:
    """The process heard longest ago goes first."""
    processes = Processes()
    for number in range(MOST_PROCESSES + 2):
        processes.hear("r", BEAT, _fields(str(number)), at=float(number))

    names = [heard.process for heard in processes.of("r")]
    assert len(names) == MOST_PROCESSES
    assert names[0] == "2"


def test_the_service_says_when_each_process_was_heard_from(start: Callable[..., Any]) -> None:
    """Over HTTP, from a real probe that sends no data; no sign of life becomes an event."""
    service = start()

    def described() -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{service.url}/v1/runs/idle").json()
        return found

    with Probe(service.url, "idle", heartbeat_s=0.05) as probe:
        assert probe.flush(20)
        greeted = described()["processes"][0]
        since = greeted["last_heard_at"]
        assert eventually(lambda: described()["processes"][0]["last_heard_at"] > since)
        findings = service_findings(service.url, None, "idle")
    after = described()["processes"]
    kinds = [event["kind"] for event in httpx.get(f"{service.url}/v1/runs/idle/events").json()]

    assert greeted["state"] == "alive"
    assert any("1 processes alive" in finding.text for finding in findings)
    assert [process["state"] for process in after] == ["closed"]
    assert kinds == ["probe_attached", "probe_detached"]


def test_doctor_names_the_processes_that_fell_silent() -> None:
    """Bad where none is left; a remark where others live, for it may be of an earlier attempt."""
    processes = Processes()
    processes.hear("r", GREETING, _fields("a", rank=5), at=0.0)
    lost = [heard.as_json(600.0) for heard in processes.of("r")]
    processes.hear("r", GREETING, _fields("b", rank=6), at=590.0)
    both = [heard.as_json(600.0) for heard in processes.of("r")]

    (alone,) = process_findings(lost)
    good, note = process_findings(both)

    assert (alone.mark, alone.text) == ("bad", "pid 7 (rank 5): no sign of life for 600 s")
    assert (good.mark, good.text) == ("good", "1 processes alive, last heard from 10 s ago")
    assert note.mark == "note"
