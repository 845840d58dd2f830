"""`twinscope drill`: the chain proved from outside, by the command that operators use."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import pytest

from twinscope_service.cli import drill, main
from twinscope_service.cli.drill import fitting, read_notifications

from .receivers import receiving


def test_a_drill_proves_the_chain_from_fault_to_receiver(
    start: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A token shift: verdict, alert, and the target was told."""
    with receiving() as receiver:
        targets = [{"name": "ops", "type": "webhook", "url": receiver.url, "retry_first_s": 0.1}]
        service = start(alert_targets=targets)
        status = main(["drill", "--fault", "token_shift", "--url", service.url, "--healthy", "25",
                       "--faulty", "5", "--run", "exercise"])  # fmt: skip
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "ops was told" in shown
    assert ("exercise", "level_shift", "firing") in receiver.told()


def test_the_temperature_drill_ends_with_the_temperature(
    start: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the usual one: the cause, the alert that speaks of the level, where to look."""
    service = start()
    url = service.url
    status = main(["drill", "--url", url, "--healthy", "25", "--faulty", "5", "--run", "a/b"])
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "inconsistent, cause temperature_not_restored" in shown
    assert "rollout_train_kl shifted at step 25" in shown
    assert f"{url}/#/runs/a%2Fb" in shown
    assert [event["kind"] for event in service.get("/v1/runs/a%2Fb/events").json()] == ["finished"]


def test_a_fault_that_stays_within_the_bands_is_a_drill_that_holds(
    start: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Four times the usual level is still an `ok` level: what must not fail is the alert."""
    status = main(["drill", "--fault", "low_precision_logits", "--url", start().url])
    shown = capsys.readouterr().out
    assert status == 0, shown
    assert "the level stays in its band; the alert speaks of the change" in " ".join(shown.split())


def test_a_target_that_does_not_want_the_drill_is_named_at_once_with_its_filter(
    start: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By run: a name that fits; by kind: what it wants. What was counted decides, not the clock."""
    monkeypatch.setattr(drill, "ARRIVAL_S", 1e9)
    with receiving() as receiver:
        post = {"type": "webhook", "url": receiver.url}
        service = start(
            alert_targets=[
                {"name": "prod", "runs": "prod-*", **post},
                {"name": "quiet", "kinds": ["silence"], **post},
            ]
        )
        status = main(["drill", "--fault", "token_shift", "--url", service.url, "--run", "mine",
                       "--healthy", "25", "--faulty", "5"])  # fmt: skip
    shown = " ".join(capsys.readouterr().out.split())
    assert status == 1
    assert "prod wants runs 'prod-*' only, not 'mine'; --run prod-drill-" in shown
    assert "quiet wants silence only, not" in shown
    listed = service.get("/v1/targets").json()
    assert [(target["name"], target["runs"]) for target in listed] == [
        ("prod", "prod-*"),
        ("quiet", "*"),
    ]
    assert receiver.url not in str(listed)


@pytest.mark.parametrize("glob", ["*", "prod-*", "a?c", "[ab]x*-*", "just-one"])
def test_a_name_is_found_that_passes_a_filter(glob: str) -> None:
    """It is what the hint recommends."""
    assert fnmatchcase(str(fitting(glob)), glob)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--fault", "gremlins"], "--fault: got 'gremlins'; give one of"),
        (["--fault", "token_shift", "--healthy", "5"], "--healthy: got 5; the burn-in"),
        (["--fault", "token_shift", "--url", "http://127.0.0.1:9"], "is the service running?"),
    ],
)
def test_a_drill_that_cannot_work_says_why(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown fault, too few steps, no service: exit status 2."""
    assert main(["drill", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_drill_without_the_token_says_what_is_missing(
    start: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """None, and a wrong one: exit status 2, before anything is sent."""
    service = start(token="secret")
    for token in ([], ["--token", "wrong"]):
        assert main(["drill", "--url", service.url, *token]) == 2
        told = capsys.readouterr().err
        assert "GET /metrics: 401" in told
        assert "send Authorization: Bearer TOKEN" in told


def test_the_faults_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and what they do."""
    assert main(["drill", "--list"]) == 0
    assert "token_shift" in capsys.readouterr().out


def test_notifications_are_read_from_the_metrics_page() -> None:
    """Delivered, waiting and not wanted, per target."""
    page = (
        "# TYPE twinscope_notifications counter\n"
        'twinscope_notifications_total{target="a",outcome="delivered"} 3.0\n'
        'twinscope_notifications_total{target="a",outcome="failed"} 9.0\n'
        'twinscope_notifications_total{target="b",outcome="not_wanted"} 4.0\n'
        "# TYPE twinscope_notifications_pending gauge\n"
        'twinscope_notifications_pending{target="a"} 0.0\n'
        'twinscope_notifications_pending{target="b"} 2.0\n'
    )
    assert read_notifications(page) == {"a": (3.0, 0.0, 0.0), "b": (0.0, 2.0, 4.0)}
