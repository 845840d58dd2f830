"""From alerts to news: one notice per trouble, one row per target, in the same transaction."""

from __future__ import annotations

from typing import Any

from twinscope_service.alert import payload, text
from twinscope_service.store.outbox import Outbox, OutboxRow
from twinscope_service.views import AlertView

from .conftest import TEMPERATURE, Desk, alert


def told(outbox: Outbox, target: str = "ops") -> list[tuple[str, str, str, list[str]]]:
    """(run, kind, state, series) of what waits."""
    return [
        (row.run, row.news["kind"], row.news["state"], row.news["series"])
        for row in outbox.due(target)
    ]


def test_a_trouble_is_told_when_it_begins_when_it_is_confirmed_and_when_it_ends(desk: Desk) -> None:
    """Three pieces of news of one notice; nothing for the steps between."""
    desk.say(alert("provisional"))
    desk.say(alert())
    for _ in range(500):
        desk.say()
    desk.say(alert("resolved"))
    outbox = Outbox(desk.store, ["ops"])
    assert [state for _, _, state, _ in told(outbox)] == ["provisional", "firing", "resolved"]
    assert len({row.notice for row in outbox.due("ops")}) == 1


def test_several_series_of_one_trouble_are_one_notice(desk: Desk) -> None:
    """k3, its median and its tail shift in the same step, and end one by one."""
    series = ("k3", "abs_p50", "abs_p99")
    desk.say(*(alert(series=name) for name in series), diagnosis=[TEMPERATURE])
    desk.say(alert("resolved", series="k3"))
    desk.say(alert("resolved", series="abs_p50"))
    desk.say(alert("resolved", series="abs_p99"))
    states = [(state, names) for _, _, state, names in told(Outbox(desk.store, ["ops"]))]
    assert states[0] == ("firing", ["k3", "abs_p99", "abs_p50"])
    assert [state for state, _ in states] == ["firing", "resolved"]


def test_the_mismatch_itself_speaks_for_what_moves_with_it(desk: Desk) -> None:
    """Whatever moved first: k3 leads as soon as it fires, the others are quoted beside it."""
    desk.say(alert(series="zero_train_share", ratio=5.0))
    desk.say(alert(series="k3"))
    first, second = (row.news for row in Outbox(desk.store, ["ops"]).due("ops"))
    assert (first["alert"]["series"], first["also"]) == ("zero_train_share", [])
    assert second["alert"]["series"] == "k3"
    assert [(one["series"], one["ratio"]) for one in second["also"]] == [("zero_train_share", 5.0)]


def test_one_more_series_of_a_trouble_that_was_told_wakes_nobody(desk: Desk) -> None:
    """It is in the next reminder. A further shift of what was firing is news."""
    desk.say(alert(series="k3"))
    desk.say(alert(series="abs_p50"))
    desk.say(alert("resolved", series="abs_p50"))
    desk.say(alert(series="zero_train_share"))
    outbox = Outbox(desk.store, ["ops"])
    assert len(outbox.due("ops")) == 1
    desk.say(alert(series="k3", after=8e-3, ratio=80.0))
    assert [row.news["alert"]["ratio"] for row in outbox.due("ops")] == [20.0, 80.0]
    settle_all(outbox, desk.clock.time())
    desk.clock.advance(3600.0)
    outbox.remind(now=desk.clock.time(), repeat_s=3600.0, muted=lambda news: False)
    assert outbox.due("ops")[0].news["series"] == ["k3", "zero_train_share"]


def spike(series: str, state: str = "firing") -> AlertView:
    """One batch of one series."""
    return alert(state, series=series, kind="spike")


def test_a_spike_of_what_moves_along_wakes_nobody_in_a_trouble_that_was_told(desk: Desk) -> None:
    """E[ρ] strays further while k3 is high. The mismatch itself, a NaN, a replica are told."""
    desk.say(alert(series="k3"))
    desk.say(spike("rho_excess"))
    desk.say(spike("rho_excess", "resolved"))
    outbox = Outbox(desk.store, ["ops"])
    assert [kind for _, kind, _, _ in told(outbox)] == ["level_shift"]
    for loud in ("k3", "nonfinite_share", "k3{replica=3}"):
        desk.say(spike(loud))
        assert told(outbox)[-1] == ("r", "spike", "firing", [loud])
        desk.say(spike(loud, "resolved"))
        assert told(outbox)[-1] == ("r", "spike", "resolved", [loud])


def test_a_spike_that_was_told_is_told_to_be_over_in_a_trouble_too(desk: Desk) -> None:
    """As when it goes on as a shift."""
    desk.say(spike("rho_excess"))
    desk.say(alert(series="k3"))
    desk.say(spike("rho_excess", "resolved"))
    news = [(kind, state) for _, kind, state, _ in told(Outbox(desk.store, ["ops"]))]
    assert news == [("spike", "firing"), ("level_shift", "firing"), ("spike", "resolved")]


def test_a_cause_that_is_found_later_does_not_make_a_second_notice(desk: Desk) -> None:
    """First unknown, then named: one trouble. Another named cause is another trouble."""
    desk.say(alert())
    desk.say(alert(series="abs_p99", causes=("token_shift",)))
    desk.say(alert(series="rho_excess", causes=("stale_weights",)))
    notices = {row.news["cause"] for row in Outbox(desk.store, ["ops"]).due("ops")}
    assert notices == {""}
    desk.say(alert("resolved"), alert("resolved", series="abs_p99"),
             alert("resolved", series="rho_excess"))  # fmt: skip
    desk.say(alert(causes=("token_shift",)))
    desk.say(alert(series="abs_p99", causes=("stale_weights",)))
    causes = [row.news["cause"] for row in Outbox(desk.store, ["ops"]).due("ops")]
    assert causes[-2:] == ["token_shift", "stale_weights"]


def fall(state: str = "firing", **changes: Any) -> AlertView:
    """A level that came down."""
    return alert(state, **{"before": 2e-3, "after": 1e-4, "ratio": 0.05, **changes})


def test_a_level_that_only_fell_wakes_nobody(desk: Desk) -> None:
    """A warning, with labels that stay the same to its end; a rise makes a notice of its own."""
    desk.say(fall())
    desk.say(alert(series="abs_p99"))
    desk.say(fall("resolved"))
    found = [row.news for row in Outbox(desk.store, ["ops"]).due("ops")]
    assert [(payload.labels(news)["severity"], news["state"]) for news in found] == [
        ("warning", "firing"), ("critical", "firing"), ("warning", "resolved"),
    ]  # fmt: skip
    assert payload.labels(found[0]) == payload.labels(found[2])
    assert "differ less than before" in text.title(found[0])


def test_a_level_that_falls_beside_one_that_rises_is_part_of_it(desk: Desk) -> None:
    """In one step, in either order, and later."""
    desk.say(fall(series="zero_train_share"), alert())
    desk.say(fall(series="zero_rollout_share"))
    (news,) = (row.news for row in Outbox(desk.store, ["ops"]).due("ops"))
    assert news["series"] == ["k3", "zero_train_share"]
    assert payload.labels(news)["severity"] == "critical"


def test_the_end_of_a_fall_and_the_rise_from_there_are_two_alerts(desk: Desk) -> None:
    """Both come in one step, the end first."""
    desk.say(fall())
    desk.say(fall("resolved", after=5e-4), alert(before=1e-4, after=5e-4, ratio=5.0))
    found = [row.news for row in Outbox(desk.store, ["ops"]).due("ops")]
    assert [(news["cause"], news["state"]) for news in found] == [
        ("level_fell", "firing"), ("level_fell", "resolved"), ("", "firing"),
    ]  # fmt: skip


def test_every_bad_replica_has_a_notice_of_its_own(desk: Desk) -> None:
    """They are different machines, and end at different times."""
    desk.say(*(alert(series=f"k3{{replica={i}}}") for i in (3, 17)))
    causes = [row.news["cause"] for row in Outbox(desk.store, ["ops"]).due("ops")]
    assert causes == ["k3{replica=3}", "k3{replica=17}"]


def test_runs_and_kinds_are_never_mixed(desk: Desk) -> None:
    """The same kind in another run is another trouble."""
    desk.say(alert(), run="a")
    desk.say(alert(), alert(kind="spike"), run="b")
    found = told(Outbox(desk.store, ["ops"]))
    assert [(run, kind) for run, kind, _, _ in found] == [
        ("a", "level_shift"), ("b", "level_shift"), ("b", "spike"),
    ]  # fmt: skip


def test_news_carries_the_alert_and_the_first_three_causes(desk: Desk) -> None:
    """A snapshot: what is sent later is what was true then."""
    desk.say(alert(), diagnosis=[TEMPERATURE] * 5)
    news = Outbox(desk.store, ["ops"]).due("ops")[0].news
    assert news["alert"]["before"] == 1e-4
    assert news["alert"]["onset_step"] == 100
    assert [cause["cause"] for cause in news["diagnosis"]] == ["temperature_not_restored"] * 3


def test_every_target_has_its_own_row_and_settles_it_alone(make_desk: Any) -> None:
    """One is told, the other is not."""
    desk = make_desk(["a", "b"])
    desk.say(alert())
    outbox = Outbox(desk.store, ["a", "b"])
    outbox.settle(outbox.due("a"), at=desk.clock.time())
    assert outbox.pending() == {"a": 0, "b": 1}
    outbox.fail(outbox.due("b"), error="status 500")
    assert [row.attempts for row in outbox.due("b")] == [1]


def test_what_was_stored_is_still_there_after_a_restart(desk: Desk) -> None:
    """The outbox is in the database, not in memory."""
    desk.say(alert())
    desk.reopen()
    assert len(told(Outbox(desk.store, ["ops"]))) == 1


def test_rows_of_a_target_that_was_removed_from_the_settings_are_closed(desk: Desk) -> None:
    """Nobody will ever send them."""
    desk.say(alert())
    Outbox(desk.store, ["other"])
    assert not Outbox(desk.store, ["ops"]).due("ops")


def settle_all(outbox: Outbox, at: float) -> list[OutboxRow]:
    """As a sender that succeeds."""
    rows = outbox.due("ops")
    outbox.settle(rows, at=at)
    return rows


def test_a_firing_notice_is_told_again_after_the_repeat_time_and_not_before(desk: Desk) -> None:
    """Reminders: marked as such, one per period, none once it is resolved."""
    desk.say(alert())
    outbox = Outbox(desk.store, ["ops"])
    settle_all(outbox, desk.clock.time())
    counts = []
    for _ in range(6):
        desk.clock.advance(1800.0)
        counts.append(
            outbox.remind(now=desk.clock.time(), repeat_s=3600.0, muted=lambda news: False)
        )
    assert counts == [0, 1, 0, 1, 0, 1]
    assert all(row.news["reminder"] for row in settle_all(outbox, desk.clock.time()))
    desk.say(alert("resolved"))
    settle_all(outbox, desk.clock.time())
    desk.clock.advance(1e6)
    assert not outbox.remind(now=desk.clock.time(), repeat_s=60.0, muted=lambda news: False)


def test_what_is_silenced_is_told_when_the_window_is_over_if_it_still_fires(desk: Desk) -> None:
    """Not while the window is open."""
    desk.say(alert())
    outbox = Outbox(desk.store, ["ops"])
    outbox.silence(outbox.due("ops"), at=desk.clock.time())
    now = desk.clock.time() + 10.0
    assert not outbox.remind(now=now, repeat_s=3600.0, muted=lambda news: True)
    assert outbox.remind(now=now, repeat_s=3600.0, muted=lambda news: False) == 1
    assert len(outbox.due("ops")) == 1


def test_delivered_rows_are_forgotten_and_waiting_ones_never(desk: Desk) -> None:
    """However old they are."""
    desk.say(alert())
    outbox = Outbox(desk.store, ["ops"])
    outbox.forget(before=desk.clock.time() + 1e9)
    assert len(outbox.due("ops")) == 1
    settle_all(outbox, desk.clock.time())
    outbox.forget(before=desk.clock.time() + 1e9)
    assert not desk.store.read("SELECT id FROM outbox")
