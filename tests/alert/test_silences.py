"""Silences that people ask for: stored, bounded, ended; by the API and by the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twinscope_service.alert.sender import Alerting, plan_alerts
from twinscope_service.alert.target import KINDS
from twinscope_service.cli import main
from twinscope_service.config import load_settings
from twinscope_service.store.silences import KEEP_ENDED_S, Silence, Silences

from .conftest import Desk, alert
from .receivers import Receiver, receiving

HOUR = 3600.0


def asked(desk: Desk, *, seconds: float = HOUR, **changes: Any) -> Silence:
    """A silence of everything in run `r`, from now on."""
    now = desk.clock.time()
    usual: dict[str, Any] = {
        "id": 0, "run": "r", "runs": "", "kinds": KINDS, "series": "*",
        "start": now, "end": now + seconds,
    }  # fmt: skip
    return Silences(desk.store).add(Silence(**{**usual, **changes}))


def alerting(desk: Desk, receiver: Receiver) -> Alerting:
    """One fast target `ops`, started."""
    target = {"name": "ops", "type": "webhook", "url": receiver.url, "retry_first_s": 0.02}
    started = Alerting(plan_alerts(load_settings(alert_targets=[target])), desk.store,
                       clock=desk.clock)  # fmt: skip
    started.start()
    return started


def test_a_silenced_trouble_is_told_when_the_silence_is_over_and_not_before(desk: Desk) -> None:
    """It still fires; the silence was for an hour."""
    asked(desk)
    with receiving() as receiver:
        desk.say(alert())
        desk.say(alert(), run="other")
        senders = alerting(desk, receiver)
        receiver.wait_for(lambda: len(receiver.told()) == 1)
        senders.tick()
        assert receiver.told() == [("other", "level_shift", "firing")]
        desk.clock.advance(HOUR)
        senders.tick()
        receiver.wait_for(lambda: len(receiver.told()) == 2)
        senders.close()
    assert receiver.told()[1] == ("r", "level_shift", "firing")
    first = receiver.accepted[1].document["alerts"][0]
    assert not first["twinscope"]["reminder"]  # of what nobody was told yet
    assert first["annotations"]["summary"].startswith("[firing] r")


def test_the_end_of_a_silenced_trouble_is_told(desk: Desk) -> None:
    """Whoever heard of it and asked for peace wants to know that it is over; a spike that comes and
    goes meanwhile is no news."""
    with receiving() as receiver:
        desk.say(alert())
        senders = alerting(desk, receiver)
        receiver.wait_for(lambda: len(receiver.told()) == 1)
        asked(desk)
        desk.say(alert(kind="spike"))
        desk.say(alert("resolved", kind="spike"))
        desk.say(alert("resolved"))
        receiver.wait_for(lambda: len(receiver.told()) == 2)
        senders.close()
    assert receiver.told() == [("r", "level_shift", state) for state in ("firing", "resolved")]


@pytest.mark.parametrize(
    ("changes", "silenced"),
    [
        ({}, True),
        ({"run": "another"}, False),
        ({"run": None, "runs": "r*"}, True),
        ({"run": "r*"}, False),  # a name, not a glob
        ({"kinds": ("spike",)}, False),
        ({"series": "k3*"}, False),  # abs_p99 fires too
        ({"series": "*"}, True),
        ({"end": 0.0}, False),
    ],
)
def test_a_silence_covers_what_it_names(
    desk: Desk, changes: dict[str, Any], silenced: bool
) -> None:
    """Run, kind, series, time; news of two series is silenced if both are."""
    made = asked(desk, **changes)
    assert made.covers("r", "level_shift", ["k3", "abs_p99"], now=desk.clock.time()) == silenced


def test_silences_outlive_a_restart_and_are_forgotten_a_week_after_their_end(desk: Desk) -> None:
    """They are in the database."""
    made = asked(desk)
    desk.reopen()
    book = Silences(desk.store)
    assert book.open(now=desk.clock.time()) == [made]
    book.end(made.id, now=desk.clock.time() + 1.0)
    assert book.open(now=desk.clock.time() + 2.0) == []
    book.forget(now=desk.clock.time() + KEEP_ENDED_S)
    assert book.find(made.id).end == desk.clock.time() + 1.0
    book.forget(now=desk.clock.time() + KEEP_ENDED_S + 2.0)
    assert not desk.store.read("SELECT id FROM silences")


# ---- over HTTP, and by the command


def test_a_silence_is_asked_for_listed_and_ended_over_http(start: Callable[..., Any]) -> None:
    """201, then in the list, then not."""
    service = start()
    answer = service.post("/v1/silences", json={"run": "grpo", "seconds": 60, "reason": "known"})
    made = answer.json()
    assert answer.status_code == 201
    assert made["kinds"] == list(KINDS)
    assert made["end"] - made["start"] == 60.0
    assert [one["id"] for one in service.get("/v1/silences").json()] == [made["id"]]
    assert service.get("/v1/silences?run=other").json() == []
    for _ in range(2):
        assert service.delete(f"/v1/silences/{made['id']}").status_code == 200
    assert service.get("/v1/silences").json() == []
    missing = service.delete("/v1/silences/99")
    assert (missing.status_code, missing.json()["fix"]) == (404, "GET /v1/silences lists them")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"seconds": 60}, "give either run"),
        ({"run": "a", "runs": "a*", "seconds": 60}, "give either run"),
        ({"run": "a"}, "seconds"),
        ({"run": "a", "seconds": 0}, "seconds: Input should be greater than 0"),
        ({"run": "a", "seconds": 1e9}, "seconds: Input should be less than or equal to 2592000"),
        ({"run": "a", "seconds": 60, "kinds": ["noise"]}, "use some of spike"),
        ({"run": "a", "seconds": 60, "kinds": []}, "kinds"),
        ({"run": "a", "seconds": 60, "colour": "red"}, "colour"),
    ],
)
def test_an_unusable_silence_is_refused(
    start: Callable[..., Any], body: dict[str, Any], told: str
) -> None:
    """422, with the field and the fix; for ever is not possible."""
    answer = start().post("/v1/silences", json=body)
    assert answer.status_code == 422
    assert told in answer.text


def test_the_token_of_a_run_silences_that_run_only(start: Callable[..., Any]) -> None:
    """As it may send data of that run only."""
    service = start(token="secret", run_tokens={"mine": "key"})
    mine, all_of_it = ({"authorization": f"Bearer {token}"} for token in ("key", "secret"))

    def post(headers: dict[str, str], **body: Any) -> Any:
        return service.post("/v1/silences", json={**body, "seconds": 60}, headers=headers)

    assert service.post("/v1/silences", json={"run": "mine", "seconds": 60}).status_code == 401
    assert post(mine, run="mine").status_code == 201
    assert post(mine, run="other").status_code == 403
    assert post(mine, runs="mine").status_code == 403
    other = post(all_of_it, runs="*").json()
    assert [one["run"] for one in service.get("/v1/silences", headers=mine).json()] == ["mine"]
    refused = service.delete(f"/v1/silences/{other['id']}", headers=mine)
    assert refused.status_code == 403


def test_the_command_silences_lists_and_ends(
    start: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """What a person types at night."""
    at = ["--url", start().url]
    assert main(["silence", "grpo", "--for", "2h", "--reason", "new engine", *at]) == 0
    told = capsys.readouterr()
    assert "grpo, spike level_shift growth silence bypass inconsistent, until " in told.out
    assert "no run 'grpo' is known yet" in told.err
    assert main(["silence", "--runs", "nightly-*", "--kinds", "growth", *at]) == 0
    assert main(["silence", "--end", "2", *at]) == 0
    assert main(["silence", "--list", *at]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "1 open"
    assert shown[-2].endswith(": new engine")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["grpo", "--for", "soon"], "--for: got 'soon'; give a number and s, m, h or d"),
        (["grpo", "--for", "40d"], "--for: got '40d'; give more than nothing and at most 30d"),
        (["grpo", "--for", "0h"], "--for: got '0h'; give more than nothing and at most 30d"),
        (["--end", "7"], "no silence 7; GET /v1/silences lists them"),
        (["grpo", "--kinds", "noise"], "kinds.0: got 'noise'; use some of spike"),
    ],
)
def test_a_silence_that_cannot_be_says_why(
    start: Callable[..., Any],
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 2; nothing is said twice."""
    assert main(["silence", *arguments, "--url", start().url]) == 2
    said = capsys.readouterr().err
    assert said.count(told) == 1
    assert len(set(said.split("; "))) == len(said.split("; "))
