"""The bodies that are sent: Alertmanager's webhook (version 4) and its API (v2), with our block."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from twinscope_service.alert import text
from twinscope_service.alert.text import Noticed

NEVER = "0001-01-01T00:00:00Z"  # Alertmanager's "has not ended"
GROUP_BY = ("run",)


def labels(news: Noticed) -> dict[str, str]:
    """What identifies an alert: few, bounded, the same while it lasts."""
    kind = str(news["kind"])
    return {
        "alertname": "TwinScope" + "".join(part.capitalize() for part in kind.split("_")),
        "cause": news["cause"] or "unknown",
        "kind": kind,
        "run": news["run"],
        "severity": text.severity(news),
    }


def fingerprint(found: Mapping[str, str]) -> str:
    """Stable 16 hex digits of a set of labels."""
    joined = "\xff".join(f"{name}\xff{value}" for name, value in sorted(found.items()))
    return hashlib.blake2b(joined.encode(), digest_size=8).hexdigest()


def links(news: Noticed, *, external_url: str, runbook_url: str) -> dict[str, str]:
    """Where to look: the pages of the run and the step, the runbook."""
    run, step = quote(news["run"], safe=""), news["alert"]["step"]
    return {
        "Run": f"{external_url}/#/runs/{run}",
        "Step": f"{external_url}/#/runs/{run}/steps/{step}",
        "Runbook": _runbook(news, external_url=external_url, runbook_url=runbook_url),
    }


def _runbook(news: Noticed, *, external_url: str, runbook_url: str) -> str:
    """The page about the likely cause, else about the kind: the service's own, or a copy's."""
    cause = (text.likely_cause(news) or {}).get("runbook")  # causes/NAME.md
    if runbook_url:
        return f"{runbook_url}/{cause or 'runbooks/' + news['kind'] + '.md'}"
    page = str(cause).removeprefix("causes/").removesuffix(".md") if cause else None
    return f"{external_url}/#/runbooks/{page or 'alerts/' + news['kind']}"


def annotate(news: Noticed, found: Mapping[str, str]) -> dict[str, str]:
    """The text, and the link that Alertmanager's own templates know."""
    return {
        "summary": text.title(news),
        "description": text.body(news, links=found),
        "runbook_url": found["Runbook"],
    }


def block(news: Noticed, found: Mapping[str, str]) -> dict[str, Any]:
    """Ours: the numbers behind the text."""
    alert = news["alert"]
    return {
        "run": news["run"],
        "kind": news["kind"],
        "state": news["state"],
        "reminder": news["reminder"],
        "alert_id": alert["id"],
        "notice": news["notice"],
        "series": list(news["series"]),
        **{name: alert[name] for name in _NUMBERS},
        "causes": list(news["diagnosis"]),
        "links": {name.lower(): link for name, link in found.items()},
    }


_NUMBERS = ("step", "onset_step", "before", "after", "ratio", "message")


def webhook(
    group: Sequence[Noticed], *, receiver: str, external_url: str, runbook_url: str
) -> dict[str, Any]:
    """Alertmanager's webhook body, version 4, of one run's news, each with a `twinscope` block."""
    alerts = [_webhook_alert(n, external_url=external_url, runbook_url=runbook_url) for n in group]
    firing = any(alert["status"] == "firing" for alert in alerts)
    shared, told = (_common([a[part] for a in alerts]) for part in ("labels", "annotations"))
    run = group[0]["run"]
    return {
        "version": "4",
        "groupKey": f'{{}}:{{run="{run}"}}',
        "truncatedAlerts": 0,
        "status": "firing" if firing else "resolved",
        "receiver": receiver,
        "groupLabels": {"run": run},
        "commonLabels": shared,
        "commonAnnotations": told,
        "externalURL": external_url,
        "alerts": alerts,
        "twinscope": {"version": 1, "run": run},
    }


def _webhook_alert(news: Noticed, *, external_url: str, runbook_url: str) -> dict[str, Any]:
    found = links(news, external_url=external_url, runbook_url=runbook_url)
    ended = news["resolved_at"]
    return {
        "status": "firing" if ended is None else "resolved",
        "labels": labels(news),
        "annotations": annotate(news, found),
        "startsAt": rfc3339(news["started_at"]),
        "endsAt": NEVER if ended is None else rfc3339(ended),
        "generatorURL": found["Step"],
        "fingerprint": fingerprint(labels(news)),
        "twinscope": block(news, found),
    }


def alertmanager(
    group: Sequence[Noticed], *, external_url: str, runbook_url: str, until: float
) -> list[dict[str, Any]]:
    """The body of POST /api/v2/alerts. `until`: when a firing alert ends if nothing more is heard.

    Alertmanager resolves what is not repeated; `until` must lie beyond the next reminder.
    """
    out = []
    for news in group:
        found = links(news, external_url=external_url, runbook_url=runbook_url)
        ended = news["resolved_at"]
        out.append(
            {
                "labels": labels(news),
                "annotations": annotate(news, found),
                "startsAt": rfc3339(news["started_at"]),
                "endsAt": rfc3339(until if ended is None else ended),
                "generatorURL": found["Step"],
            }
        )
    return out


def _common(parts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What all have in common."""
    return {k: v for k, v in parts[0].items() if all(part.get(k) == v for part in parts[1:])}


def rfc3339(at: float) -> str:
    """Seconds since the epoch as Alertmanager writes time."""
    shown = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")
