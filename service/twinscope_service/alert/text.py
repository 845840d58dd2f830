"""What a person reads in the middle of the night: what changed, since when, what to do."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from twinscope_service.detect.findings import fell
from twinscope_service.detect.words import series_words
from twinscope_service.store.outbox import FELL

Noticed = Mapping[str, Any]  # see store.outbox

SEVERITY = {  # of each kind; see `severity`
    "spike": "warning",
    "level_shift": "critical",
    "growth": "warning",
    "silence": "critical",
    "bypass": "critical",
    "inconsistent": "critical",
}
HEADLINE = {
    "spike": "one batch far outside the usual",
    "level_shift": "rollout and trainer differ more than before",
    "growth": "the mismatch keeps growing",
    "silence": "no data to judge by",
    "bypass": "both sides are the same numbers",
    "inconsistent": "rollout and trainer do not agree",
}
FIRST_STEP = {
    "spike": "Look at the worst samples of the step; one sample is data, many are the engine.",
    "level_shift": "Compare what changed at the onset: weights, engine restart, sampling, config.",
    "growth": "Suspect weights or prefix cache that fall behind; check the sync of every replica.",
    "silence": "Check that the trainer, the engines and their probes still run.",
    "bypass": "Check that the engine's own log-probs are sent, not a copy of the trainer's.",
    "inconsistent": "Read the reasons of the step; nothing changed, so suspect the set-up.",
}
STATE = {"provisional": "may be", "resolved": "over"}
ALSO = 5  # further series that a message quotes


def severity(news: Noticed) -> str:
    """Who is to hear of it: critical wakes somebody. Levels that only fell do not."""
    return "warning" if news["cause"] == FELL else SEVERITY[news["kind"]]


def title(news: Noticed) -> str:
    """One line; on a pager it is all there is, so it has the factor and the step."""
    state = STATE.get(news["state"], "firing") + (", still" if news["reminder"] else "")
    return f"[{state}] {news['run']}: {headline(news)}{_how_much(news)}"


def headline(news: Noticed) -> str:
    """What happened, in words."""
    alert, kind = news["alert"], news["kind"]
    if kind != "level_shift":
        return HEADLINE[kind]
    name, over = alert["series"], news["state"] == "resolved"
    if "{" in name:
        return f"{name.partition('{')[2].rstrip('}')} differs from the others"
    if name.endswith("_share") or name == "surprise":
        return f"{series_words(name)} changed"
    if news["cause"] == FELL or (fell(alert["before"], alert["after"]) and not over):
        return "rollout and trainer differ less than before"
    return HEADLINE[kind]


def _how_much(news: Noticed) -> str:
    """The factor and the step, of what has them."""
    alert, kind = news["alert"], news["kind"]
    step, ratio = alert["onset_step"], alert["ratio"]
    times = "" if ratio is None or news["state"] == "resolved" else f"x{ratio:.3g} "
    where = "" if step is None else f"{'at' if kind == 'spike' else 'since'} step {step}"
    return f", {times}{where}" if where else ""


def body(news: Noticed, *, links: Mapping[str, str]) -> str:
    """Some lines: the change, the other series, the likely cause, what to do, links."""
    lines = [_change(news)]
    others = news.get("also", ())
    if others:
        more = f"; {len(others) - ALSO} more" if len(others) > ALSO else ""
        over = news["state"] == "resolved"
        quoted = "; ".join(_quote(other, over=over) for other in others[:ALSO])
        lines.append(f"Also{' over' if over else ''}: {quoted}{more}")
    if news["reminder"]:
        begun = datetime.fromtimestamp(news["started_at"], UTC)
        lines.append(f"Still so; first told {begun:%Y-%m-%d %H:%M} UTC.")
    if news["state"] == "provisional":
        lines.append("Not confirmed yet: it is confirmed or withdrawn within a few steps.")
    if news["state"] != "resolved":
        lines += _advice(news)
    lines += [f"{name}: {link}" for name, link in links.items()]
    if news["state"] != "resolved":
        url = links["Run"].partition("/#/")[0]
        lines.append(f"Quiet: twinscope silence {shlex.quote(news['run'])} --for 2h --url {url}")
    return "\n".join(lines)


def _change(news: Noticed) -> str:
    """The leading series' own words; once another series has confirmed the shift, without doubt."""
    message = str(news["alert"]["message"])
    if news["state"] == "firing" and news["alert"]["state"] == "provisional":
        sure = ", ".join(series_words(series) for series in news.get("firing", ()))
        return message.replace("may have shifted", "shifted") + f"; confirmed by {sure}"
    return message


def _quote(other: Mapping[str, Any], *, over: bool) -> str:
    """Another series of the same trouble, in a few words."""
    name, before, after = series_words(other["series"]), other["before"], other["after"]
    if over or before is None or after is None:
        return name
    times = "" if other["ratio"] is None else f" (x{other['ratio']:.3g})"
    return f"{name} {before:.3g} to {after:.3g}{times}"


def digest(group: Sequence[Noticed], links: Sequence[Mapping[str, str]]) -> tuple[str, str]:
    """Title and body of one message about several news of one run, the gravest first."""
    order = sorted(range(len(group)), key=lambda i: _gravity(group[i]))
    first, *rest = order
    parts = [body(group[first], links=links[first])]
    parts += [f"{title(group[i])}\n{body(group[i], links=links[i])}" for i in rest]
    return title(group[first]), "\n\n".join(parts)


def _gravity(news: Noticed) -> tuple[int, bool]:
    state = ("firing", "provisional", "resolved").index(news["state"])
    return state, severity(news) != "critical"


def _advice(news: Noticed) -> list[str]:
    cause = likely_cause(news)
    if cause is None:
        return [f"Cause: not known yet. {FIRST_STEP[news['kind']]}"]
    shown = f"Likely cause: {cause['cause']} ({cause['confidence']:.0%})"
    others = [other for other in cause.get("group", ()) if other != cause["cause"]]
    if others:
        shown += f", or {', '.join(others)}, which these data cannot tell apart"
    return [f"{shown}: {cause['evidence']}", f"Do: {cause['fix']}"]


def likely_cause(news: Noticed) -> Mapping[str, Any] | None:
    """The first cause of the diagnosis; None when it found nothing but noise."""
    for cause in news["diagnosis"]:
        if cause["cause"] != "numerical_noise":
            return dict(cause)
    return None
