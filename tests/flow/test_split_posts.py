"""A recorded trace gives the same numbers whole and in pieces, whoever sends them and how often."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from batches import body_of, cut_trace, parametrize_traces
from pipelines import Bench

from twinscope.wire.codec import decode
from twinscope_service.measure.derive import derive
from twinscope_service.measure.records import Summary

POSTS, THREADS = 37, 8


@parametrize_traces()
@pytest.mark.parametrize("named", [True, False], ids=["by-id", "by-content"])
def test_shuffled_one_sided_posts_measure_what_the_whole_trace_does(
    trace: Path, named: bool, make_bench: Callable[..., Bench]
) -> None:
    """37 posts over 8 threads, a tenth of them twice."""
    body = trace.read_bytes()
    batch = decode(body)
    bench = make_bench()
    bench.send(body)
    bench.pipeline.close_step(batch.run, 0)
    samples, dice = cut_trace(batch), random.Random(trace.stem)
    posts = _posts(samples, dice, named=named, expect={"rollout": 1, "train": 1})
    sent_twice = posts + dice.sample(posts, POSTS // 10 + 1)
    dice.shuffle(sent_twice)

    with ThreadPoolExecutor(THREADS) as threads:
        receipts = list(threads.map(bench.send, sent_twice))
    assert sum(receipt.duplicate for receipt in receipts) == POSTS // 10 + 1
    bench.pipeline.close_step("pieces", 0)

    whole, pieces = bench.pipeline.step(batch.run, 0), bench.pipeline.step("pieces", 0)
    assert pieces.samples == len(samples)
    assert pieces.coverage == whole.coverage
    if "entropy" not in batch.tensors:  # the pieces carry the pair alone; causes may need more
        assert pieces.verdict == whole.verdict
    for name, value in _core(bench.pipeline.summary(batch.run, 0), bench).items():
        assert pieces.metrics[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    assert bench.inbox() == []


def _posts(samples: list, dice: random.Random, *, named: bool, expect: dict) -> list[bytes]:  # type: ignore[type-arg]
    """POSTS bodies that hold every sample once per side; only the train side knows the step."""
    posts = []
    for side, count in (("rollout", POSTS // 2), ("train", POSTS - POSTS // 2)):
        shuffled = dice.sample(samples, len(samples))
        for number, part in enumerate(np.array_split(np.arange(len(samples)), count)):
            step = 0 if side == "train" else None
            mine = [shuffled[i] for i in part]
            part_id = {"rank": number, "index": 0}
            posts.append(body_of(mine, side, run="pieces", step=step, named=named, part=part_id))
    return posts


def _core(summary: Summary | None, bench: Bench) -> dict[str, float]:
    assert summary is not None
    metrics = derive(summary, bench.pipeline._stages.options)
    names = ("k1_mean", "k2_mean", "k3_mean", "abs_mean", "abs_max", "abs_p99", "rho_mean",
             "ess_ratio", "pearson_prob", "prob_diff_mean", "clip_fraction")  # fmt: skip
    return {name: value for name in names if (value := metrics[name]) is not None}
