"""Labelled cases: recorded, re-scored and changed batches; cut, mixed, with bare headers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinscope.wire.batch import Batch
from twinscope.wire.codec import read_trace
from twinscope.wire.schema import TENSOR_BY_NAME
from twinscope_service.diagnose.context import Context
from twinscope_service.join.gather import paired_blocks
from twinscope_service.lab.faults import FAULTS, MARKERS, STRENGTHS, apply
from twinscope_service.measure.engine import MeasureEngine
from twinscope_service.measure.merge import empty, merge
from twinscope_service.measure.records import MeasureOptions, Summary
from twinscope_service.replay import take

BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True)
class Case:
    """One labelled batch. `causes`: what a diagnosis should name, the main one first."""

    name: str
    causes: tuple[str, ...]
    batch: Batch
    origin: str  # the recording it was made from
    kind: str = "whole"  # "quarter": a quarter of the samples is faulty; "two": markers besides


def recorded(folder: Path) -> list[Case]:
    """The labelled traces of a folder with an index.json."""
    index = json.loads((folder / "index.json").read_text())
    return [
        Case(
            Path(entry["file"]).stem,
            tuple(entry.get("causes", [entry["cause"]])),
            read_trace(folder / entry["file"]),
            entry["file"],
        )
        for entry in index
    ]


def faulty(healthy: Sequence[Case], *, seed: int) -> Iterator[Case]:
    """Every fault, at every strength there is, on every healthy case that can carry it."""
    for case in healthy:
        for name, fault in (FAULTS | STRENGTHS).items():
            if name == "token_shift_padding" and not np.any(case.batch.tensors.get("pad_left", 0)):
                continue
            batch = apply(fault, case.batch, seed)
            yield Case(f"{case.name}+{name}", (fault.cause,), batch, case.origin)


def marked(faulty: Sequence[Case], *, seed: int) -> Iterator[Case]:
    """Every one of `MARKERS` on every case: two faults at once."""
    for case in faulty:
        for name, fault in MARKERS.items():
            batch = apply(fault, case.batch, seed)
            causes = (*case.causes, fault.cause)
            yield replace(case, name=f"{case.name}+{name}", causes=causes, batch=batch, kind="two")


def part(case: Case, *, tokens: int, seed: int) -> Case:
    """A random set of samples with at least `tokens` tokens (or all there are)."""
    order = np.random.default_rng(seed).permutation(case.batch.samples)
    lengths = np.diff(case.batch.offsets)[order]
    count = int(np.searchsorted(np.cumsum(lengths), tokens)) + 1
    chosen = np.sort(order[:count]).tolist()
    return replace(case, name=f"{case.name}/{tokens}", batch=take(case.batch, chosen))


def mixed(faulty_case: Case, healthy_case: Case, *, share: float, seed: int) -> Case:
    """`share` of the samples from the faulty case, the rest healthy."""
    random = np.random.default_rng(seed)
    count = faulty_case.batch.samples
    bad = np.sort(random.choice(count, max(2, round(share * count)), replace=False)).tolist()
    # both may come from one recording: no sample twice
    good = np.setdiff1d(np.arange(healthy_case.batch.samples), bad)
    good = np.sort(random.choice(good, min(len(good), count - len(bad)), replace=False))
    batch = joined(take(faulty_case.batch, bad), take(healthy_case.batch, good.tolist()))
    return replace(faulty_case, name=f"{faulty_case.name}*{share:g}", batch=batch)


def joined(a: Batch, b: Batch) -> Batch:
    """Both batches' samples in one; only tensors that both have."""
    tensors: dict[str, Any] = {}
    for name in a.tensors.keys() & b.tensors.keys():
        x, y = a.tensors[name], b.tensors[name]
        if TENSOR_BY_NAME[name].shape == ("S+1",):
            tensors[name] = np.concatenate([x, y[1:] + x[-1]])
        else:
            tensors[name] = np.concatenate([x, y], axis=-1)
    ids = tuple(f"m{i}" for i in range(a.samples + b.samples))
    return replace(a, tensors=tensors, sample_ids=ids, groups={})


def bare(case: Case) -> Case:
    """The same without what the headers say, and without log-sum-exp."""
    tensors = {name: v for name, v in case.batch.tensors.items() if name != "logsumexp_T"}
    batch = replace(
        case.batch, tensors=tensors, sampling=None, rollout=None, train=None, temperatures=None
    )
    return replace(case, name=f"{case.name}-bare", batch=batch)


def summarise(batch: Batch, engine: MeasureEngine) -> tuple[Summary, Context]:
    """What diagnosis gets: the measured summary and the context of the headers."""
    context = Context.from_batches([batch])
    if context.join.joined == 0:
        return empty(), context
    summary = empty()
    for block in paired_blocks(batch, block_tokens=BLOCK_TOKENS):
        summary = merge(summary, engine.measure(block, MeasureOptions()))
    return summary, context
