"""The texts, read as by the person who was woken: all of them, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from twinscope_service.alert import payload, text
from twinscope_service.store.outbox import Outbox

from .conftest import TEMPERATURE, Desk, alert

URL = "https://ts.example"


def news_of(desk: Desk) -> list[dict[str, Any]]:
    """Everything that waits for `ops`."""
    return [dict(row.news) for row in Outbox(desk.store, ["ops"]).due("ops")]


def read(news: dict[str, Any]) -> list[str]:
    """Title and lines of one piece of news."""
    links = payload.links(news, external_url=URL, runbook_url="")
    return [text.title(news), *text.body(news, links=links).splitlines()]


def test_a_shift_says_what_since_when_how_much_why_what_to_do_and_where(desk: Desk) -> None:
    """One message for all series of the trouble, the mismatch itself first."""
    tail = alert(series="abs_p99", before=0.25, after=1.0, ratio=4.0)
    desk.say(tail, alert(), diagnosis=[TEMPERATURE])
    assert read(news_of(desk)[0]) == [
        "[firing] r: rollout and trainer differ more than before, x20 since step 100",
        "k3 shifted at step 100: 0.0001 to 0.002 (x20)",
        "Also: the 99th percentile of |Δ| 0.25 to 1 (x4)",
        "Likely cause: temperature_not_restored (93%): T = 0.70 explains all of it",
        "Do: divide the logits by the sampling temperature",
        "Run: https://ts.example/#/runs/r",
        "Step: https://ts.example/#/runs/r/steps/103",
        "Runbook: https://ts.example/#/runbooks/temperature_not_restored",
        "Quiet: twinscope silence r --for 2h --url https://ts.example",
    ]


def test_a_shift_that_another_series_confirms_leaves_no_doubt(desk: Desk) -> None:
    """k3 leads with its numbers though its own detector still hesitates."""
    doubt = alert("provisional", message="rollout_train_kl may have shifted at step 100: 1 to 2")
    desk.say(doubt, alert("provisional", series="abs_p50"))
    desk.say(alert(series="abs_p50"))
    provisional, firing = news_of(desk)
    assert read(provisional)[0].startswith("[may be] r: ")
    assert "Not confirmed yet: it is confirmed or withdrawn within a few steps." in read(
        provisional
    )
    assert read(firing)[1] == (
        "rollout_train_kl shifted at step 100: 1 to 2; confirmed by the median of |Δ|"
    )


def test_a_reminder_says_since_when_and_a_cause_that_is_not_known_is_not_invented(
    desk: Desk,
) -> None:
    """And what to look at first."""
    desk.say(alert(), diagnosis=[{**TEMPERATURE, "cause": "numerical_noise"}])
    (news,) = news_of(desk)
    lines = read({**news, "reminder": True})
    assert lines[0].startswith("[firing, still] r: ")
    assert lines[2:4] == [
        "Still so; first told 2023-11-14 22:13 UTC.",
        "Cause: not known yet. Compare what changed at the onset: weights, engine restart, "
        "sampling, config.",
    ]
    assert "Runbook: https://ts.example/#/runbooks/alerts/level_shift" in lines


def test_the_end_gives_no_advice(desk: Desk) -> None:
    """What is over, in which series, and where to look."""
    both = [alert(), alert(series="abs_p99")]
    desk.say(*both, diagnosis=[TEMPERATURE])
    over = "rollout_train_kl: the level shift of step 100 is over: back at the level before it"
    desk.say(alert("resolved", message=over), alert("resolved", series="abs_p99"))
    assert read(news_of(desk)[1])[:4] == [
        "[over] r: rollout and trainer differ more than before, since step 100",
        over,
        "Also over: the 99th percentile of |Δ|",
        "Run: https://ts.example/#/runs/r",
    ]


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({"after": 1e-5, "ratio": 0.1}, "differ less than before, x0.1 since step 100"),
        ({"series": "k3{replica=3}"}, "r: replica=3 differs from the others, x20 since step 100"),
        ({"series": "rho_excess", "before": 0.0, "after": -0.05, "ratio": None},
         "differ more than before, since step 100"),
        ({"series": "nonfinite_share"}, "share of tokens with NaN or infinity changed, x20 since"),
        ({"kind": "spike"}, "one batch far outside the usual, x20 at step 100"),
        ({"kind": "growth"}, "the mismatch keeps growing, x20 since step 100"),
        ({"kind": "silence", "before": None, "after": None, "ratio": None},
         "no data to judge by, since step 100"),
        ({"kind": "silence", "onset_step": None, "before": None, "after": None, "ratio": None},
         "no data to judge by"),
    ],
)  # fmt: skip
def test_the_title_alone_says_enough_for_a_pager(
    desk: Desk, changes: dict[str, Any], headline: str
) -> None:
    """State, run, what happened, how much, since when."""
    desk.say(alert(**changes))
    title = read(news_of(desk)[0])[0]
    assert title.startswith("[firing] r: ")
    assert headline in title


def test_news_of_one_run_are_one_message_with_the_gravest_first(desk: Desk) -> None:
    """As chat services get it: a spike and a shift of the same step."""
    desk.say(alert(kind="spike", message="k3 spiked"), alert())
    group = news_of(desk)
    found = [payload.links(news, external_url=URL, runbook_url="") for news in group]
    title, body = text.digest(group, found)
    assert "rollout and trainer differ more" in title
    first, second = body.split("\n\n")
    assert first.startswith("k3 shifted at step 100")
    assert second.startswith("[firing] r: one batch far outside the usual, x20 at step 100\nk3 sp")


def test_runbooks_can_be_a_copy_elsewhere(desk: Desk) -> None:
    """Where `runbook_url` names one: the files of docs/."""
    desk.say(alert(), diagnosis=[TEMPERATURE])
    (news,) = news_of(desk)
    links = payload.links(news, external_url=URL, runbook_url="https://wiki.example")
    assert links["Runbook"] == "https://wiki.example/causes/temperature_not_restored.md"
    unknown = payload.links({**news, "diagnosis": []}, external_url=URL,
                            runbook_url="https://wiki.example")  # fmt: skip
    assert unknown["Runbook"] == "https://wiki.example/runbooks/level_shift.md"
