"""Which processes of a run are alive: the probes' greetings, signs of life and farewells.

A sign of life is no event: nothing of it is stored. After a restart of the service a process is
known again with its next one, a minute later by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

GREETING, BEAT, FAREWELL = "probe_attached", "probe_alive", "probe_detached"
KINDS = (GREETING, BEAT, FAREWELL)
MISSED = 2.5  # intervals without a sign of life until a process counts as lost
MOST_RUNS, MOST_PROCESSES = 256, 4096  # remembered; beyond it the one heard longest ago goes
NAME_CHARACTERS = 64

State = Literal["alive", "quiet", "lost", "closed"]


@dataclass(frozen=True)
class Heard:
    """One process, when it was heard from last. `at`: seconds since the epoch."""

    process: str
    pid: int | None
    rank: int | None  # None: not launched in ranks
    every_s: float  # between signs of life; 0: it gives none
    at: float
    closed: bool = False  # it said that it ends

    def as_json(self, now: float) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "process": self.process,
            "pid": self.pid,
            "rank": self.rank,
            "state": self.state(now),
            "last_heard_at": self.at,
            "last_heard_s": max(0.0, now - self.at),
            "heartbeat_s": self.every_s,
        }

    def state(self, now: float) -> State:
        """`quiet`: it gives no signs of life, so that silence says nothing."""
        if self.closed:
            return "closed"
        if self.every_s <= 0:
            return "quiet"
        return "alive" if now - self.at <= MISSED * self.every_s else "lost"


class Processes:
    """The processes of all runs. Guarded by the pipeline's lock."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Heard]] = {}  # oldest first, both

    def hear(self, run: str, kind: str, fields: Mapping[str, Any], *, at: float) -> None:
        """One message of a probe. Fields that are no use are left alone: anybody may post."""
        heard = _read(fields, at=at, closed=kind == FAREWELL)
        if heard is None:
            return
        known = self._runs.pop(run, {})
        self._runs[run] = known
        known.pop(heard.process, None)
        known[heard.process] = heard
        if len(known) > MOST_PROCESSES:
            del known[next(iter(known))]
        if len(self._runs) > MOST_RUNS:
            del self._runs[next(iter(self._runs))]

    def of(self, run: str) -> tuple[Heard, ...]:
        """By rank, those without one last."""
        ranks = (1 << 62,)
        known = self._runs.get(run, {}).values()
        return tuple(sorted(known, key=lambda h: (ranks if h.rank is None else (h.rank,), h.at)))


def _read(fields: Mapping[str, Any], *, at: float, closed: bool) -> Heard | None:
    process, every_s = fields.get("process"), fields.get("heartbeat_s")
    if not isinstance(process, str) or not 1 <= len(process) <= NAME_CHARACTERS:
        return None  # a probe of an older version
    return Heard(
        process=process,
        pid=_integer(fields.get("pid")),
        rank=_integer(fields.get("rank")),
        every_s=float(every_s) if isinstance(every_s, (int, float)) else 0.0,
        at=at,
        closed=closed,
    )


def _integer(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
