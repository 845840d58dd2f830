"""Who is told of alerts, and when nobody is: targets and silence windows, checked at start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, time
from fnmatch import fnmatchcase
from typing import Any, Literal, NoReturn, get_args

import httpx

from twinscope.errors import ConfigError

TargetType = Literal["webhook", "alertmanager", "apprise"]
KINDS = ("spike", "level_shift", "growth", "silence", "bypass", "inconsistent")


@dataclass(frozen=True)
class Target:
    """One receiver. `url` is http(s) for webhook and alertmanager; apprise has its own forms."""

    name: str
    type: TargetType
    url: str
    secret: str = ""  # webhook: signs every delivery (HMAC-SHA256)
    token: str = ""  # webhook, alertmanager: sent as a bearer token
    runs: str = "*"  # only runs whose name matches this glob
    kinds: tuple[str, ...] = KINDS
    provisional: bool = True  # also what is not confirmed yet
    timeout_s: float = 10.0
    retry_first_s: float = 1.0  # wait after a failure; doubles up to retry_most_s
    retry_most_s: float = 300.0

    def wants(self, news: Mapping[str, Any]) -> bool:
        """Is this news for this target?"""
        return (
            news["kind"] in self.kinds
            and fnmatchcase(news["run"], self.runs)
            and (self.provisional or news["state"] != "provisional")
        )


@dataclass(frozen=True)
class Window:
    """While it is open, nobody is told about these runs and kinds.

    Either once (`start` .. `end`, ISO 8601 with offset) or every day (`daily`, UTC, "22:00-06:00").
    """

    runs: str = "*"
    kinds: tuple[str, ...] = KINDS
    series: str = "*"  # a glob; news of several series is silenced if all of them match
    start: datetime | None = None
    end: datetime | None = None
    daily: tuple[time, time] | None = None

    def is_open(self, now: float) -> bool:
        """`now`: seconds since the epoch."""
        moment = datetime.fromtimestamp(now, UTC)
        if self.daily is not None:
            begin, end = self.daily
            clock = moment.time()
            return begin <= clock < end if begin < end else clock >= begin or clock < end
        return (self.start is None or self.start <= moment) and (
            self.end is not None and moment < self.end
        )

    def covers(self, run: str, kind: str, series: Sequence[str], *, now: float) -> bool:
        """Is news of this run, of this kind, in these series silenced now?"""
        return (
            kind in self.kinds
            and fnmatchcase(run, self.runs)
            and all(fnmatchcase(name, self.series) for name in series)
            and self.is_open(now)
        )


def parse_targets(entries: object) -> tuple[Target, ...]:
    """Targets from the setting `alert_targets`, a list of tables. Raises ConfigError."""
    targets: list[Target] = []
    for i, entry in enumerate(_list("alert_targets", entries)):
        target = _target(f"alert_targets[{i}]", entry)
        if any(target.name == other.name for other in targets):
            _refuse(f"alert_targets[{i}].name", target.name, "give every target its own name")
        targets.append(target)
    return tuple(targets)


def parse_windows(entries: object) -> tuple[Window, ...]:
    """Silence windows from the setting `alert_silences`, a list of tables. Raises ConfigError."""
    found = _list("alert_silences", entries)
    return tuple(_window(f"alert_silences[{i}]", entry) for i, entry in enumerate(found))


def _target(where: str, entry: object) -> Target:
    table = _table(where, entry, known={f.name for f in fields(Target)})
    for name in ("name", "type", "url"):
        if not table.get(name):
            _refuse(f"{where}.{name}", table.get(name), "every target has name, type and url")
    if table["type"] not in get_args(TargetType):
        _refuse(f"{where}.type", table["type"], f"use one of {', '.join(get_args(TargetType))}")
    for name in ("name", "url", "secret", "token", "runs"):
        if name in table and not isinstance(table[name], str):
            _refuse(f"{where}.{name}", table[name], "give a string")
    for name in ("timeout_s", "retry_first_s", "retry_most_s"):
        value = table.get(name, 1.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86400:
            _refuse(f"{where}.{name}", value, "give seconds above 0, at most a day")
    if not isinstance(table.get("provisional", True), bool):
        _refuse(f"{where}.provisional", table["provisional"], "give true or false")
    target = Target(**{**table, "kinds": _kinds(where, table)})
    _check_sendable(where, target)
    return target


def _check_sendable(where: str, target: Target) -> None:
    """What would fail at every attempt is refused now, not found out by the first alert."""
    if not target.name.isprintable():
        _refuse(f"{where}.name", target.name, "give printable characters on one line")
    if not (target.token.isascii() and target.token.isprintable()):
        _refuse(f"{where}.token", target.token, "a header takes printable ASCII only")
    if target.retry_first_s > target.retry_most_s:
        most = f"give at most retry_most_s, {target.retry_most_s:g}"
        _refuse(f"{where}.retry_first_s", target.retry_first_s, most)
    if target.type != "apprise" and not is_http(target.url):
        _refuse(f"{where}.url", target.url, "give an http:// or https:// address")


def is_http(url: str) -> bool:
    """An address that a client can be sent to, and that makes a link?"""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    spaced = any(character.isspace() for character in url)
    port = parts.port is None or 0 < parts.port < 65536
    return parts.scheme in ("http", "https") and bool(parts.host) and port and not spaced


def _window(where: str, entry: object) -> Window:
    table = _table(where, entry, known={f.name for f in fields(Window)})
    kinds, globs = _kinds(where, table), {}
    for name in ("runs", "series"):
        globs[name] = table.get(name, "*")
        if not isinstance(globs[name], str):
            _refuse(f"{where}.{name}", globs[name], 'give a glob, such as "nightly-*"')
    if "daily" in table:
        for name in ("start", "end"):
            if name in table:
                _refuse(f"{where}.{name}", table[name], "give either `daily` or start and end")
        return Window(**globs, kinds=kinds, daily=_daily(f"{where}.daily", table["daily"]))
    start = _moment(f"{where}.start", table["start"]) if "start" in table else None
    if "end" not in table:
        _refuse(f"{where}.end", None, "give an end, or `daily`: a silence for ever hides a fault")
    end = _moment(f"{where}.end", table["end"])
    if start is not None and end <= start:
        _refuse(f"{where}.end", table["end"], f"the end must be after the start, {table['start']}")
    return Window(**globs, kinds=kinds, start=start, end=end)


def _kinds(where: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = table.get("kinds", KINDS)
    fix = f"use some of {', '.join(KINDS)}"
    if not isinstance(kinds, list | tuple) or not kinds:
        _refuse(f"{where}.kinds", kinds, f"give a list; {fix}")
    for kind in kinds:
        if kind not in KINDS:
            _refuse(f"{where}.kinds", kind, fix)
    return tuple(kinds)


def _daily(where: str, value: object) -> tuple[time, time]:
    try:
        begin, end = (time.fromisoformat(part) for part in str(value).split("-"))
    except ValueError:
        begin = end = time()
    if begin == end:
        _refuse(where, value, 'give two different times of day in UTC, as "22:00-06:00"')
    return begin, end


def _moment(where: str, value: object) -> datetime:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        _refuse(where, value, "give ISO 8601 with an offset, as 2026-12-01T20:00:00+00:00")
    return moment


def _list(where: str, entries: object) -> list[object]:
    if not isinstance(entries, list | tuple):
        _refuse(where, entries, "give a list of tables ([[...]] in TOML, JSON in the environment)")
    return list(entries)


def _table(where: str, entry: object, *, known: set[str]) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        _refuse(where, entry, "give a table")
    for name in entry:
        if name not in known:
            _refuse(
                f"{where}.{name}", entry[name], f"no such key; known: {', '.join(sorted(known))}"
            )
    return dict(entry)


def _refuse(where: str, value: object, fix: str) -> NoReturn:
    secret = where.endswith((".secret", ".token"))
    raise ConfigError(f"{where}: got {'(not shown)' if secret else repr(value)[:120]}; {fix}")
