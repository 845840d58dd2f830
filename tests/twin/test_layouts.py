"""The trainer's forward in the layouts that trainers use, with a real model of transformers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from twinscope_service.twin.trainer import LAYOUTS, HuggingFaceScorer, dropouts, pack

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

RANDOM = random.Random(5)
PROMPTS = [[RANDOM.randrange(90) for _ in range(n)] for n in (1, 9, 4, 17, 2)]
RESPONSES = [[RANDOM.randrange(90) for _ in range(n)] for n in (6, 1, 12, 3, 8)]


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny Llama in float32 whose attention has dropout in train mode."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=90, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        attention_dropout=0.2, initializer_range=0.4,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def _alone(model: Any, temperature: float) -> list[list[float]]:
    """Each sample by itself, without padding, mask or positions, and in float64 at the end."""
    rows = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0].double()
        table = (logits / temperature).log_softmax(-1)
        at = range(len(prompt) - 1, len(prompt) + len(response) - 1)
        rows.append([float(table[t, token]) for t, token in zip(at, response, strict=True)])
    return rows


def _largest(found: list[list[float]], expected: list[list[float]]) -> float:
    assert [len(row) for row in found] == [len(row) for row in expected]
    return float(np.abs(np.concatenate(found) - np.concatenate(expected)).max())


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_what_each_sample_alone_gives(
    model: Any, layout: Any, rows: int
) -> None:
    """Padding, positions and neighbours in a row do not reach the numbers."""
    found = HuggingFaceScorer(model, rows, layout)(PROMPTS, RESPONSES, temperature=0.7)

    assert _largest(found, _alone(model, 0.7)) < 2e-5


def test_samples_that_attend_to_their_neighbours_are_seen(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that the packed layout is there for: a row without sample bounds."""

    def unbounded(*arguments: Any) -> Any:
        ids, positions, sample, scored = pack(*arguments)
        return ids, positions, torch.zeros_like(sample), scored

    monkeypatch.setattr("twinscope_service.twin.trainer.pack", unbounded)
    found = HuggingFaceScorer(model, 5, "packed")(PROMPTS, RESPONSES, temperature=1.0)

    assert _largest(found, _alone(model, 1.0)) > 0.1


def test_train_mode_shows_dropout_and_leaves_the_model_as_it_was(model: Any) -> None:
    """Two passes differ, and what drops is named."""
    plain = HuggingFaceScorer(model, 5)
    train = replace(plain, train_mode=True)

    once, again = (train(PROMPTS, RESPONSES, temperature=1.0) for _ in range(2))

    assert _largest(once, again) > 1e-3
    assert not model.training
    assert _largest(plain(PROMPTS, RESPONSES, temperature=1.0), _alone(model, 1.0)) < 2e-5
    assert dropouts(model) == ["attention_dropout=0.2"]
