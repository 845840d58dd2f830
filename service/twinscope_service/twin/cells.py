"""The comparisons of the twin test. Each isolates one thing that can make two scores differ."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinscope import Probe
from twinscope.testing import InMemorySink
from twinscope_service.config import Settings
from twinscope_service.pipeline import open_pipeline
from twinscope_service.twin.cached import Cached, cached_of
from twinscope_service.twin.engine import How, Samples, Source
from twinscope_service.twin.trainer import Scorer
from twinscope_service.views import StepView, Verdict

Values = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Cell:
    """One comparison: the same tokens, scored in two ways."""

    name: str
    question: str
    samples: Samples
    rollout: Values  # what takes q's place
    train: Values  # what takes p's place
    sampling: Mapping[str, Any]
    cached: Cached | None = None  # None: the cell does not ask for the prefix cache


@dataclass(frozen=True)
class Result:
    """A cell, measured and diagnosed."""

    cell: Cell
    view: StepView

    @property
    def verdict(self) -> Verdict:
        """The step's verdict; bitwise equality is good news here.

        In a run it would mean that one side was copied (`bypass_mode`); here both were computed.
        Nothing from the cache, nothing to say of it: `unknown`, unless something else is wrong.
        """
        counts = self.view.coverage
        equal = 0 < counts["counted"] == counts["delta_zero"]
        verdict = "ok" if equal else self.view.verdict
        return "unknown" if verdict == "ok" and self._unseen else verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not ok."""
        return (*self.view.reasons, *([self._unseen] if self._unseen else []))

    @property
    def _unseen(self) -> str | None:
        return None if self.cell.cached is None else self.cell.cached.reason


@dataclass(frozen=True)
class Repeatability:
    """The same tokens scored twice: how many values differ."""

    tokens: int
    differing: int
    largest: float  # |difference|, nats


def cells(
    engine: Source,
    score: Scorer,
    prompts: Sequence[Sequence[int]],
    *,
    trainer_temperature: float,
    salt: str,
    others: Mapping[str, Scorer] | None = None,
    forced: bool = True,
    warm: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Cell]:
    """Sample and score, cell by cell; `tell(what)` before each piece of work.

    `others`: the trainer in other micro-batches, by the cell's name. `forced`: forced decoding too,
    which takes a request per token. `warm`: ask for the prefix cache too.
    """

    def against_trainer(name: str, question: str, found: Samples, temperature: float) -> Cell:
        tell(f"{name}: trainer")
        p = score(found.prompts, found.responses, temperature=temperature)
        return Cell(name, question, found, found.logprobs, p, engine.sampling)

    def sampled(name: str, how: How, own_salt: str, **changes: Any) -> Samples:
        tell(f"{name}: engine")
        return engine.sample(prompts, how=how, salt=own_salt, **changes)

    cold = sampled("sampled", "together", salt)
    first = against_trainer(
        "sampled", "Does what the engine reports equal what the trainer computes?", cold,
        trainer_temperature,
    )  # fmt: skip
    yield first
    if warm:
        again = sampled("warm cache", "apart", salt)  # only so each answer says what was cached
        question = "The same prompts again: are cached prefixes those of these weights?"
        found = against_trainer("warm cache", question, again, trainer_temperature)
        yield dataclasses.replace(found, cached=cached_of(again))
    alone = sampled("alone", "alone", f"{salt}-alone")
    question = "One request at a time: does the batch change the engine's numbers?"
    yield against_trainer("alone", question, alone, trainer_temperature)
    greedy = sampled("greedy", "together", f"{salt}-greedy", temperature=0.0)
    question = "Without randomness and temperature: is it the sampling, or the model?"
    found = against_trainer("greedy", question, greedy, 1.0)
    yield dataclasses.replace(found, sampling={"temperature": 0.0})
    yield from _engine_cells(engine, score, cold, forced=forced, tell=tell)
    yield from _trainer_cells(score, first, trainer_temperature, others or {}, tell)


def _engine_cells(
    engine: Source, score: Scorer, cold: Samples, *, forced: bool, tell: Callable[[str], None]
) -> Iterator[Cell]:
    """The third and the fourth scorer: the engine's prefill, and its decoding, of given tokens."""
    tell("prefill: engine")
    prefill = engine.prefill(cold)
    if forced:
        tell("forced decode: engine")
    decoded = engine.forced(cold) if forced else None
    if prefill is None and decoded is None:
        return
    tell("prefill: trainer")
    p = score(cold.prompts, cold.responses, temperature=1.0)
    plain = {"temperature": 1.0}
    if prefill is not None:
        question = "The engine's prefill against the trainer, both at temperature 1: same weights?"
        yield Cell("prefill", question, cold, prefill, p, plain)
    if decoded is not None:
        question = "The same tokens decoded one by one, at temperature 1: is the decode path right?"
        yield Cell("forced decode", question, cold, decoded, p, plain)
    if prefill is not None and decoded is not None:
        question = "The engine against itself: does decoding give what its prefill gives?"
        yield Cell("engine alone", question, cold, decoded, prefill, plain)


def _trainer_cells(
    score: Scorer,
    first: Cell,
    temperature: float,
    others: Mapping[str, Scorer],
    tell: Callable[[str], None],
) -> Iterator[Cell]:
    """The trainer against itself: in its layout, in other micro-batches, and sample by sample."""
    tell("trainer alone")
    pairs = zip(first.samples.prompts, first.samples.responses, strict=True)
    single = [score([prompt], [response], temperature=temperature)[0] for prompt, response in pairs]
    question = "The trainer against itself, in its layout and alone: does the layout matter?"
    yield Cell("trainer alone", question, first.samples, single, first.train, first.sampling)
    for name, other in others.items():
        tell(name)
        found = other(first.samples.prompts, first.samples.responses, temperature=temperature)
        question = "The trainer in micro-batches of another size: does it matter?"
        yield Cell(name, question, first.samples, found, first.train, first.sampling)


def repeat(score: Scorer, cell: Cell, *, temperature: float) -> Repeatability:
    """Score the cell's tokens once more, with `score`, and compare."""
    again = score(cell.samples.prompts, cell.samples.responses, temperature=temperature)
    return _compare(cell.train, again)


def repeat_engine(engine: Source, samples: Samples) -> Repeatability | None:
    """The engine's prefill of the same tokens, twice; None: it offers no such scores."""
    once, again = engine.prefill(samples), engine.prefill(samples)
    return None if once is None or again is None else _compare(once, again)


def _compare(once: Values, again: Values) -> Repeatability:
    gaps = [
        abs(a - b)
        for row, other in zip(once, again, strict=True)
        for a, b in zip(row, other, strict=True)
    ]
    return Repeatability(len(gaps), sum(gap > 0 for gap in gaps), max(gaps, default=0.0))


def judge(found: Sequence[Cell], settings: Settings) -> Iterator[Result]:
    """Each cell through the service's own path, as a run of its own."""
    with tempfile.TemporaryDirectory(prefix="twinscope-check-") as folder:
        settings = settings.model_copy(update={"data_dir": Path(folder)})
        with closing(open_pipeline(settings)) as pipeline:
            for number, cell in enumerate(found):
                run = f"check-{number}"
                sink = _capture(cell, run)
                posts = [post for post in sink.posts if post.path == "/v1/batches"]
                for post, batch in zip(posts, sink.batches(), strict=True):
                    pipeline.ingest(post.body, batch, batch_id=None)
                yield Result(cell, pipeline.close_step(run, 0))


def _capture(cell: Cell, run: str) -> InMemorySink:
    """What a probe would have sent."""
    sink = InMemorySink()
    with Probe(sink=sink, run=run, raise_errors=True, environment={}) as probe:
        probe.pair(
            step=0,
            rollout_logprobs=cell.rollout,
            train_logprobs=cell.train,
            token_ids=cell.samples.responses,
            prompt_ids=cell.samples.prompts,
            sample_ids=[f"{cell.name}-{i}" for i in range(len(cell.samples.responses))],
            sampling=dict(cell.sampling),
            rollout_fingerprint=cell.samples.fingerprint or {},
        )
        probe.flush(60)
    return sink
