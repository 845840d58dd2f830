"""Delivery: at least once, in order, signed, and no target hurts another."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from twinscope_service.alert.delivery import Undelivered
from twinscope_service.alert.sender import REFUSALS, Alerting, plan_alerts
from twinscope_service.alert.signature import verify
from twinscope_service.alert.text import Noticed
from twinscope_service.config import load_settings

from .conftest import TEMPERATURE, Desk, alert
from .receivers import Receiver, receiving

FAST = {"retry_first_s": 0.02, "retry_most_s": 0.1, "timeout_s": 5.0}


def targets_of(receiver: Receiver, **changes: Any) -> list[dict[str, Any]]:
    """One fast target `ops`."""
    return [{"name": "ops", "type": "webhook", "url": receiver.url, **FAST, **changes}]


def alerting(desk: Desk, targets: list[dict[str, Any]], **settings: Any) -> Alerting:
    """The senders of a store, started."""
    plan = plan_alerts(load_settings(alert_targets=targets, external_url="http://ts", **settings))
    started = Alerting(plan, desk.store, clock=desk.clock)
    started.start()
    return started


def test_a_webhook_gets_the_alertmanager_shape_with_our_block_and_a_valid_signature(
    desk: Desk,
) -> None:
    """Version 4, status, labels, text, and the numbers."""
    with receiving() as receiver:
        desk.say(alert(causes=(TEMPERATURE["cause"],)), diagnosis=[TEMPERATURE])
        senders = alerting(desk, targets_of(receiver, secret="s3cret", token="t"))
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        senders.close()
    got = receiver.accepted[0]
    document = got.document
    assert document["version"] == "4"
    assert document["status"] == "firing"
    assert document["receiver"] == "ops"
    assert document["groupLabels"] == {"run": "r"}
    (one,) = document["alerts"]
    assert one["labels"] == {
        "alertname": "TwinScopeLevelShift", "cause": "temperature_not_restored",
        "kind": "level_shift", "run": "r", "severity": "critical",
    }  # fmt: skip
    assert one["endsAt"] == "0001-01-01T00:00:00Z"
    assert one["startsAt"].endswith("Z")
    assert one["twinscope"]["before"] == 1e-4
    assert one["twinscope"]["ratio"] == 20.0
    assert one["twinscope"]["causes"][0]["cause"] == "temperature_not_restored"
    assert one["twinscope"]["links"]["run"] == "http://ts/#/runs/r"
    text = one["annotations"]["description"]
    assert "k3 shifted at step 100" in text
    assert "Likely cause: temperature_not_restored (93%)" in text
    assert "Do: divide the logits" in text
    runbook = "http://ts/#/runbooks/temperature_not_restored"
    assert one["annotations"]["runbook_url"] == one["twinscope"]["links"]["runbook"] == runbook
    assert got.headers["Authorization"] == "Bearer t"
    stamp, signature = got.headers["X-TwinScope-Timestamp"], got.headers["X-TwinScope-Signature"]
    now = desk.clock.time()
    assert verify("s3cret", got.body, timestamp=stamp, signature=signature, now=now)
    assert not verify("other", got.body, timestamp=stamp, signature=signature, now=now)
    assert not verify("s3cret", got.body + b" ", timestamp=stamp, signature=signature, now=now)
    assert not verify("s3cret", got.body, timestamp=stamp, signature=signature, now=now + 301)


def test_a_target_that_fails_for_long_and_recovers_gets_everything_in_order(desk: Desk) -> None:
    """Status 500 for twenty attempts; ten runs' alerts begin and end meanwhile."""
    runs = [f"run{i}" for i in range(10)]
    with receiving(lambda n: 500 if n < 20 else 200) as receiver:
        senders = alerting(desk, targets_of(receiver))
        for run in runs:
            desk.say(alert(), run=run)
            desk.say(alert("resolved"), run=run)
        receiver.wait_for(lambda: len(receiver.told()) == 20)
        senders.close()
    expected = [(run, "level_shift", state) for run in runs for state in ("firing", "resolved")]
    assert receiver.told() == expected
    assert senders.outcomes["ops", "failed"] == 20
    assert senders.pending() == {"ops": 0}


def test_a_target_may_have_a_name_in_any_script(desk: Desk) -> None:
    """Headers take ASCII only: the delivery id is percent-encoded."""
    desk = Desk(desk.path.with_name("named.sqlite"), ["运维"])
    with receiving() as receiver:
        desk.say(alert())
        senders = alerting(desk, targets_of(receiver, name="运维"))
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        senders.close()
    desk.store.close()
    assert receiver.accepted[0].headers["X-TwinScope-Delivery"] == "%E8%BF%90%E7%BB%B4-1"


class Stumbling:
    """A library that raises something of its own twice, then delivers."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.told = threading.Event()

    def __call__(self, group: Sequence[Noticed], delivery: str, now: float) -> None:
        self.tried.append(delivery)
        if len(self.tried) < 3:
            raise TypeError("not expected by anybody")
        self.told.set()

    def close(self) -> None:
        """It holds nothing."""


def test_an_error_that_nobody_foresaw_does_not_end_a_sender(desk: Desk) -> None:
    """The alert is tried again, and what comes after it is sent too."""
    deliver = Stumbling()
    target = {"name": "ops", "type": "webhook", "url": "http://127.0.0.1:9/", **FAST}
    plan = plan_alerts(load_settings(alert_targets=[target]))
    senders = Alerting(replace(plan, deliveries=(deliver,)), desk.store, clock=desk.clock)
    desk.say(alert())
    senders.start()
    assert deliver.told.wait(60)
    senders.close()
    assert deliver.tried == ["ops-1"] * 3
    assert senders.outcomes["ops", "failed"] == 2
    assert senders.outcomes["ops", "delivered"] == 1


def test_a_target_that_refuses_connections_is_tried_until_it_listens(desk: Desk) -> None:
    """The port opens only after some attempts."""
    with receiving() as reserved:
        port = reserved.port
    url = f"http://127.0.0.1:{port}/hook"
    desk.say(alert())
    senders = alerting(desk, [{"name": "ops", "type": "webhook", "url": url, **FAST}])
    deadline = time.monotonic() + 60.0
    while not senders.outcomes["ops", "failed"]:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    with receiving(port=port) as receiver:
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
    senders.close()
    assert receiver.told() == [("r", "level_shift", "firing")]


def test_a_target_that_hangs_delays_no_other_target(make_desk: Callable[..., Desk]) -> None:
    """One never answers; the other is told everything meanwhile."""
    desk, release = make_desk(["hangs", "works"]), threading.Event()

    def hang(n: int) -> int:
        release.wait(60.0)
        return 200

    with receiving(hang) as hanging, receiving() as working:
        targets = [
            {"name": "hangs", "type": "webhook", "url": hanging.url, **FAST, "timeout_s": 60.0},
            {"name": "works", "type": "webhook", "url": working.url, **FAST},
        ]
        senders = alerting(desk, targets)
        for i in range(20):
            desk.say(alert(), run=f"run{i}")
        working.wait_for(lambda: len(working.told()) == 20)
        assert not hanging.accepted
        release.set()
        hanging.wait_for(lambda: len(hanging.told()) == 20)
        senders.close()


def test_what_a_dead_process_left_is_sent_by_the_next_one(desk: Desk) -> None:
    """Stored, never sent; the store is opened again."""
    desk.say(alert())
    desk.reopen()
    with receiving() as receiver:
        senders = alerting(desk, targets_of(receiver))
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        senders.close()


def test_news_that_a_receiver_calls_wrong_is_given_up_after_ten_attempts_and_counted(
    desk: Desk,
) -> None:
    """Status 422 for the first body; the next one is not held up for ever."""
    wrong = {"count": 0}

    def answer(n: int) -> int:
        wrong["count"] += 1
        return 422 if wrong["count"] <= 10 else 200

    with receiving(answer) as receiver:
        desk.say(alert(), run="first")
        senders = alerting(desk, targets_of(receiver))
        receiver.wait_for(lambda: receiver.seen >= 10)
        desk.say(alert(), run="second")
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        senders.close()
    assert receiver.told() == [("second", "level_shift", "firing")]
    assert senders.outcomes["ops", "refused"] == 1


def test_what_joins_a_refused_body_is_not_given_up_with_it(desk: Desk) -> None:
    """Two news of one run go together; only the first was refused ten times."""
    with receiving(lambda n: 422 if n < 11 else 200) as receiver:
        desk.say(alert())
        plan = plan_alerts(load_settings(alert_targets=targets_of(receiver)))
        senders = Alerting(plan, desk.store, clock=desk.clock)
        (sender,) = senders.senders
        for _ in range(REFUSALS - 1):
            sender.send_next()
        desk.say(alert(kind="silence", series="rollout"))
        for _ in range(3):
            sender.send_next()
    assert receiver.told() == [("r", "silence", "firing")]
    assert senders.outcomes["ops", "refused"] == 1


def test_more_news_in_a_message_make_it_another_delivery(desk: Desk) -> None:
    """A receiver that took the first attempt, unheard, must not pass over what joined since."""
    ids: list[tuple[str, int]] = []

    def deliver(group: Sequence[Noticed], delivery: str, now: float) -> None:
        ids.append((delivery, len(group)))
        if len(ids) < 4:
            raise Undelivered("its answer was lost")

    target = {"name": "ops", "type": "webhook", "url": "http://127.0.0.1:9/", **FAST}
    plan = plan_alerts(load_settings(alert_targets=[target]))
    senders = Alerting(replace(plan, deliveries=(deliver,)), desk.store, clock=desk.clock)  # type: ignore[arg-type]
    (sender,) = senders.senders
    desk.say(alert())
    sender.send_next()
    sender.send_next()
    desk.say(alert(kind="silence", series="rollout"))
    sender.send_next()
    sender.send_next()
    assert ids == [("ops-1", 1), ("ops-1", 1), ("ops-1-2", 2), ("ops-1-2", 2)]


def test_every_attempt_carries_the_same_delivery_id(desk: Desk) -> None:
    """At least once means that receivers must be able to tell a repetition."""
    ids: list[str] = []
    with receiving(lambda n: 503 if n < 3 else 200) as receiver:
        take = receiver.take
        receiver.take = lambda d: (ids.append(d.headers["X-TwinScope-Delivery"]), take(d))[1]  # type: ignore[method-assign]
        desk.say(alert())
        senders = alerting(desk, targets_of(receiver))
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        senders.close()
    assert len(ids) == 4
    assert len(set(ids)) == 1


def test_news_of_one_step_and_run_is_one_message(desk: Desk) -> None:
    """Grouped by run; a second piece of news of the same notice comes in the next message."""
    desk.say(alert(), alert(kind="spike"))
    desk.say(alert("resolved", kind="spike"))
    with receiving() as receiver:
        senders = alerting(desk, targets_of(receiver))
        receiver.wait_for(lambda: len(receiver.told()) == 3)
        senders.close()
    assert [len(d.document["alerts"]) for d in receiver.accepted] == [2, 1]


def test_a_target_gets_only_the_runs_kinds_and_states_it_wants(desk: Desk) -> None:
    """The others are settled, not kept."""
    with receiving() as receiver:
        wanted = targets_of(receiver, runs="prod-*", kinds=["level_shift"], provisional=False)
        senders = alerting(desk, wanted)
        desk.say(alert("provisional"), alert(kind="spike"), run="prod-1")
        desk.say(alert(), run="test-1")
        desk.say(alert(), run="prod-1")
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        senders.close()
    assert receiver.told() == [("prod-1", "level_shift", "firing")]
    assert senders.pending() == {"ops": 0}


def test_the_end_of_what_was_never_told_is_not_told_either(desk: Desk) -> None:
    """A doubt that only others want, and a trouble that begins and ends in a silence."""
    window = {"runs": "noisy", "end": "2100-01-01T00:00:00+00:00"}
    with receiving() as receiver:
        wanted = targets_of(receiver, provisional=False)
        senders = alerting(desk, wanted, alert_silences=[window])
        desk.say(alert("provisional"), run="doubt")
        desk.say(alert("resolved"), run="doubt")
        desk.say(alert(), run="noisy")
        desk.say(alert("resolved"), run="noisy")
        desk.say(alert(), run="clear")
        desk.say(alert("resolved"), run="clear")
        receiver.wait_for(lambda: len(receiver.accepted) == 2)
        senders.close()
    assert receiver.told() == [("clear", "level_shift", s) for s in ("firing", "resolved")]
    assert senders.outcomes["ops", "not_wanted"] == 3


def test_nobody_is_told_while_a_silence_window_is_open(desk: Desk) -> None:
    """A window for one run; another run is not silenced. The end of a trouble is always told."""
    window = {"runs": "noisy", "end": "2100-01-01T00:00:00+00:00"}
    with receiving() as receiver:
        senders = alerting(desk, targets_of(receiver), alert_silences=[window])
        desk.say(alert(), run="noisy")
        desk.say(alert(), run="other")
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        senders.tick()
        senders.close()
    assert receiver.told() == [("other", "level_shift", "firing")]
    assert senders.outcomes["ops", "silenced"] == 1


def test_a_reminder_says_so(desk: Desk) -> None:
    """After the repeat time, while it fires."""
    with receiving() as receiver:
        senders = alerting(desk, targets_of(receiver), alert_repeat_s=3600.0)
        desk.say(alert())
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        desk.clock.advance(3601.0)
        senders.tick()
        receiver.wait_for(lambda: len(receiver.accepted) == 2)
        senders.close()
    again = receiver.accepted[1].document["alerts"][0]
    assert again["twinscope"]["reminder"]
    assert again["annotations"]["summary"].startswith("[firing, still]")
    assert again["fingerprint"] == receiver.accepted[0].document["alerts"][0]["fingerprint"]


def test_alertmanager_gets_its_own_api_with_an_end_that_lies_beyond_the_next_reminder(
    desk: Desk,
) -> None:
    """POST /api/v2/alerts: a list; resolved by its end."""
    with receiving() as receiver:
        base = receiver.url.removesuffix("/hook")
        target = {"name": "ops", "type": "alertmanager", "url": base + "/", **FAST}
        senders = alerting(desk, [target])
        desk.say(alert())
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        desk.say(alert("resolved"))
        receiver.wait_for(lambda: len(receiver.accepted) == 2)
        senders.close()
    firing, resolved = (d.document[0] for d in receiver.accepted)
    assert receiver.accepted[0].path == "/api/v2/alerts"
    assert firing["labels"] == resolved["labels"]
    assert firing["startsAt"] == resolved["startsAt"]
    assert firing["endsAt"] > resolved["endsAt"] > firing["startsAt"]


def test_apprise_reaches_its_services_with_title_and_text(desk: Desk) -> None:
    """Through its own JSON plugin, to a local receiver."""
    pytest.importorskip("apprise")
    with receiving() as receiver:
        url = f"json://127.0.0.1:{receiver.port}/hook"
        senders = alerting(desk, [{"name": "ops", "type": "apprise", "url": url, **FAST}])
        desk.say(alert())
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        senders.close()
    document = json.loads(receiver.accepted[0].body)
    headline = "rollout and trainer differ more than before, x20 since step 100"
    assert document["title"] == f"[firing] r: {headline}"
    assert "k3 shifted at step 100" in document["message"]


def test_markup_in_a_run_name_reaches_a_reader_of_html_as_text(desk: Desk) -> None:
    """A service whose messages are HTML is sent the name escaped; its own lines stay lines."""
    pytest.importorskip("apprise")
    hostile = '<img src=x onerror="hit()">'
    with receiving() as receiver:
        url = f"json://127.0.0.1:{receiver.port}/hook?format=html"
        senders = alerting(desk, [{"name": "ops", "type": "apprise", "url": url, **FAST}])
        desk.say(alert(), run=hostile)
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        senders.close()
    document = json.loads(receiver.accepted[0].body)
    assert "<img" not in document["message"]
    assert "&lt;img" in document["message"]


def test_no_answer_body_is_ever_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that sends gigabytes costs nothing."""

    def never(self: httpx.Response) -> bytes:
        raise AssertionError("the body was read")

    monkeypatch.setattr(httpx.Response, "read", never)
    with receiving() as receiver:
        senders = alerting(desk, targets_of(receiver))
        desk.say(alert())
        receiver.wait_for(lambda: len(receiver.accepted) == 1)
        senders.close()
    assert senders.outcomes["ops", "delivered"] == 1
