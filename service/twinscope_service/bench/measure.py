"""`twinscope bench measure`: the measure stage against what verl computes, on one core.

Both sides run in this process, warm, in alternating rounds, and are compared by processor time:
only the ratios mean anything on another machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from twinscope.errors import ConfigError
from twinscope_service.measure.cpu_core import core_statistics
from twinscope_service.measure.derive import derive
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.records import MeasureOptions, PairBlock

SAMPLES = 512
LONGEST = 2.1  # longest sample over the mean: what a response limit leaves of a long tail
MASKED = 0.1
BYTES_PER_TOKEN = 9  # q, p float32 and the mask

# glibc: keep freed memory instead of giving it back after each tensor; helps torch most, so the
# comparison is with the faster of the two ways to run verl
WARM_MALLOC = {"MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_MMAP_THRESHOLD_": "17179869184"}
ONE_THREAD = {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Timing:
    """Median processor time of one contender."""

    name: str
    seconds: float
    tokens: int
    bytes: int

    @property
    def nanoseconds(self) -> float:
        """ns per token pair."""
        return self.seconds / self.tokens * 1e9

    @property
    def rate(self) -> float:
        """GB of input per second."""
        return self.bytes / self.seconds / 1e9


def run(*, tokens: int, rounds: int) -> int:
    """Measure in a fresh process with one thread and a warm allocator; print; 0 if it went well."""
    if tokens < SAMPLES:
        raise ConfigError(f"tokens: got {tokens}; use at least {SAMPLES}")
    if rounds < 1:
        raise ConfigError(f"rounds: got {rounds}; use at least 1")
    command = [sys.executable, "-m", __name__, str(tokens), str(rounds)]
    return subprocess.run(
        command, env=os.environ | ONE_THREAD | WARM_MALLOC, check=False
    ).returncode


def make_block(tokens: int, *, seed: int = 0) -> PairBlock:
    """Ragged pairs: log-normal lengths, a policy sure of half its tokens, Student-t noise in Δ."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(0.0, 0.6, SAMPLES), LONGEST * np.exp(0.18))
    lengths = np.maximum((lengths / lengths.sum() * tokens).astype(np.int64), 1)
    lengths[0] += tokens - lengths.sum()
    q = -rng.exponential(0.6, tokens)
    q[rng.random(tokens) < 0.05] = 0.0  # in float32, sure tokens have log-prob 0
    p = np.minimum(q + 0.03 * -np.expm1(q) * rng.standard_t(4, tokens), 0.0)
    return PairBlock(
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        rollout_logprobs=q.astype(np.float32),
        train_logprobs=p.astype(np.float32),
        sample_keys=rng.integers(0, 256, (SAMPLES, 16), dtype=np.uint8),
        mask=(rng.random(tokens) >= MASKED).astype(np.uint8),
    )


@contextmanager
def one_core() -> Iterator[None]:
    """Pin the process to one core where the system allows it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def interleave(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each, in alternating rounds after one unmeasured round."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            start = time.process_time()
            work()
            if number > 0:
                taken[name].append(time.process_time() - start)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def compare(tokens: int, rounds: int) -> tuple[list[Timing], dict[str, float]]:
    """Timings, and ours over theirs where both compute the same metric."""
    import torch

    from twinscope_service.bench import peers

    torch.set_num_threads(1)
    block, options = make_block(tokens), MeasureOptions()
    engine, padded = build_engine("cpu"), peers.pad(block)
    verl = peers.installed_verl() or peers.both
    sweep = np.ones(256 * 2**20 // 8)
    contenders: dict[str, Callable[[], object]] = {
        "full": lambda: engine.measure(block, options),
        "verl": lambda: verl(*padded),
        "core": lambda: core_statistics(block, options),
        "read": lambda: float(sweep.max()),
    }
    with one_core():
        seconds = interleave(contenders, rounds)
    size = tokens * BYTES_PER_TOKEN
    timings = [
        Timing("twinscope, full", seconds["full"], tokens, size),
        Timing("twinscope, core", seconds["core"], tokens, size),
        Timing("verl, two functions", seconds["verl"], tokens, size),
        Timing("memory read", seconds["read"], sweep.nbytes // BYTES_PER_TOKEN, sweep.nbytes),
    ]
    return timings, agreement(block, options, verl(*padded))


def agreement(
    block: PairBlock, options: MeasureOptions, theirs: dict[str, float]
) -> dict[str, float]:
    """Ours over theirs for k1 and the mean probability difference: both sides measured the same."""
    ours = derive(build_engine("cpu").measure(block, options), options)
    names = {"rollout_corr/kl": "kl", "rollout_probs_diff_mean": "rollout_probs_diff_mean"}
    found = {}
    for our_name, their_name in names.items():
        value = ours[our_name]
        if value is not None and their_name in theirs:
            found[our_name] = value / theirs[their_name]
    return found


def render(timings: list[Timing], same: dict[str, float]) -> str:
    """The table, and the three ratios that are promised."""
    full, core, verl, read = timings
    lines = [f"{'':22}{'ms':>10}{'ns/token':>12}{'GB/s':>8}{'x verl':>8}"]
    for t in timings:
        ratio = "" if t is read else f"{verl.seconds / t.seconds:8.1f}"
        lines.append(f"{t.name:22}{t.seconds * 1e3:10.1f}{t.nanoseconds:12.2f}{t.rate:8.2f}{ratio}")
    lines += [
        "",
        f"full against verl's two functions: {verl.seconds / full.seconds:.1f} x faster",
        f"core against the read bandwidth: {core.rate / read.rate:.1%}",
    ]
    lines += [f"{name}: ours / theirs = {ratio:.6f}" for name, ratio in same.items()]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Entry of the fresh process: tokens, rounds."""
    print(render(*compare(int(arguments[0]), int(arguments[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
