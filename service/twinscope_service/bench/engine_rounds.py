"""Rounds of the same requests through one running engine: plugin in it, out of it, service gone.

A block is one round of each condition, back to back, in another order from block to block; what
is compared are ratios within a block. A drift of the machine moves both sides of a ratio, and the
bootstrap over blocks says what noise is left. CPU time is that of the threads that worked: another
program on the same cores disturbs it less than the wall time.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinscope import Probe
from twinscope.books import ProbeStats
from twinscope.errors import TwinScopeError
from twinscope.hosts.attach import unwrap, wrap
from twinscope.hosts.vllm_plugin import Tap
from twinscope_service.bench.interval import Interval, median_interval

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Condition:
    """How a round is run. `tap` None: without the plugin."""

    name: str
    tap: Tap | None = None
    probe: Probe | None = None
    delivers: bool = True  # False: its service is gone, and nobody waits for it


@dataclass(frozen=True)
class Rig:
    """An engine, and the requests of a round."""

    engine: Any
    prompts: list[Any]
    parameters: list[Any]


@dataclass(frozen=True)
class Round:
    """What one round took, in seconds."""

    wall: float
    front: float  # CPU of this process, until the plugin has nothing left to do
    core: float  # CPU of the engine's own processes
    each: list[float]  # from scheduling to the last token, per request


@dataclass
class Blocks:
    """Rounds by condition; the n-th of each belong together."""

    rounds: dict[str, list[Round]] = field(default_factory=dict)

    def ratio(self, name: str, to: str, *, of: str) -> Interval:
        """Of one condition to another: `of` is wall, front, core or cpu (front and core)."""
        pairs = zip(self.rounds[name], self.rounds[to], strict=True)
        return median_interval([_figure(one, of) / _figure(other, of) for one, other in pairs])

    def extra(self, name: str, to: str) -> Interval:
        """CPU seconds per round that the front end spent more: the plugin is nowhere else."""
        pairs = zip(self.rounds[name], self.rounds[to], strict=True)
        return median_interval([one.front - other.front for one, other in pairs])


def _figure(one: Round, of: str) -> float:
    return one.front + one.core if of == "cpu" else float(getattr(one, of))


def run_blocks(rig: Rig, conditions: Sequence[Condition], *, blocks: int) -> Blocks:
    """One block to warm up, then `blocks`."""
    found = Blocks({condition.name: [] for condition in conditions})
    orders = list(itertools.permutations(conditions))
    for number in range(-1, blocks):
        for condition in orders[number % len(orders)]:
            with hooks(condition.tap):
                one = settled_round(rig, condition)
            if number >= 0:
                found.rounds[condition.name].append(one)
    return found


def settled_round(rig: Rig, condition: Condition) -> Round:
    """A round, and nothing of it left for the next one's time."""
    front, core, start = time.process_time(), _children_cpu(), time.perf_counter()
    outputs = rig.engine.generate(rig.prompts, rig.parameters, use_tqdm=False)
    wall = time.perf_counter() - start
    settle(condition)
    front, core = time.process_time() - front, _children_cpu() - core
    times = [output.metrics for output in outputs]
    each = [t.last_token_ts - t.scheduled_ts for t in times if t is not None]
    return Round(wall, front, core, each)


def settle(condition: Condition) -> None:
    """Wait until the plugin has delivered what it has, if there is somebody to deliver to."""
    tap, probe = condition.tap, condition.probe
    done = tap is None or tap.drain(PATIENCE_S)
    if done and probe is not None and condition.delivers:
        done = probe.flush(PATIENCE_S)
    if not done:
        fix = "does the service answer?"
        raise TwinScopeError(f"bench probe: nothing delivered for {PATIENCE_S:.0f} s; {fix}")


def seams() -> Mapping[str, tuple[Any, str]]:
    """name of the tap's wrap -> (class, method): what runs for every request."""
    from vllm.v1.engine import output_processor

    return {
        "wrap_add": (output_processor.OutputProcessor, "add_request"),
        "wrap_output": (output_processor.RequestState, "make_request_output"),
    }


@contextmanager
def hooks(tap: Tap | None) -> Iterator[None]:
    """For the time of the block the hooks of `tap`, or none; afterwards none."""
    if tap is not None:
        tap.listen()
        for name, (owner, method) in seams().items():
            wrap(owner, method, getattr(tap, name))
    try:
        yield
    finally:
        for owner, method in seams().values():
            unwrap(owner, method)


def _children_cpu() -> float:
    """CPU seconds so far of the processes that this one started, and of theirs."""
    return sum(map(_cpu, _descendants(os.getpid())))


def _descendants(pid: int) -> Iterator[int]:
    for text in _read_all(pid, "children"):
        for child in map(int, text.split()):
            yield child
            yield from _descendants(child)


def _cpu(pid: int) -> float:
    """Seconds on a core of all its threads; Linux alone counts them in nanoseconds."""
    return sum(int(text.split()[0]) for text in _read_all(pid, "schedstat")) / 1e9


def _read_all(pid: int, name: str) -> Iterator[str]:
    """That file of each thread; threads end at any time, other systems have none."""
    for path in Path(f"/proc/{pid}/task").glob(f"*/{name}"):
        with suppress(OSError):
            yield path.read_text()


def books_line(stats: ProbeStats) -> str:
    """What became of a probe's tokens."""
    lost = ", ".join(f"{count.tokens} {reason}" for reason, count in stats.dropped.items())
    return (
        f"{stats.captured.tokens} tokens captured: {stats.shipped.tokens} shipped, "
        f"{stats.pending.tokens} waiting, lost: {lost or 'none'}"
    )
