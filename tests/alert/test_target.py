"""Settings of alerting: nonsense is refused at start, with the key, the value and the fix."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from twinscope.errors import ConfigError
from twinscope_service.alert.sender import plan_alerts
from twinscope_service.alert.target import parse_targets, parse_windows
from twinscope_service.app import build_app
from twinscope_service.config import load_settings

GOOD = {"name": "ops", "type": "webhook", "url": "https://hooks.example/x"}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({**GOOD, "type": "pigeon"}, r"alert_targets\[0\].type: got 'pigeon'; use one of webhook"),
        ({**GOOD, "url": "ftp://x"}, r"alert_targets\[0\].url: got 'ftp://x'; give an http"),
        ({**GOOD, "url": ""}, r"alert_targets\[0\].url: got ''; every target has"),
        ({"type": "webhook", "url": "http://x"}, r"alert_targets\[0\].name: got None"),
        ({**GOOD, "kinds": ["spikes"]}, r"alert_targets\[0\].kinds: got 'spikes'; use some of"),
        ({**GOOD, "timeout_s": -1}, r"alert_targets\[0\].timeout_s: got -1; give seconds above 0"),
        ({**GOOD, "retry_most_s": True}, r"alert_targets\[0\].retry_most_s: got True"),
        ({**GOOD, "provisional": "no"}, r"alert_targets\[0\].provisional: got 'no'"),
        ({**GOOD, "colour": "red"}, r"alert_targets\[0\].colour: got 'red'; no such key; known:"),
        ({**GOOD, "secret": 5}, r"alert_targets\[0\].secret: got \(not shown\); give a string"),
        ({**GOOD, "kinds": 5}, r"alert_targets\[0\].kinds: got 5; give a list; use some of"),
        ({**GOOD, "kinds": "spike"}, r"alert_targets\[0\].kinds: got 'spike'; give a list"),
        ({**GOOD, "kinds": []}, r"alert_targets\[0\].kinds: got \[\]; give a list"),
        ({**GOOD, "url": "http://[::1/"}, r"alert_targets\[0\].url: got 'http://\[::1/'; give an"),
        ({**GOOD, "url": "http://a:99999/"}, r"alert_targets\[0\].url: got 'http://a:99999/'"),
        ({**GOOD, "url": "http://a b/"}, r"alert_targets\[0\].url: got 'http://a b/'"),
        ({**GOOD, "retry_first_s": 10, "retry_most_s": 5}, r"retry_first_s: got 10; give at most"),
        ({**GOOD, "token": "töken"}, r"alert_targets\[0\].token: got \(not shown\); .* ASCII"),
        ({**GOOD, "name": "a\nb"}, r"alert_targets\[0\].name: got 'a\\nb'; give printable"),
        ("ops", r"alert_targets\[0\]: got 'ops'; give a table"),
    ],
)
def test_an_unusable_target_is_refused(entry: Any, told: str) -> None:
    """One case per rule."""
    with pytest.raises(ConfigError, match=told):
        parse_targets([entry])


def test_two_targets_of_one_name_are_refused() -> None:
    """The name is the key of what was delivered."""
    with pytest.raises(ConfigError, match=r"alert_targets\[1\].name: got 'ops'; give every"):
        parse_targets([GOOD, GOOD])


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({}, r"alert_silences\[0\].end: got None; give an end"),
        ({"end": "tomorrow"}, r"alert_silences\[0\].end: got 'tomorrow'; give ISO 8601"),
        ({"end": "2026-01-01T00:00:00"}, r"alert_silences\[0\].end: .* with an offset"),
        (
            {"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"},
            r"alert_silences\[0\].end: .* the end must be after the start",
        ),
        ({"daily": "22-22"}, r"alert_silences\[0\].daily: got '22-22'; give two different"),
        ({"daily": "late"}, r"alert_silences\[0\].daily: got 'late'"),
        (
            {"daily": "22:00-06:00", "end": "2026-01-01T00:00:00Z"},
            r"end: got .*; give either `daily`",
        ),
        ({"daily": "22:00-06:00", "kinds": ["all"]}, r"alert_silences\[0\].kinds: got 'all'"),
    ],
)
def test_an_unusable_silence_is_refused(entry: Any, told: str) -> None:
    """A window that ends before it begins, or never."""
    with pytest.raises(ConfigError, match=told):
        parse_windows([entry])


def at(hour: int, minute: int = 0) -> float:
    """A time of day, UTC."""
    return datetime(2026, 5, 4, hour, minute, tzinfo=UTC).timestamp()


def test_a_daily_window_may_reach_over_midnight() -> None:
    """22 to 6: open at 23 and 5, closed at 6 and noon."""
    (window,) = parse_windows([{"daily": "22:00-06:00", "runs": "nightly-*"}])
    assert [window.is_open(at(hour)) for hour in (23, 5, 6, 12)] == [True, True, False, False]
    assert window.covers("nightly-1", "spike", ["k3"], now=at(23))
    assert not window.covers("prod", "spike", ["k3"], now=at(23))


def test_a_single_window_is_open_from_start_to_end() -> None:
    """Half open."""
    (window,) = parse_windows([{"start": "2026-05-04T10:00:00Z", "end": "2026-05-04T11:00:00Z"}])
    assert [window.is_open(at(*t)) for t in ((9, 59), (10, 0), (10, 59), (11, 0))] == [
        False, True, True, False,
    ]  # fmt: skip


def test_the_service_refuses_nonsense_before_it_opens_anything(tmp_path: Any) -> None:
    """Targets, silences, the run length and what links begin with, through the settings."""
    bad: list[dict[str, Any]] = [
        {"alert_targets": [{**GOOD, "type": "pigeon"}]},
        {"alert_silences": [{"daily": "x"}]},
        {"detect_target_arl": 1.0},
        {"external_url": "twinscope.example"},
        {"runbook_url": "javascript:alert(1)"},
    ]
    for settings in bad:
        with pytest.raises(ConfigError):
            build_app(load_settings(data_dir=tmp_path / "data", **settings))
    assert not (tmp_path / "data").exists()


def test_an_address_that_apprise_does_not_know_is_refused() -> None:
    """Not at the first alert, months later."""
    pytest.importorskip("apprise")
    target = {"name": "x", "type": "apprise", "url": "nosuchservice://abc"}
    with pytest.raises(ConfigError, match="alert target x: apprise does not know"):
        plan_alerts(load_settings(alert_targets=[target]))
