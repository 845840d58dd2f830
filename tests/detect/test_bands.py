"""The first verdict: recorded pairs, each band, and everything that must be unknown."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import Sample, batch_of, make_samples, recorded_traces
from joining import measure

from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode
from twinscope_service.detect.bands import (
    K3_BANDS,
    Band,
    Bands,
    Judgement,
    StepFacts,
    judge,
    model_class,
)
from twinscope_service.join.gather import paired_blocks
from twinscope_service.measure.derive import derive
from twinscope_service.measure.records import MeasureOptions

BANDS = Bands(min_tokens=500)
INDEX = Path(os.environ.get("TWINSCOPE_TRACES", "/nonexistent")) / "index.json"
HEALTHY = {"numerical_noise", "bf16_logprob_storage"}  # the second costs no consistency
QUIET = {"rope_bf16", "temperature_0.7_both_raw"}  # below every level: for diagnosis to find


def _judge(batch: Batch, *, bands: Bands = BANDS, **facts: Any) -> Judgement:
    summary = measure(paired_blocks(batch, block_tokens=10**9))
    known = {"train_samples": batch.samples, "rollout_samples": batch.samples,
             "joined": batch.samples, "rollout": batch.rollout, "train": batch.train}  # fmt: skip
    metrics = derive(summary, MeasureOptions())
    return judge(summary, metrics, facts=StepFacts(**{**known, **facts}), bands=bands)


def _pair(noise: float, seed: int = 5, **changes: Any) -> Batch:
    """About 1400 tokens whose Δ is normal with this deviation and E[ρ] = 1."""
    rng = np.random.default_rng(seed)
    made = []
    for sample in make_samples(seed, 70):
        q = sample.q - np.float32(2.0)
        delta = rng.normal(-(noise**2) / 2, noise, len(q))
        made.append(replace(sample, q=q, p=(q + delta).astype(np.float32), **changes))
    return batch_of(made, "paired", step=0)


@pytest.mark.parametrize("trace", recorded_traces(), ids=lambda path: path.stem)
def test_recorded_runs_are_judged_by_what_was_wrong_with_them(trace: Path) -> None:
    """A healthy pair is ok, a strong fault is inconsistent."""
    causes = {
        Path(row["file"]).stem: row["cause"]
        for row in (json.loads(INDEX.read_text()) if INDEX.exists() else [])
    }
    healthy = causes.get(trace.stem) in HEALTHY or trace.stem in QUIET
    if not causes:
        healthy = "unrestored" not in trace.stem

    judgement = _judge(decode(trace.read_bytes()))

    assert judgement.verdict == ("ok" if healthy else "inconsistent")


def test_noise_is_ok_and_large_noise_is_not() -> None:
    """k3 is about σ²/2: 5e-3 is noted, 2e-2 is out of the band of a dense model."""
    assert _judge(_pair(0.03)) == Judgement("ok")
    noted, far = _judge(_pair(0.1)), _judge(_pair(0.2))
    assert noted.verdict == "ok"
    assert "above 0.002" in noted.reasons[0]
    assert far.verdict == "inconsistent"
    assert "above 0.01 (an absolute level from published figures; dense model" in far.reasons[0]


def test_a_mean_ratio_off_one_must_be_significant() -> None:
    """The same offset is a fault on many samples and nothing on two."""
    shifted = [replace(s, p=s.q - np.float32(0.05)) for s in make_samples(2, 60)]
    rng = np.random.default_rng(0)
    jittered = [
        replace(s, p=(s.p + rng.normal(0, 0.02, len(s.p))).astype(np.float32)) for s in shifted
    ]
    judgement = _judge(batch_of(jittered, "paired", step=0))
    assert judgement.verdict == "inconsistent"
    assert "not those of the law that was sampled" in judgement.reasons[0]

    wild = [_wild(rng, str(i)) for i in range(3)]
    assert "mean ratio" not in " ".join(_judge(batch_of(wild, "paired", step=0)).reasons)


def _wild(rng: np.random.Generator, name: str) -> Sample:
    """A long sample whose mean ratio is moved by its own luck."""
    base = make_samples(9, 1)[0]
    q = np.full(300, -6.0, np.float32)
    p = q + rng.normal(rng.choice([-0.4, 0.4]), 0.01, 300).astype(np.float32)
    return replace(base, name=name, ids=np.zeros(300, np.int32), q=q, p=p)


def test_too_few_tokens_are_unknown_however_bad() -> None:
    """And the limit is said."""
    judgement = _judge(_pair(0.5), bands=Bands(min_tokens=10**6))
    assert judgement.verdict == "unknown"
    assert "1000000 are needed" in judgement.reasons[0]


def test_equal_sides_are_a_bypass_unless_equality_is_the_aim() -> None:
    """`aligned` declares an engine that is bitwise equal."""
    pair = _pair(0.0)
    same = replace(
        pair, tensors={**pair.tensors, "train_logprobs": pair.tensors["rollout_logprobs"]}
    )
    assert _judge(same).verdict == "unknown"
    assert "bypass" in _judge(same).reasons[0]
    aligned = replace(BANDS, model_class="aligned")
    assert _judge(same, bands=aligned) == Judgement("ok")
    assert _judge(_pair(0.001), bands=aligned).verdict == "inconsistent"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"crashed": ("measure",)}, "measure failed"),
        ({"joined": 10}, "only 10 of 70 train samples"),
    ],
)
def test_what_was_not_looked_at_is_unknown(facts: dict[str, Any], reason: str) -> None:
    """A crashed stage, or most samples without their other side."""
    judgement = _judge(_pair(0.03), **facts)
    assert judgement.verdict == "unknown"
    assert reason in judgement.reasons[0]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"train_samples": 5}, "no matching rollout side came"),
        ({"rollout_samples": 5}, "the train side never came"),
        ({"train_samples": 5, "rollout_samples": 5}, "no sample found its other side"),
        ({"train_samples": 5, "rollout_samples": 5, "retokenized": 5}, "hold other tokens"),
    ],
)
def test_an_empty_step_says_which_side_is_missing(facts: dict[str, int], reason: str) -> None:
    """Unknown, never ok."""
    summary = measure([])
    judgement = judge(
        summary, derive(summary, MeasureOptions()), facts=StepFacts(**facts), bands=BANDS
    )
    assert judgement.verdict == "unknown"
    assert reason in judgement.reasons[0]


def test_many_missing_values_are_unknown() -> None:
    """The rest may look fine; it is not the whole."""
    pair = _pair(0.03)
    q = pair.tensors["rollout_logprobs"].copy()
    q[::10] = -9999.0
    judgement = _judge(replace(pair, tensors={**pair.tensors, "rollout_logprobs": q}))
    assert judgement.verdict == "unknown"
    assert "sentinel" in judgement.reasons[0]


def test_a_bad_part_is_inconsistent_even_if_the_rest_is_missing() -> None:
    """What was looked at was bad: that is known."""
    judgement = _judge(_pair(0.5), joined=10)
    assert judgement.verdict == "inconsistent"
    assert "only 10 of 70" in judgement.reasons[-1]


def test_tokens_of_older_weights_do_not_count_as_inconsistent() -> None:
    """Half of the samples are three versions old and have moved; the fresh half is fine."""
    fresh, stale = _pair(0.03), _pair(0.3, seed=6)
    summary = measure([*_with_versions(fresh, 8), *_with_versions(stale, 5)])
    metrics = derive(summary, MeasureOptions())
    facts = StepFacts(train_samples=140, rollout_samples=140, joined=140)
    assert metrics["k3_mean"] is not None
    assert metrics["k3_mean"] > 0.01
    assert judge(summary, metrics, facts=facts, bands=BANDS).verdict == "ok"


def _with_versions(batch: Batch, version: int) -> list[Any]:
    ones = np.ones(batch.samples, np.int64)
    tensors = {**batch.tensors, "rollout_version": ones * version, "train_version": ones * 8}
    return list(paired_blocks(replace(batch, tensors=tensors), block_tokens=10**9))


@pytest.mark.parametrize(
    ("rollout", "train", "expected"),
    [
        (None, None, "dense"),
        ({"model": "Qwen3-4B", "dtype": "bfloat16", "quantization": None}, None, "dense"),
        ({"model": "Qwen3-30B-A3B"}, None, "moe"),
        ({"model": "m upcycled to 8 experts, top-2"}, None, "moe"),
        ({"model": "DeepSeek-V3"}, {"router_replay": True}, "moe_replay"),
        ({"ep": 8}, None, "moe"),
        ({"ep": 1}, None, "dense"),
        ({"quantization": "fp8"}, None, "fp8"),
        ({"kv_cache_dtype": "fp8_e4m3"}, None, "fp8"),
        ({"quantization": "nvfp4"}, None, "hybrid"),
        ({"model": "Nemotron-H-8B"}, None, "hybrid"),
    ],
)
def test_the_class_is_read_from_the_fingerprints(
    rollout: dict[str, Any] | None, train: dict[str, Any] | None, expected: str
) -> None:
    """`dense` where they say nothing."""
    assert model_class(rollout, train) == expected


def test_a_user_may_move_a_band() -> None:
    """The reason shows the level that was used."""
    bands = replace(BANDS, k3={**K3_BANDS, "dense": Band(1e-6, 1e-5)})
    judgement = _judge(_pair(0.03), bands=bands)
    assert judgement.verdict == "inconsistent"
    assert "above 1e-05" in judgement.reasons[0]
