"""Recorded runs, and recordings cut into steps: what the demonstration and the drills send.

Both are real. A run is one of examples/grpo_cpu.py, step by step as it was. A recording is one
batch of tokens sampled by vLLM from SmolLM2-135M-Instruct and re-scored by transformers: each step
takes another random set of its samples, so the level moves as it does in a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twinscope import ConfigError, Probe
from twinscope.fields import RolloutFields, SampleFields, TrainFields
from twinscope.wire.batch import Batch
from twinscope.wire.codec import read_trace
from twinscope.wire.schema import TENSOR_BY_NAME

RECORDINGS = files("twinscope_service") / "recordings"


def recording(name: str) -> Batch:
    """The recorded batch `name` that ships with the service."""
    with as_file(RECORDINGS / f"{name}.safetensors") as path:
        return read_trace(path)


def recorded_run(name: str) -> list[Batch]:
    """The steps of the run `name` that ships with the service."""
    with as_file(RECORDINGS / "runs" / f"{name}.safetensors") as path:
        return list(by_step(read_trace(path)))


def by_step(whole: Batch) -> Iterator[Batch]:
    """The steps of a run that is one file: `train_version` is the step of a sample."""
    versions = whole.tensors["train_version"]
    for step in np.unique(versions).tolist():
        samples = np.flatnonzero(versions == step).tolist()
        ids = tuple(f"{step}-{index}" for index in range(len(samples)))
        yield replace(take(whole, samples), step=step, sample_ids=ids)


def take(batch: Batch, samples: Sequence[int]) -> Batch:
    """The batch with only `samples`, in that order; every tensor is cut along its declared axis."""
    tensors = {name: _cut(batch, name, array, samples) for name, array in batch.tensors.items()}
    ids = batch.sample_ids
    return replace(
        batch,
        tensors=tensors,
        sample_ids=None if ids is None else tuple(ids[s] for s in samples),
        groups={name: tuple(labels[s] for s in samples) for name, labels in batch.groups.items()},
    )


def _cut(batch: Batch, name: str, array: NDArray[Any], samples: Sequence[int]) -> NDArray[Any]:
    axes = TENSOR_BY_NAME[name].shape
    if axes[0] == "S":
        return array[list(samples)]
    if axes == ("S+1",):
        lengths = np.diff(array)[list(samples)]
        return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    offsets = batch.tensors["prompt_offsets"] if axes[-1] == "M" else batch.offsets
    parts = [array[..., offsets[s] : offsets[s + 1]] for s in samples]
    return np.concatenate(parts, axis=-1)


def before_and_after(healthy: str, faulty: str) -> tuple[Batch, Batch]:
    """Two recordings of one run, with the tensors that both have: a trainer that goes wrong does
    not begin to send another field in the same step."""
    first, second = recording(healthy), recording(faulty)
    kept = {name: array for name, array in second.tensors.items() if name in first.tensors}
    return first, replace(second, tensors=kept)


def steps(
    batches: Sequence[Batch], *, run: str, samples_per_step: int, seed: int
) -> Iterator[Batch]:
    """One step per entry of `batches`: a random set of its samples, with ids new in every step."""
    random = np.random.default_rng(seed)
    for step, batch in enumerate(batches):
        picked = random.permutation(batch.samples)[:samples_per_step].tolist()
        ids = tuple(f"{step}-{index}" for index in range(len(picked)))
        yield replace(take(batch, picked), run=run, step=step, sample_ids=ids)


def send(probe: Probe, batch: Batch) -> None:
    """Send a paired batch as its two sides, as engine and trainer would, and close the step."""
    if batch.step is None or batch.sample_ids is None:
        raise ConfigError(f"run {batch.run}: a replay needs a step and sample ids")
    tensors = batch.tensors
    shared = SampleFields(
        sample_ids=batch.sample_ids,
        offsets=batch.offsets.tolist(),
        token_ids=tensors["token_ids"],
    )
    if "prompt_ids" in tensors:
        shared["prompt_ids"] = tensors["prompt_ids"]
        shared["prompt_offsets"] = tensors["prompt_offsets"].tolist()
    shared["sampling"] = dict(batch.sampling or {})
    engine = cast("RolloutFields", {**shared, "fingerprint": dict(batch.rollout or {})})
    trainer = cast("TrainFields", {**shared, "fingerprint": dict(batch.train or {})})
    if "rollout_version" in tensors:
        engine["version"] = tensors["rollout_version"].tolist()
    if "train_version" in tensors:
        trainer["version"] = tensors["train_version"].tolist()
    if "cached_tokens" in tensors:
        engine["cached_tokens"] = tensors["cached_tokens"].tolist()
    probe.rollout(logprobs=tensors["rollout_logprobs"], **engine)
    probe.train(step=batch.step, logprobs=tensors["train_logprobs"], **trainer)
    probe.close_step(batch.step)
