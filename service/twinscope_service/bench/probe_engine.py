"""What the vLLM plugin costs a running engine: time inside its hooks, and rounds with and without.

Needs vLLM in the same environment (`make engines-env`, then .venv-engines/bin/twinscope). Two
answers, because they fail differently:

direct        wall time inside the hooks on the engine's front-end thread, and CPU time of the
              plugin's own threads, per finished request. Precise, but blind to what a hook does
              to the rest (caches, the interpreter's lock).
with/without  many short rounds of the same requests with the hooks in place and taken out
              (engine_rounds.py): wall time, and CPU time of the front end and of the engine's
              processes, as medians of the blocks' ratios with a 95 % interval.

With `service` the plugin delivers to a running service, and a third condition is the same with a
service that is gone: a port of this machine that refuses connections, as after a kill.
"""

from __future__ import annotations

import functools
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinscope import Probe
from twinscope.errors import TwinScopeError
from twinscope.hosts.attach import Attachment
from twinscope.hosts.vllm_plugin import VLLM, Tap, install
from twinscope_service.bench.engine_rounds import (
    Blocks,
    Condition,
    Rig,
    books_line,
    hooks,
    run_blocks,
    seams,
    settled_round,
)
from twinscope_service.bench.hand_over import Nowhere

PROMPT_TOKENS = 32
AT_ONCE = 16  # requests that share the engine; the others of a round wait
TIMED = 8  # rounds with stopwatches
OWN_THREADS = ("twinscope",)  # how the plugin's threads are named
LIMIT = 0.01  # of a request's time in the engine: what the plugin may cost
FIGURES = {
    "wall": "wall time",
    "front": "CPU, front end",
    "core": "CPU, engine",
    "cpu": "CPU, both",
}


@dataclass
class Stopwatch:
    """Seconds inside the hooks: those around them minus those of what they wrap."""

    seconds: float = 0.0
    calls: int = 0

    def time(self, call: Callable[..., Any], *, sign: float) -> Callable[..., Any]:
        """`call`, its wall time added (`sign` 1, around a hook) or taken off (-1, inside it)."""
        now = time.perf_counter

        @functools.wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = now()
            result = call(*args, **kwargs)
            self.seconds += sign * (now() - start)
            self.calls += 1
            return result

        return timed

    def hooks(self) -> float:
        """The hooks' own time: without what the two timers of each call cost themselves."""
        return self.seconds - self.calls / 2 * _timers()


def _timers(calls: int = 20_000) -> float:
    """Seconds that two nested timers around nothing measure, per call; the lowest of five."""

    def measure() -> float:
        watch = Stopwatch()
        nothing = watch.time(watch.time(lambda *_: None, sign=-1.0), sign=1.0)
        for _ in range(calls):
            nothing(1, 2, 3)
        return watch.seconds / calls

    return min(measure() for _ in range(5))


@dataclass(frozen=True)
class Direct:
    """What stopwatches around the hooks gave; seconds per finished request."""

    requests: int
    engine: float  # wall time of a round over its requests
    alone: float | None  # from scheduling to the last token; None: vLLM keeps no times
    hooks: float
    threads: float | None  # CPU; None: this system does not tell it per thread

    def lines(self) -> Iterator[str]:
        """The table."""
        yield f"{'':<34}{'per request':>12}{'of its share':>14}{'of its time':>12}"
        rows = {
            "engine, a request's share of it": self.engine,
            "engine, a request's time in it": self.alone,
            "hooks, on the engine's thread": self.hooks,
            "CPU of the plugin's threads": self.threads,
        }
        for name, seconds in rows.items():
            if seconds is not None:
                yield f"{name:<34}{_time(seconds):>12}{self._part(seconds, name)}"

    def _part(self, seconds: float, name: str) -> str:
        if name.startswith("engine"):
            return ""
        alone = "" if self.alone is None else f"{seconds / self.alone:>12.4%}"
        return f"{seconds / self.engine:>14.4%}{alone}"

    @property
    def part(self) -> float:
        """Everything the plugin does for a request, of that request's time in the engine."""
        return (self.hooks + (self.threads or 0.0)) / (self.alone or self.engine)


def run(
    *, model: str, pairs: int, samples: int, max_tokens: int, service: str | None = None
) -> int:
    """Print the tables; exit status 1 if the plugin costs more than LIMIT."""
    conditions = _conditions(service)
    rig = _start(model, conditions[1], samples=samples, max_tokens=max_tokens)
    try:
        blocks = run_blocks(rig, conditions, blocks=pairs)
        direct = _time_hooks(rig, conditions[1])
    finally:
        rig.engine.llm_engine.engine_core.shutdown()
    print(f"{Path(model).name}: {samples} requests of {max_tokens // 4} to {max_tokens} tokens a")
    print(f"round, at most {AT_ONCE} at once; {direct.requests} requests timed\n")
    print("\n".join([*direct.lines(), "", *compare(blocks, conditions)]))
    print(_extra(blocks, conditions, direct, samples))
    for one in conditions:
        if one.probe is not None:
            print(f"{one.name}: {books_line(one.probe.stats())}")
            one.probe.close(0.0)
    verdict = "within" if direct.part < LIMIT else "above"
    print(f"\nthe plugin: {direct.part:.4%} of a request's engine time, {verdict} {LIMIT:.0%}")
    return 0 if direct.part < LIMIT else 1


def compare(blocks: Blocks, conditions: Sequence[Condition]) -> Iterator[str]:
    """Each condition over each that comes before it."""
    names = [condition.name for condition in conditions]
    count = len(blocks.rounds[names[0]])
    yield f"{count} blocks of rounds, medians of their ratios and 95 % intervals"
    for n, name in enumerate(names):
        for to in names[:n]:
            for of, label in FIGURES.items():
                if all(getattr(one, of, 1.0) for one in blocks.rounds[to]):
                    found = blocks.ratio(name, to, of=of)
                    yield (
                        f"{name} / {to}, {label}".ljust(50)
                        + f"{found.middle:.4f}   {found.low:.4f} to {found.high:.4f}"
                    )


def _extra(blocks: Blocks, conditions: Sequence[Condition], direct: Direct, requests: int) -> str:
    """With minus without, in the terms of the table: per request, and of its time."""
    found = blocks.extra(conditions[1].name, conditions[0].name)
    middle, low, high = (part / requests for part in (found.middle, found.low, found.high))
    whole = direct.alone or direct.engine
    return (
        f"with - without, CPU of the front end per request {_time(middle)} ({_time(low)} to "
        f"{_time(high)}), {middle / whole:.4%} of its time "
        f"({low / whole:.4%} to {high / whole:.4%})"
    )


def _conditions(service: str | None) -> list[Condition]:
    """Without comes first, the plugin as it is second."""
    if service is None:
        return [Condition("without"), _with("with", Probe(sink=Nowhere(), environment={}))]
    gone = f"http://127.0.0.1:{_refusing_port()}"
    return [
        Condition("without"),
        _with("with", Probe(service, "bench-probe", environment={})),
        _with("service gone", Probe(gone, "bench-probe", environment={}), delivers=False),
    ]


def _with(name: str, probe: Probe, *, delivers: bool = True) -> Condition:
    attachment = Attachment(VLLM, environment={VLLM.variable: "1"}, make_probe=lambda: probe)
    return Condition(name, Tap(attachment, _vllm().__version__), probe, delivers)


def _refusing_port() -> int:
    """One that was free a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _vllm() -> Any:
    try:
        import vllm
    except ImportError as error:
        raise TwinScopeError(
            "twinscope bench probe --model needs vLLM in the same environment: "
            "make engines-env, then .venv-engines/bin/twinscope"
        ) from error
    return vllm


def _start(model: str, plugged: Condition, *, samples: int, max_tokens: int) -> Rig:
    """An engine that met the plugin when it was made, as with the entry point."""
    assert plugged.tap is not None
    install(plugged.tap)
    engine = _vllm().LLM(
        model, enforce_eager=True, enable_prefix_caching=False, max_num_seqs=AT_ONCE,
        max_model_len=PROMPT_TOKENS + max_tokens, gpu_memory_utilization=0.2,
        disable_log_stats=False, seed=0,
    )  # fmt: skip
    with hooks(None):  # what `install` has put there goes; each round puts its own
        return Rig(engine, *_work(samples, max_tokens))


def _work(samples: int, max_tokens: int) -> tuple[list[Any], list[Any]]:
    """(prompts, parameters): lengths spread evenly, so that requests end one by one."""
    from vllm import SamplingParams

    prompts = [
        {"prompt_token_ids": [3 + (7 * s + t) % 400 for t in range(PROMPT_TOKENS)]}
        for s in range(samples)
    ]
    shortest = max(1, max_tokens // 4)
    lengths = [
        shortest + s * (max_tokens - shortest) // max(1, samples - 1) for s in range(samples)
    ]
    parameters = [
        SamplingParams(max_tokens=n, ignore_eos=True, logprobs=0, seed=s, detokenize=False)
        for s, n in enumerate(lengths)
    ]
    return prompts, parameters


def _time_hooks(rig: Rig, plugged: Condition) -> Direct:
    """Rounds with stopwatches."""
    assert plugged.tap is not None
    before, watch = _own_cpu(), Stopwatch()
    with _stopwatches(plugged.tap, watch):
        timed = [settled_round(rig, plugged) for _ in range(TIMED)]
    after = _own_cpu()
    requests = TIMED * len(rig.prompts)
    each = [seconds for one in timed for seconds in one.each]
    return Direct(
        requests=requests,
        engine=sum(one.wall for one in timed) / requests,
        alone=statistics.fmean(each) if each else None,
        hooks=watch.hooks() / requests,
        threads=None if before is None or after is None else (after - before) / requests,
    )


@contextmanager
def _stopwatches(tap: Tap, watch: Stopwatch) -> Iterator[None]:
    """A timer on either side of each hook."""
    before = {seam: getattr(*seam) for seam in seams().values()}
    for name, (owner, method) in seams().items():
        inner = watch.time(before[owner, method], sign=-1.0)
        setattr(owner, method, watch.time(getattr(tap, name)(inner), sign=1.0))
    try:
        yield
    finally:
        for (owner, method), original in before.items():
            setattr(owner, method, original)


def _own_cpu() -> float | None:
    """CPU seconds of the plugin's threads so far. None: the system does not tell."""
    total = 0.0
    for thread in threading.enumerate():
        if thread.name.startswith(OWN_THREADS):
            path = Path(f"/proc/self/task/{thread.native_id}/schedstat")
            if not path.exists():
                return None
            total += int(path.read_text().split()[0]) / 1e9  # nanoseconds on a core
    return total


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"
