"""Re-scoring with a tiny random model: the plain pass is right, faults act and leave no trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.lab.rescore import CASES, rescore
from twinscope_service.lab.scorer import Pass, score
from twinscope_service.replay import recording, take

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
VOCABULARY = 97


@pytest.fixture(scope="module")
def model() -> Any:
    """Random weights of a thin Llama of 28 layers in float32, eager attention."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=28,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Four recorded samples, ids folded into the tiny vocabulary."""
    some = take(recording("healthy_bf16"), range(0, 16, 4))
    folded = {n: some.tensors[n] % VOCABULARY for n in ("token_ids", "prompt_ids")}
    return replace(some, tensors={**some.tensors, **folded})


def alone(model: Any, batch: Batch, sample: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """log π of the sample's tokens, no batch, no padding, float64 log-softmax."""
    prompts = batch.tensors["prompt_offsets"]
    prompt = batch.tensors["prompt_ids"][prompts[sample] : prompts[sample + 1]]
    begin, end = batch.offsets[sample], batch.offsets[sample + 1]
    response = batch.tensors["token_ids"][begin:end].astype(np.int64)
    ids = torch.tensor(np.concatenate([prompt, response]).astype(np.int64))[None]
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].double()
    found: np.ndarray[Any, np.dtype[np.float64]] = (
        logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0].numpy()
    )
    return found


def test_the_plain_pass_equals_scoring_each_sample_alone(model: Any, batch: Batch) -> None:
    """Left padding with mask and positions changes nothing beyond rounding."""
    p = score(model, batch, Pass(samples_per_batch=2)).train_logprobs

    for sample in range(batch.samples):
        tokens = slice(int(batch.offsets[sample]), int(batch.offsets[sample + 1]))
        assert np.allclose(p[tokens], alone(model, batch, sample), atol=1e-4)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"healthy"}))
def test_a_fault_acts_and_leaves_the_model_as_it_was(name: str, model: Any, batch: Batch) -> None:
    """p differs from the healthy pass under the fault, and not any more after it."""
    healthy = score(model, batch, Pass()).train_logprobs
    spoilt = rescore(model, batch, CASES[name]).tensors["train_logprobs"]

    assert np.abs(spoilt - healthy).max() > 1e-6
    assert np.array_equal(score(model, batch, Pass()).train_logprobs, healthy)
