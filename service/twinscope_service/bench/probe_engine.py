"""What the vLLM plugin costs a running engine: time inside its hooks, and rounds with and without.

Needs vLLM in the same environment (`make engines-env`, then .venv-engines/bin/twinscope). Two
answers, because they fail differently:

direct        wall time inside the hooks on the engine's front-end thread, and CPU time of the
              plugin's own threads, per finished request. Precise, but blind to what a hook does
              to the rest (caches, the interpreter's lock).
with/without  whole rounds of the same requests with the hooks in place and taken out, in pairs of
              alternating order: wall time, and CPU time of the front end's process. They see
              everything, at the noise of the machine; a busy one disturbs the CPU time less.
"""

from __future__ import annotations

import functools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinscope import Probe
from twinscope.errors import TwinScopeError
from twinscope.hosts.attach import Attachment, unwrap, wrap
from twinscope.hosts.vllm_plugin import VLLM, Tap, install
from twinscope_service.bench.hand_over import Nowhere

PROMPT_TOKENS = 32
AT_ONCE = 16  # requests that share the engine; the others of a round wait
OWN_THREADS = ("twinscope",)  # how the plugin's threads are named
LIMIT = 0.01  # of a request's time in the engine: what the plugin may cost


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
class Rig:
    """An engine with the plugin in it, and the requests of a round."""

    engine: Any
    tap: Tap
    probe: Probe
    prompts: list[Any]
    parameters: list[Any]


@dataclass(frozen=True)
class Round:
    """One round of requests."""

    seconds: float  # wall
    cpu: float  # CPU seconds of this process, until the plugin has nothing left to do
    each: list[float]  # seconds from scheduling to the last token, per request


@dataclass
class Findings:
    """What the rounds gave; seconds per finished request unless named otherwise."""

    requests: int
    engine: float  # wall time of a round over its requests
    alone: float | None  # from scheduling to the last token; None: vLLM keeps no times
    hooks: float
    threads: float | None  # CPU; None: this system does not tell it per thread
    ratios: list[float] = field(default_factory=list)  # wall time, with over without, per pair
    extra: list[float] = field(default_factory=list)  # CPU, with minus without, per pair

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
        yield f"\nwith and without, {len(self.ratios)} pairs of rounds (median, quartiles):"
        low, middle, high = statistics.quantiles(self.extra, n=4)
        yield (
            f"CPU, difference per request       {_time(middle):>12}{middle / self.engine:>14.4%}"
            f"   ({_time(low)} to {_time(high)})"
        )
        low, middle, high = statistics.quantiles(self.ratios, n=4)
        yield f"wall time, ratio                  {middle:>12.4f}   ({low:.4f} to {high:.4f})"

    def _part(self, seconds: float, name: str) -> str:
        if name.startswith("engine"):
            return ""
        alone = "" if self.alone is None else f"{seconds / self.alone:>12.4%}"
        return f"{seconds / self.engine:>14.4%}{alone}"

    @property
    def part(self) -> float:
        """Everything the plugin does for a request, of that request's time in the engine."""
        return (self.hooks + (self.threads or 0.0)) / (self.alone or self.engine)


def run(*, model: str, pairs: int, samples: int, max_tokens: int) -> int:
    """Print the table; exit status 1 if the plugin costs more than LIMIT."""
    rig = _start(model, samples=samples, max_tokens=max_tokens)
    try:
        found = _measure(rig, pairs=pairs)
    finally:
        rig.engine.llm_engine.engine_core.shutdown()
    print(f"{Path(model).name}: {samples} requests of {max_tokens // 4} to {max_tokens} tokens a")
    print(f"round, at most {AT_ONCE} at once; {found.requests} requests timed\n")
    print("\n".join(found.lines()))
    verdict = "within" if found.part < LIMIT else "above"
    print(f"\nthe plugin: {found.part:.4%} of a request's engine time, {verdict} {LIMIT:.0%}")
    return 0 if found.part < LIMIT else 1


def _start(model: str, *, samples: int, max_tokens: int) -> Rig:
    """An engine with the plugin in it, as the entry point installs it."""
    try:
        import vllm
    except ImportError as error:
        raise TwinScopeError(
            "twinscope bench probe --model needs vLLM in the same environment: "
            "make engines-env, then .venv-engines/bin/twinscope"
        ) from error
    probe = Probe(sink=Nowhere(), environment={})
    attachment = Attachment(VLLM, environment={VLLM.variable: "1"}, make_probe=lambda: probe)
    tap = Tap(attachment, vllm.__version__)
    install(tap)
    engine = vllm.LLM(
        model, enforce_eager=True, enable_prefix_caching=False, max_num_seqs=AT_ONCE,
        max_model_len=PROMPT_TOKENS + max_tokens, gpu_memory_utilization=0.2,
        disable_log_stats=False, seed=0,
    )  # fmt: skip
    return Rig(engine, tap, probe, *_work(samples, max_tokens))


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


def _measure(rig: Rig, *, pairs: int) -> Findings:
    """One round to warm up, `pairs` with and without, then as many with stopwatches."""
    _settled_round(rig)
    compared = [_pair(rig, first=number % 2 == 0) for number in range(pairs)]
    before, watch = _own_cpu(), Stopwatch()
    with _stopwatches(rig.tap, watch):
        timed = [_settled_round(rig) for _ in range(pairs)]
    after = _own_cpu()
    requests = pairs * len(rig.prompts)
    each = [seconds for one in timed for seconds in one.each]
    return Findings(
        requests=requests,
        engine=sum(one.seconds for one in timed) / requests,
        alone=statistics.fmean(each) if each else None,
        hooks=watch.hooks() / requests,
        threads=None if before is None or after is None else (after - before) / requests,
        ratios=[on.seconds / off.seconds for on, off in compared],
        extra=[(on.cpu - off.cpu) / len(rig.prompts) for on, off in compared],
    )


def _pair(rig: Rig, *, first: bool) -> tuple[Round, Round]:
    """(with, without); `first`: with comes first."""
    found: dict[bool, Round] = {}
    for hooked in (first, not first):
        with _hooks(rig.tap, present=hooked):
            found[hooked] = _settled_round(rig)
    return found[True], found[False]


def _settled_round(rig: Rig) -> Round:
    """A round, and nothing of it left for the next one's time."""
    cpu, start = time.process_time(), time.perf_counter()
    outputs = rig.engine.generate(rig.prompts, rig.parameters, use_tqdm=False)
    seconds = time.perf_counter() - start
    if not (rig.tap.drain(60) and rig.probe.flush(60)):
        raise TwinScopeError("twinscope bench probe: the plugin did not deliver within a minute")
    cpu = time.process_time() - cpu
    times = [output.metrics for output in outputs]
    return Round(seconds, cpu, [t.last_token_ts - t.scheduled_ts for t in times if t is not None])


def _seams() -> Mapping[str, tuple[Any, str]]:
    """name of the tap's wrap -> (class, method): what runs for every request."""
    from vllm.v1.engine import output_processor

    return {
        "wrap_add": (output_processor.OutputProcessor, "add_request"),
        "wrap_output": (output_processor.RequestState, "make_request_output"),
    }


@contextmanager
def _hooks(tap: Tap, *, present: bool) -> Iterator[None]:
    """With the hooks in place (as they are) or, for the time of the block, without."""
    if present:
        yield
        return
    for owner, method in _seams().values():
        unwrap(owner, method)
    try:
        yield
    finally:
        for name, (owner, method) in _seams().items():
            wrap(owner, method, getattr(tap, name))


@contextmanager
def _stopwatches(tap: Tap, watch: Stopwatch) -> Iterator[None]:
    """A timer on either side of each hook."""
    with _hooks(tap, present=False):
        before = {seam: getattr(*seam) for seam in _seams().values()}
        for name, (owner, method) in _seams().items():
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
