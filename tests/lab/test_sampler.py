"""The lab's engine: laws by hand, draws against their law, log-probs against another pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from twinscope.wire.batch import Batch
from twinscope_service.lab.sampler import Law, Step, sample
from twinscope_service.lab.scorer import Pass, score

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
HALVES = [0.5, 0.25, 0.125, 0.125]  # a law whose logarithms are multiples of ln 2


def step(history: list[int], *, response_from: int = 0) -> Step:
    """One row with the law of HALVES, no noise."""
    logits = torch.tensor([HALVES]).log()
    return Step(logits, torch.tensor([history]), response_from, torch.zeros(1, len(HALVES)))


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        (Law(), HALVES),
        (Law(temperature=0.5), [16 / 22, 4 / 22, 1 / 22, 1 / 22]),
        (Law(top_p=0.7), [2 / 3, 1 / 3, 0, 0]),  # 0.5 is before the second: it is kept
        (Law(top_k=2), [2 / 3, 1 / 3, 0, 0]),
        (Law(min_p=0.3), [2 / 3, 1 / 3, 0, 0]),  # 0.125 < 0.3 of 0.5
        (Law(temperature=2.0, top_k=1), [1, 0, 0, 0]),
        (Law(presence_penalty=float(np.log(2))), [0.25 / 0.75, 0.25 / 0.75, 0.125 / 0.75,
                                                  0.125 / 0.75]),
        (Law(repetition_penalty=2.0), [0.25 / 0.5625, 0.0625 / 0.5625, 0.125 / 0.5625,
                                       0.125 / 0.5625]),
    ],
)  # fmt: skip
def test_a_law_is_what_its_settings_say(law: Law, expected: list[float]) -> None:
    """By hand; the prompt is token 1, the response so far token 0."""
    found = law.log_probs(step([1, 0], response_from=1)).exp()[0]

    assert found.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.fixture(scope="module")
def model() -> Any:
    """Random weights of a two-layer Llama over 31 tokens, float32."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, initializer_range=0.5,
        attn_implementation="eager", eos_token_id=30,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def sampled(model: Any, laws: dict[str, Law]) -> dict[str, Batch]:
    """Forty rows of two prompts of different lengths."""
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]] * 20
    return sample(model, prompts, {"plain": Law(), **laws}, most_tokens=24, end_id=30, seed=3)


def test_reported_log_probs_are_those_of_a_pass_without_a_cache(model: Any) -> None:
    """Of the plain law, of one that shares its contexts, and of one with rows of its own."""
    laws = {"cold": Law(temperature=0.7), "once": Law(presence_penalty=0.5)}
    found = sampled(model, laws)
    cold = {"cold": found["cold"].tensors["token_ids"]}
    plain = score(model, found["plain"], Pass())
    at_its_own = score(model, found["plain"], Pass(temperature=0.7), others=cold)
    rescored = score(model, found["once"], Pass())

    assert np.allclose(found["plain"].tensors["rollout_logprobs"], plain.train_logprobs, atol=1e-4)
    q = found["cold"].tensors["rollout_logprobs"]
    assert np.allclose(q, at_its_own.others["cold"], atol=1e-4)
    away = found["once"].tensors["rollout_logprobs"] - rescored.train_logprobs
    assert -0.5 - 1e-4 < away.min() < 0.0 < away.max() < 0.5 + 1e-4


def test_tokens_are_drawn_from_the_law(model: Any) -> None:
    """E[p/q] = 1 for tokens drawn from q, within four standard errors; E[q/p] is above it."""
    found = sampled(model, {"cold": Law(temperature=0.5)})
    ids = {"cold": found["cold"].tensors["token_ids"]}
    scores = score(model, found["plain"], Pass(), others=ids)
    ratio = np.exp(scores.others["cold"] - found["cold"].tensors["rollout_logprobs"])
    error = ratio.std() / np.sqrt(len(ratio))

    assert abs(ratio.mean() - 1.0) < 4 * error
    assert (1.0 / ratio).mean() > 1.2


def test_a_row_ends_with_its_end_token(model: Any) -> None:
    """At most once, at the end; rows without it have all tokens."""
    batch = sampled(model, {})["plain"]
    rows = np.split(batch.tensors["token_ids"], batch.offsets[1:-1])

    assert any(30 in row for row in rows)
    for row in rows:
        assert 30 not in row[:-1]
        assert row[-1] == 30 or len(row) == 24
