"""What a probe costs its host: the calling thread's time per call, by size, and what follows it.

Times are CPU times of the thread (`thread_time`), so that a busy machine shows less. The vLLM tap
is fed with samples in vLLM's own layout; for a run with an engine see tests/engines.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from twinscope import Probe
from twinscope.hosts.attach import Attachment
from twinscope.hosts.vllm_plugin import VLLM, Engine, Request, Tap
from twinscope_service.bench import hand_over

SIZES = (100, 1_000, 8_000, 32_000)  # tokens of a sample


def run(*, rounds: int) -> int:
    """Print one line per form and size, then one per size of a finished request."""
    print(
        f"{'Probe.train with':<24}{'samples':>9}{'tokens':>9}{'call µs':>10}{'bare copy':>11}"
        f"{'beyond':>9}   95 % interval"
    )
    for cost in hand_over.measure(rounds=rounds):
        beyond = cost.beyond
        print(
            f"{cost.form:<24}{cost.samples:>9}{cost.tokens:>9}{cost.call:>10.0f}{cost.bare:>11.0f}"
            f"{beyond.middle:>9.0f}   {beyond.low:.0f} to {beyond.high:.0f}",
            flush=True,
        )
    print(f"\n{'call':<24}{'tokens':>9}{'host µs':>10}{'p90':>9}{'later µs':>11}")
    for name, tokens, call, settle in _cases():
        start = time.process_time()
        host = [_timed(call, settle) for _ in range(rounds)]
        later = (time.process_time() - start - sum(host)) / rounds
        p90 = sorted(host)[int(0.9 * (rounds - 1))]
        print(
            f"{name:<24}{tokens:>9}{statistics.median(host) * 1e6:>10.0f}"
            f"{p90 * 1e6:>9.0f}{later * 1e6:>11.0f}"
        )
    return 0


def _timed(call: Callable[[], object], settle: Callable[[], object]) -> float:
    spent = hand_over.timed(call)
    settle()  # the other threads run between calls, as in a run
    return spent


Case = tuple[str, int, Callable[[], object], Callable[[], object]]


def _cases() -> Iterator[Case]:
    """(name, tokens per call, the call, wait for what follows)."""
    for size in SIZES:
        probe = Probe(sink=hand_over.Nowhere(), environment={})
        tap = Tap(
            Attachment(VLLM, environment={}, make_probe=functools.partial(_given, probe)), "bench"
        )
        tap.listen()
        state = _state(size)
        request = Request(Engine({}, "bench"), SimpleNamespace(temperature=1.0), hidden=False)
        finish = functools.partial(tap.finish, state, request, "stop")
        yield "vLLM request finished", size, finish, functools.partial(_settle, tap, probe)


def _given(probe: Probe) -> Probe:
    return probe


def _settle(tap: Tap, probe: Probe) -> None:
    tap.drain(60)
    probe.flush(60)


def _state(size: int) -> Any:
    """A finished request as vLLM keeps it, with logprobs=0 and flat_logprobs."""

    class Flat:
        def __init__(self) -> None:
            self.logprobs = [-1.5] * size
            self.start_indices = list(range(size))

        def __len__(self) -> int:
            return size

    return SimpleNamespace(
        logprobs_processor=SimpleNamespace(logprobs=Flat()),
        detokenizer=SimpleNamespace(output_token_ids=list(range(size))),
        prompt_token_ids=[1] * 500, num_cached_tokens=0, lora_name=None,
        weight_version_starts=[("1", 0)],
    )  # fmt: skip
