"""The hand-over of one call, in every form and three sizes, beside the bare copy of its arrays.

The bare copy is one `copyto` or `concatenate` per array, or a copy of each list, into memory that
exists. The call's time minus it is what the probe costs beyond the copy that it cannot avoid: one
difference per round, made in alternating order, and the median of them with its interval.
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
from twinscope_service.bench.interval import Interval, median_interval

SHAPES = ((64, 100), (64, 10_000), (512, 1_250))  # samples, tokens of a padded row
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
    samples: int
    tokens: int  # of the answers, without padding
    call: float
    bare: float
    beyond: Interval  # of the call minus the bare copy of the same round


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
    for samples, tokens in SHAPES:
        for form in forms(samples, tokens):
            yield _measure(form, rounds, samples=samples)


def _measure(form: Form, rounds: int, *, samples: int) -> Cost:
    """Call and copy in turn, so that both see the same machine; the first find cold memory."""
    with Probe(sink=Nowhere(), environment={}, buffer_bytes=BUFFER_BYTES) as probe:

        def call() -> float:
            seconds = timed(lambda: probe.train(step=0, **form.fields))
            probe.flush(60)
            return seconds * 1e6

        def copy() -> float:
            return timed(form.bare) * 1e6

        both = [_in_order(call, copy, swapped=n % 2 == 1) for n in range(rounds + 2)][2:]
        tokens = probe.stats().captured.tokens // (rounds + 2)
    calls, copies = zip(*both, strict=True)
    beyond = median_interval([one - other for one, other in both])
    return Cost(
        form.name, samples, tokens, statistics.median(calls), statistics.median(copies), beyond
    )


def _in_order(
    first: Callable[[], float], second: Callable[[], float], *, swapped: bool
) -> tuple[float, float]:
    """(first(), second()); swapped: the second is called first."""
    if swapped:
        later = second()
        return first(), later
    return first(), second()


def timed(call: Callable[[], object]) -> float:
    """Seconds of this thread's CPU time."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def forms(samples: int, tokens: int) -> Iterator[Form]:
    """Log-probs, ids and a mask of answers between half and the whole of `tokens` long."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(tokens // 2, tokens, samples)
    logprobs = -rng.random((samples, tokens)).astype(np.float32)
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
    yield from _torch_forms(padded, rows, copy)


def _torch_forms(
    padded: dict[str, Any],
    rows: dict[str, Any],
    copy: Callable[[], object],
) -> Iterator[Form]:
    """The same tensors of torch; none without torch. numpy copies them: torch's would use threads.

    Of a list of rows torch's own `cat` is the bare copy, on one thread: each row costs it more.
    """
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
    yield Form("a list of torch rows", parts, _joins(list(parts.values()), torch.cat))


def _copies(arrays: list[Any]) -> Callable[[], object]:
    return _writes(arrays, make=np.zeros_like, write=np.copyto)


def _joins(columns: list[Any], join: Any = np.concatenate) -> Callable[[], object]:
    return _writes(columns, make=join, write=lambda target, rows: join(rows, out=target))


def _writes(
    sources: list[Any], *, make: Callable[[Any], Any], write: Callable[[Any, Any], object]
) -> Callable[[], object]:
    """`write(target, source)` for each source, into sets of targets in turn."""
    targets = itertools.cycle([[make(source) for source in sources] for _ in range(TARGETS)])

    def copy() -> None:
        for target, source in zip(next(targets), sources, strict=True):
            write(target, source)

    return copy
