"""One attempt to tell one target. Everything that may go wrong comes back as Undelivered."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import httpx

from twinscope.errors import ConfigError
from twinscope_service.alert import payload, text
from twinscope_service.alert.signature import DELIVERY, SIGNATURE, TIMESTAMP, sign
from twinscope_service.alert.target import Target
from twinscope_service.alert.text import Noticed

RETRY_ANYWAY = (401, 403, 404, 408, 425, 429)  # mended by an operator, or by time


class Undelivered(Exception):
    """The target did not take it. `refused`: it will never take this body."""

    def __init__(self, reason: str, *, refused: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.refused, self.retry_after_s = refused, retry_after_s


@dataclass(frozen=True)
class Letterhead:
    """What every message says about where it comes from."""

    external_url: str
    runbook_url: str
    repeat_s: float


class Deliver(Protocol):
    """How to tell one target. Raises Undelivered."""

    def __call__(self, group: Sequence[Noticed], delivery: str, now: float) -> None:
        """`group`: news of one run; `delivery`: the same for every attempt; `now`: seconds."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


def build_delivery(target: Target, letterhead: Letterhead) -> Deliver:
    """How to tell this target. Raises ConfigError if it cannot be told at all."""
    if target.type == "apprise":
        return _Apprise(_apprise(target), letterhead)
    return _Http(target, letterhead)


class _Http:
    """A webhook, or Alertmanager's API."""

    def __init__(self, target: Target, letterhead: Letterhead) -> None:
        self._target, self._letterhead = target, letterhead
        self._client = httpx.Client(timeout=target.timeout_s, follow_redirects=False)
        self._build = _webhook_request if target.type == "webhook" else _alertmanager_request

    def __call__(self, group: Sequence[Noticed], delivery: str, now: float) -> None:
        url, headers, body = self._build(self._target, self._letterhead, group, now)
        headers |= {"Content-Type": "application/json", DELIVERY: quote(delivery)}
        if self._target.token:
            headers["Authorization"] = f"Bearer {self._target.token}"
        _post(self._client, url, headers, body)

    def close(self) -> None:
        self._client.close()


def _webhook_request(
    target: Target, head: Letterhead, group: Sequence[Noticed], now: float
) -> tuple[str, dict[str, str], bytes]:
    document = payload.webhook(
        group, receiver=target.name, external_url=head.external_url, runbook_url=head.runbook_url
    )
    body, headers = _encode(document), {TIMESTAMP: str(int(now))}
    if target.secret:
        headers[SIGNATURE] = sign(target.secret, body, timestamp=int(now))
    return target.url, headers, body


def _alertmanager_request(
    target: Target, head: Letterhead, group: Sequence[Noticed], now: float
) -> tuple[str, dict[str, str], bytes]:
    document = payload.alertmanager(
        group,
        external_url=head.external_url,
        runbook_url=head.runbook_url,
        until=now + 2.0 * head.repeat_s + 600.0,
    )
    return target.url.rstrip("/") + "/api/v2/alerts", {}, _encode(document)


def _encode(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _post(client: httpx.Client, url: str, headers: dict[str, str], body: bytes) -> None:
    try:
        # Stream, and never read the answer: a target may send gigabytes.
        with client.stream("POST", url, headers=headers, content=body) as answer:
            status, after = answer.status_code, answer.headers.get("Retry-After", "")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise Undelivered(f"{type(error).__name__}: {error}") from error
    if 200 <= status < 300:
        return
    refused = 400 <= status < 500 and status not in RETRY_ANYWAY
    wait = float(after) if after.isdigit() else 0.0
    raise Undelivered(f"status {status}", refused=refused, retry_after_s=min(wait, 3600.0))


def _apprise(target: Target) -> Any:
    """An Apprise object that knows the target's address."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated modules that its plugins import
            import apprise

            service = apprise.Apprise()
            known = service.add(target.url)
    except ImportError as error:
        raise ConfigError(
            f"alert target {target.name}: type apprise needs the extra: "
            "pip install 'twinscope[apprise]'"
        ) from error
    if not known:
        raise ConfigError(
            f"alert target {target.name}: apprise does not know this kind of url; "
            "its documentation lists them"
        )
    return service


class _Apprise:
    """Every service that the apprise library reaches."""

    def __init__(self, service: Any, letterhead: Letterhead) -> None:
        self._service, self._letterhead = service, letterhead

    def __call__(self, group: Sequence[Noticed], delivery: str, now: float) -> None:
        head = self._letterhead
        found = [
            payload.links(news, external_url=head.external_url, runbook_url=head.runbook_url)
            for news in group
        ]
        title, body = text.digest(group, found)
        states = {news["state"] for news in group}
        kind = "warning" if "firing" in states else "info" if "provisional" in states else "success"
        # Plain text, so that a service that reads HTML is sent a run's markup escaped.
        told = self._service.notify(title=title, body=body, notify_type=kind, body_format="text")
        if not told:
            raise Undelivered("the service did not take it; apprise's log says why")

    def close(self) -> None:
        """It holds no connection."""
