"""The senders: one thread per target empties its part of the outbox, in order, until it is told.

Targets share nothing, so one that hangs or refuses delays nobody else; and nothing here is on the
path of a batch, so it never delays ingest. A crash between "stored" and "sent" costs nothing: the
row is still there. A crash between "sent" and "marked" sends it twice, with the same delivery id.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twinscope.errors import ConfigError
from twinscope_service.alert.delivery import Deliver, Letterhead, Undelivered, build_delivery
from twinscope_service.alert.target import (
    Target,
    Window,
    is_http,
    parse_targets,
    parse_windows,
)
from twinscope_service.alert.text import Noticed
from twinscope_service.clock import Clock
from twinscope_service.config import Settings
from twinscope_service.store.outbox import (
    NOT_WANTED,
    SILENCED,
    Database,
    Muted,
    Outbox,
    OutboxRow,
)
from twinscope_service.store.silences import Silences

POLL_S = 0.5
STUMBLE_S = 5.0  # wait after an error that is neither the target's nor expected
REFUSALS = 10  # attempts after which a body that a target calls wrong is given up
KEEP_DELIVERED_S = 7 * 86400.0
STOP_S = 5.0  # longest wait for a sender at shutdown; what it was sending is sent again

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AlertPlan:
    """The checked settings of alerting."""

    targets: tuple[Target, ...]
    windows: tuple[Window, ...]
    letterhead: Letterhead
    deliveries: tuple[Deliver, ...]


def plan_alerts(settings: Settings) -> AlertPlan:
    """Check everything before the service starts. Raises ConfigError with key, value and fix."""
    targets = parse_targets(settings.alert_targets)
    for name in ("external_url", "runbook_url"):
        url = getattr(settings, name)
        if url and not is_http(url):
            raise ConfigError(f"{name}: got {url!r}; give an http:// or https:// address, or none")
    external = settings.external_url or f"http://{settings.host}:{settings.port}"
    letterhead = Letterhead(
        external.rstrip("/"), settings.runbook_url.rstrip("/"), settings.alert_repeat_s
    )
    deliveries = tuple(build_delivery(target, letterhead) for target in targets)
    return AlertPlan(targets, parse_windows(settings.alert_silences), letterhead, deliveries)


class Alerting:
    """All senders, and the reminders. `tick` is called now and then; `close` waits a little."""

    def __init__(self, plan: AlertPlan, store: Database, *, clock: Clock) -> None:
        self._plan, self._clock = plan, clock
        self._outbox = Outbox(store, [target.name for target in plan.targets])
        self.silences = Silences(store)  # those that people ask for; the plan has the settings'
        self._stop = threading.Event()
        self.outcomes: Counter[tuple[str, str]] = Counter()  # (target, outcome)
        self.senders = self._build_senders()
        self._threads = [
            threading.Thread(target=sender.run, name=f"alerts-{sender.target.name}", daemon=True)
            for sender in self.senders
        ]

    def _build_senders(self) -> list[Sender]:
        pairs = zip(self._plan.targets, self._plan.deliveries, strict=True)
        return [
            Sender(
                target, deliver, self._outbox,
                clock=self._clock, stop=self._stop, count=self._count, muted=self.muted,
            )
            for target, deliver in pairs
        ]  # fmt: skip

    def _count(self, target: str, outcome: str, n: int) -> None:
        self.outcomes[target, outcome] += n

    def start(self) -> None:
        """Begin with whatever the last process left."""
        for thread in self._threads:
            thread.start()

    def tick(self) -> None:
        """Queue what is due again; forget what was delivered long ago."""
        now = self._clock.time()
        self.silences.forget(now=now)
        if not self._threads:
            return
        self._outbox.remind(now=now, repeat_s=self._plan.letterhead.repeat_s, muted=self.muted)
        self._outbox.forget(before=now - KEEP_DELIVERED_S)

    def pending(self) -> dict[str, int]:
        """News not yet delivered, per target."""
        return self._outbox.pending()

    def muted(self, news: Noticed) -> bool:
        """Is a window of the settings open for this news, or a silence that somebody asked for?"""
        now = self._clock.time()
        about = news["run"], news["kind"], news["series"]
        return any(window.covers(*about, now=now) for window in self._plan.windows) or any(
            silence.covers(*about, now=now) for silence in self.silences.open(now=now)
        )

    def close(self) -> None:
        """Stop sending; what is left is sent after the next start."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(STOP_S)


class Sender:
    """One target's loop."""

    def __init__(
        self,
        target: Target,
        deliver: Deliver,
        outbox: Outbox,
        *,
        clock: Clock,
        stop: threading.Event,
        count: Callable[[str, str, int], None],
        muted: Muted,
    ) -> None:
        self.target, self._deliver, self._outbox = target, deliver, outbox
        self._clock, self._stop, self._count, self._muted = clock, stop, count, muted
        self._failures = 0

    def run(self) -> None:
        """Until told to stop. A failing store is waited for, like a failing target.

        Nothing ends this thread: with it, every later alert of the target would be lost.
        """
        wait = 0.0
        while not self._stop.wait(wait):
            try:
                wait = self.send_next()
            except Exception:
                log.exception("outbox cannot be worked on", extra={"target": self.target.name})
                wait = STUMBLE_S
        self._deliver.close()

    def send_next(self) -> float:
        """Deliver the oldest group, or find out that there is none. Returns seconds to wait."""
        rows = self._outbox.due(self.target.name)
        if not rows:
            return POLL_S
        now = self._clock.time()
        first = rows[0]
        if not self._wants(first):
            self._settle(rows[:1], NOT_WANTED, now)
            return 0.0
        if first.news["state"] != "resolved" and self._muted(first.news):
            self._outbox.silence(rows[:1], at=now)
            self._count(self.target.name, SILENCED, 1)
            return 0.0
        group = self._group(rows)
        try:
            self._deliver([row.news for row in group], self._delivery_of(group), now)
        except Undelivered as problem:
            return self._failed(group, problem, now)
        except Exception as error:  # of a library that tells some service
            log.exception("alert not delivered", extra={"target": self.target.name})
            return self._failed(group, Undelivered(f"{type(error).__name__}: {error}"), now)
        self._failures = 0
        self._settle(group, "delivered", now)
        return 0.0

    def _wants(self, row: OutboxRow) -> bool:
        """Is it for this target? The end of what it was never told of is not."""
        ends = row.news["state"] == "resolved"
        return self.target.wants(row.news) and not (ends and self._outbox.untold(row))

    def _group(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """The next news of one run that can go in one message: one piece per notice, in order."""
        group: list[OutboxRow] = []
        for row in rows:
            fits = row.run == rows[0].run and all(row.notice != other.notice for other in group)
            silent = row.news["state"] != "resolved" and self._muted(row.news)
            if not fits or silent or not self._wants(row):
                break
            group.append(row)
        return group

    def _delivery_of(self, group: Sequence[OutboxRow]) -> str:
        """The same for the same news; another one when more has joined since the last attempt, or
        a receiver that knows the id would pass over what is new."""
        ids = sorted({group[0].id, group[-1].id})
        return "-".join((self.target.name, *map(str, ids)))

    def _settle(self, rows: Sequence[OutboxRow], outcome: str, now: float) -> None:
        self._outbox.settle(rows, at=now, note="" if outcome == "delivered" else outcome)
        self._count(self.target.name, outcome, len(rows))

    def _failed(self, group: Sequence[OutboxRow], problem: Undelivered, now: float) -> float:
        name = self.target.name
        log.warning("alert not delivered: %s", problem, extra={"target": name})
        self._outbox.fail(group, error=str(problem))
        self._count(name, "failed", 1)
        spent = [row for row in group if row.attempts + 1 >= REFUSALS]
        if problem.refused and spent:  # not what joined them lately: it may be right without them
            self._settle(spent, "refused", now)
            return 0.0
        self._failures += 1
        most = self.target.retry_most_s
        wait = min(self.target.retry_first_s * 2.0 ** min(self._failures - 1, 30), most)
        return max(wait * random.uniform(0.5, 1.0), min(problem.retry_after_s, most))
