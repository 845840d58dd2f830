"""The hand-over of one call, in every form and two sizes, beside the bare copy of the same arrays.

The bare copy is one `copyto` or `concatenate` per array, or a copy of each list, into memory that
exists. The call's time minus it is what the probe costs beyond the copy that it cannot avoid.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinscope import Probe
from twinscope.sink import Answer

SAMPLES = 64
TOKENS = (100, 10_000)  # of a padded row: once, and a hundred times
TARGETS = 4  # sets of memory in turn: one alone would stay in the processor's cache
BUFFER_BYTES = 1 << 30


@dataclass(frozen=True)
class Form:
    """`fields` of `Probe.train`; `bare()` copies the arrays among them."""

    name: str
    fields: dict[str, Any]
    bare: Callable[[], object]


@dataclass(frozen=True)
class Cost:
    """Medians in microseconds of the thread's CPU time."""

    form: str
    tokens: int  # of the answers, without padding
    call: float
    bare: float
    beyond: float  # of the call minus the bare copy that was made right after it


class Nowhere:
    """A sink that takes everything: encoding is part of the cost, another process is not."""

    def send(self, _: Any) -> Answer:
        """Taken."""
        return Answer("accepted", 202)

    def abort(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""

    def forget_after_fork(self) -> None:
        """Nothing is kept."""


def measure(*, rounds: int) -> Iterator[Cost]:
    """One per form and size. The sending thread rests while a call is timed."""
    for tokens in TOKENS:
        for form in forms(tokens):
            yield _measure(form, rounds)


def _measure(form: Form, rounds: int) -> Cost:
    """Call and copy in turn, so that both see the same machine; the first finds cold memory."""
    calls, copies = [], []
    with Probe(sink=Nowhere(), environment={}, buffer_bytes=BUFFER_BYTES) as probe:
        for _ in range(rounds + 1):
            calls.append(timed(lambda: probe.train(step=0, **form.fields)))
            probe.flush(60)
            copies.append(timed(form.bare))
        tokens = probe.stats().captured.tokens // (rounds + 1)
    beyond = [call - copy for call, copy in zip(calls, copies, strict=True)]
    medians = [statistics.median(seconds[1:]) * 1e6 for seconds in (calls, copies, beyond)]
    return Cost(form.name, tokens, *medians)


def timed(call: Callable[[], object]) -> float:
    """Seconds of this thread's CPU time."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def forms(tokens: int) -> Iterator[Form]:
    """Log-probs, ids and a mask of answers between half and the whole of `tokens` long."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(tokens // 2, tokens, SAMPLES)
    logprobs = -rng.random((SAMPLES, tokens)).astype(np.float32)
    ids, mask = rng.integers(0, 50_000, logprobs.shape), np.arange(tokens) < lengths[:, None]
    padded: dict[str, Any] = {"logprobs": logprobs, "token_ids": ids, "mask": mask}
    rows = {
        name: [row[:n].copy() for row, n in zip(padded[name], lengths, strict=True)]
        for name in ("logprobs", "token_ids")
    }
    lists = {name: [row.tolist() for row in column] for name, column in rows.items()}
    copy, join = _copies(list(padded.values())), _joins(list(rows.values()))
    yield Form("[S,T] numpy", padded, copy)
    yield Form("a list of numpy rows", rows, join)
    yield Form("a list of lists", lists, lambda: [[row[:] for row in c] for c in lists.values()])
    yield from _torch_forms(padded, rows, copy, join)


def _torch_forms(
    padded: dict[str, Any],
    rows: dict[str, Any],
    copy: Callable[[], object],
    join: Callable[[], object],
) -> Iterator[Form]:
    """The same tensors of torch; none without torch. Its own copies would start threads."""
    try:
        import torch
    except ImportError:
        return
    ids = padded["token_ids"]
    tensors = {name: torch.from_numpy(value) for name, value in padded.items()}
    yield Form("[S,T] torch", tensors, copy)
    half = {**tensors, "logprobs": tensors["logprobs"].bfloat16(), "mask": tensors["mask"].long()}
    same_bytes = [padded["logprobs"].astype(np.float16), ids, ids]
    yield Form("[S,T] torch, bfloat16", half, _copies(same_bytes))
    parts = {name: [torch.from_numpy(row) for row in column] for name, column in rows.items()}
    yield Form("a list of torch rows", parts, join)


def _copies(arrays: list[Any]) -> Callable[[], object]:
    targets = _in_turn(lambda: [np.zeros_like(a) for a in arrays])

    def copy() -> None:
        for target, source in zip(next(targets), arrays, strict=True):
            np.copyto(target, source)

    return copy


def _joins(columns: list[Any]) -> Callable[[], object]:
    targets = _in_turn(lambda: [np.concatenate(rows) for rows in columns])

    def join() -> None:
        for target, rows in zip(next(targets), columns, strict=True):
            np.concatenate(rows, out=target)

    return join


def _in_turn(make: Callable[[], list[Any]]) -> Iterator[list[Any]]:
    return itertools.cycle([make() for _ in range(TARGETS)])
