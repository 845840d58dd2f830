"""What a person reads in the middle of the night: what changed, since when, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Noticed = Mapping[str, Any]  # see store.outbox

SEVERITY = {
    "spike": "warning",
    "level_shift": "critical",
    "growth": "warning",
    "silence": "critical",
    "bypass": "critical",
}
HEADLINE = {
    "spike": "one batch far outside the usual",
    "level_shift": "rollout and trainer differ more than before",
    "growth": "the mismatch keeps growing",
    "silence": "no data to judge by",
    "bypass": "both sides are the same numbers",
}
FIRST_STEP = {
    "spike": "Look at the worst samples of the step; one sample is data, many are the engine.",
    "level_shift": "Compare what changed at the onset: weights, engine restart, sampling, config.",
    "growth": "Suspect weights or prefix cache that fall behind; check the sync of every replica.",
    "silence": "Check that the trainer, the engines and their probes still run.",
    "bypass": "Check that the engine's own log-probs are sent, not a copy of the trainer's.",
}


def title(news: Noticed) -> str:
    """One line."""
    state = {"provisional": "may be", "resolved": "over"}.get(news["state"], "firing")
    again = ", still" if news["reminder"] else ""
    return f"[{state}{again}] {news['run']}: {HEADLINE[news['kind']]}"


def body(news: Noticed, *, links: Mapping[str, str]) -> str:
    """Some lines: the change, the series, the likely cause, what to do, links."""
    alert = news["alert"]
    lines = [alert["message"]]
    if len(news["series"]) > 1:
        lines.append(f"Also seen in: {', '.join(news['series'][1:6])}")
    if news["state"] == "provisional":
        lines.append("Not confirmed yet: it is confirmed or withdrawn within a few steps.")
    if news["state"] != "resolved":
        lines += _advice(news)
    lines += [f"{name}: {link}" for name, link in links.items()]
    return "\n".join(lines)


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
