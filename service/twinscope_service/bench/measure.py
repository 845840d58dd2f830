"""`twinscope bench measure`: the measure stage against what verl computes, on one core.

Blocks of the same number of tokens: long samples with ids and a mask, the same with side
information, shorter samples. Both sides run in this process, warm, in alternating rounds, and are
compared by processor time: only the ratios mean anything on another machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from twinscope.errors import ConfigError
from twinscope_service.measure.cpu_core import core_statistics
from twinscope_service.measure.derive import derive
from twinscope_service.measure.engine import build_engine
from twinscope_service.measure.records import (
    COLUMNS,
    LAGS,
    PROFILES,
    SIDE_COLUMNS,
    MeasureOptions,
    PairBlock,
)

SAMPLES = 512
SHORTER = (2000, 1000, 160)  # tokens, the means of the blocks of shorter samples
PROMPT = 256  # tokens
VOCABULARY = 150_000
LONGEST = 2.1  # longest sample over the mean: what a response limit leaves of a long tail
MASKED = 0.1
PAIR_BYTES = 9  # per token: q, p float32 and the mask

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


@dataclass(frozen=True)
class Case:
    """The contenders on one block; verl's functions see its pairs and mask, padded."""

    name: str
    full: Timing
    verl: Timing
    core: Timing | None  # None: not timed on this block

    @property
    def times_faster(self) -> float:
        """verl's time over ours."""
        return self.verl.seconds / self.full.seconds


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


def make_block(tokens: int, *, samples: int = SAMPLES, seed: int = 0) -> PairBlock:
    """Ragged pairs: log-normal lengths, a policy sure of half its tokens, Student-t noise in Δ.

    Token ids are drawn with the frequencies of text (Zipf), one token in ten is masked.
    """
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.lognormal(0.0, 0.6, samples), LONGEST * np.exp(0.18))
    ends = np.rint(np.cumsum(lengths) / lengths.sum() * tokens).astype(np.int64)
    offsets = np.append(np.zeros(1, np.int64), ends)
    q = -rng.exponential(0.6, tokens)
    q[rng.random(tokens) < 0.05] = 0.0  # in float32, sure tokens have log-prob 0
    p = np.minimum(q + 0.03 * -np.expm1(q) * rng.standard_t(4, tokens), 0.0)
    return PairBlock(
        offsets=offsets,
        rollout_logprobs=q.astype(np.float32),
        train_logprobs=p.astype(np.float32),
        sample_keys=rng.integers(0, 256, (samples, 16), dtype=np.uint8),
        mask=(rng.random(tokens) >= MASKED).astype(np.uint8),
        token_ids=(rng.zipf(1.2, tokens) % VOCABULARY).astype(np.int32),
    )


def add_sides(block: PairBlock, *, seed: int = 1) -> PairBlock:
    """`block` with entropy, ref, prompts, weight versions and two groups."""
    rng = np.random.default_rng(seed)
    samples, train = block.samples, block.train_logprobs
    return replace(
        block,
        entropy=rng.exponential(0.6, block.tokens).astype(np.float32),
        ref_logprobs=np.minimum(train + rng.normal(0, 0.05, block.tokens), 0).astype(np.float32),
        prompt_ids=(rng.zipf(1.2, samples * PROMPT) % VOCABULARY).astype(np.int32),
        prompt_offsets=np.arange(samples + 1, dtype=np.int64) * PROMPT,
        rollout_version=rng.integers(96, 100, samples),
        train_version=np.full(samples, 100),
        groups={
            "engine": tuple(f"engine-{s % 8}" for s in range(samples)),
            "turn": tuple(str(s % 3) for s in range(samples)),
        },
    )


def input_bytes(block: PairBlock) -> int:
    """Bytes of the arrays along the token axis."""
    arrays = (block.mask, block.token_ids, block.entropy, block.ref_logprobs)
    return block.tokens * 8 + sum(array.nbytes for array in arrays if array is not None)


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


def compare(tokens: int, rounds: int) -> tuple[list[Case], Timing, dict[str, float]]:
    """The cases, the memory read, and ours over theirs where both compute the same metric."""
    import torch

    from twinscope_service.bench import peers

    torch.set_num_threads(1)
    block = make_block(tokens)
    shorter = {mean: make_block(tokens, samples=max(tokens // mean, 1)) for mean in SHORTER}
    verl = peers.installed_verl() or peers.both
    same = agreement(block, MeasureOptions(), verl(*peers.pad(block)))
    sweep = np.ones(256 * 2**20 // 8)
    with one_core():
        cases = [
            time_case(f"{SAMPLES} samples, ids, mask", block, rounds, core=True),
            time_case("+ entropy, ref, versions, groups", add_sides(block), rounds, core=False),
        ]
        for mean, few in shorter.items():
            cases.append(time_case(f"samples of {mean}, ids, mask", few, rounds, core=False))
        read = interleave({"read": lambda: float(sweep.max())}, rounds)["read"]
    memory = Timing("memory read", read, sweep.nbytes // PAIR_BYTES, sweep.nbytes)
    return cases, memory, same


def time_case(name: str, block: PairBlock, rounds: int, *, core: bool) -> Case:
    """Full measurement, verl's two functions and, if asked for, the core statistics on `block`."""
    from twinscope_service.bench import peers

    engine, options, padded = build_engine("cpu"), MeasureOptions(), peers.pad(block)
    verl = peers.installed_verl() or peers.both
    contenders: dict[str, Callable[[], object]] = {
        "full": lambda: engine.measure(block, options),
        "verl": lambda: verl(*padded),
    }
    if core:
        contenders["core"] = lambda: core_statistics(block, options)
    seconds = interleave(contenders, rounds)
    tokens, pairs = block.tokens, block.tokens * PAIR_BYTES
    return Case(
        name=name,
        full=Timing("twinscope, full", seconds["full"], tokens, input_bytes(block)),
        verl=Timing("verl, two functions", seconds["verl"], tokens, pairs),
        core=Timing("twinscope, core", seconds["core"], tokens, pairs) if core else None,
    )


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


def render(cases: list[Case], memory: Timing, same: dict[str, float]) -> str:
    """The table, what its rows compute, and the ratios that are promised."""
    lines = [f"{'':24}{'ms':>10}{'ns/token':>12}{'GB/s':>8}{'x verl':>8}"]
    for case in cases:
        lines.append(case.name)
        for t in (case.full, case.core, case.verl):
            if t is not None:
                lines.append(row(t) + f"{case.verl.seconds / t.seconds:8.1f}")
    lines += [row(memory), "", *explain(), ""]
    for case in cases:
        lines.append(f"{case.name}: full is {case.times_faster:.1f} x faster than verl's functions")
        if case.core is not None:
            lines.append(f"core against the read bandwidth: {case.core.rate / memory.rate:.1%}")
    lines += [f"{name}: ours / theirs = {ratio:.6f}" for name, ratio in same.items()]
    return "\n".join(lines)


def row(t: Timing) -> str:
    """One line of the table, without the ratio."""
    return f"  {t.name:22}{t.seconds * 1e3:10.1f}{t.nanoseconds:12.2f}{t.rate:8.2f}"


def explain() -> list[str]:
    """What each contender computes."""
    return [
        f"full: {len(COLUMNS)} sums per sample (and {len(SIDE_COLUMNS)} where there are sides), "
        f"{len(PROFILES)} profiles,",
        f"      {len(LAGS)} lags, histogram, extremes, worst tokens, versions, groups; ragged",
        "core: k1, k2, k3, |Δ| and the mean log-probs",
        "verl: 17 numbers per batch (k1, k3, χ², perplexities, probability differences, Pearson);",
        "      padded input, padding not timed; ids and sides are not looked at",
    ]


def main(arguments: list[str]) -> int:
    """Entry of the fresh process: tokens, rounds."""
    print(render(*compare(int(arguments[0]), int(arguments[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
