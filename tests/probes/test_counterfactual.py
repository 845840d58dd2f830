"""The fused reductions against a naive float64 computation over the whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from twinscope import Probe
from twinscope.counterfactual import Truncation, counterfactuals, counterfactuals_from_hidden
from twinscope.errors import ConfigError
from twinscope.testing import SinkServer

torch = pytest.importorskip("torch")
ROWS, VOCABULARY = 37, 211


def case() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Logits from flat to peaked rows, and sampled ids."""
    random = np.random.default_rng(0)
    logits = random.standard_normal((ROWS, VOCABULARY)) * np.linspace(0.1, 12.0, ROWS)[:, None]
    return logits.astype(np.float32).astype(np.float64), random.integers(0, VOCABULARY, ROWS)


def softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of probabilities, float64."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    found: NDArray[np.float64] = e / e.sum(axis=1, keepdims=True)
    return found


def naive_kept(z: NDArray[np.float64], own: float, rule: Truncation) -> NDArray[np.float64]:
    """min-p, then top-k, then top-p over what is left, row by row and token by token."""
    kept = np.zeros(len(z))
    for row, (sampling, mine) in enumerate(
        zip(softmax(z / rule.temperature), softmax(z / own), strict=True)
    ):
        order = [i for i in np.argsort(-sampling) if sampling[i] >= rule.min_p * sampling.max()]
        order = order[: rule.top_k] if rule.top_k else order
        total, mass = sampling[order].sum(), 0.0
        for i in order:
            if mass / total >= rule.top_p:
                break
            mass += sampling[i]
            kept[row] += mine[i]
    return kept


@pytest.mark.parametrize("chunk_bytes", [4 * VOCABULARY * 8, 1 << 20])
def test_logits_that_were_divided_before_give_the_same_when_that_is_said(chunk_bytes: int) -> None:
    """TRL and verl divide in place. Unsaid, log-sum-exp and kept mass are of other temperatures."""
    z, ids = case()
    rule = Truncation(top_p=0.9, temperature=0.7)
    undivided, tokens = torch.tensor(z, dtype=torch.float32), torch.tensor(ids)
    divided = undivided / 0.7
    before = divided.clone()

    right = counterfactuals(undivided, tokens, train_temperature=0.7, truncation=rule)
    said = counterfactuals(
        divided, tokens, train_temperature=0.7, divided_by=0.7, truncation=rule,
        chunk_bytes=chunk_bytes,
    )  # fmt: skip
    unsaid = counterfactuals(divided, tokens, truncation=rule)

    assert right.kept_mass is not None
    assert said.kept_mass is not None
    assert unsaid.kept_mass is not None
    assert said.temperatures == right.temperatures
    for name in ("train_logprobs", "entropy", "logsumexp_T", "kept_mass"):
        assert torch.allclose(getattr(said, name), getattr(right, name), rtol=1e-5, atol=1e-5), name
    assert torch.equal(divided, before)  # the host's logits are left alone
    assert torch.allclose(unsaid.train_logprobs, right.train_logprobs, atol=1e-5)
    hot = right.temperatures.index(2.0)
    assert not torch.allclose(unsaid.logsumexp_T[hot], right.logsumexp_T[hot], atol=1e-2)
    assert not torch.allclose(unsaid.kept_mass, right.kept_mass, atol=1e-2)


@pytest.mark.parametrize("chunk_bytes", [1, 4 * VOCABULARY * 8, 1 << 20])
@pytest.mark.parametrize("own", [1.0, 0.7])
def test_every_number_equals_the_naive_one_for_any_chunk(chunk_bytes: int, own: float) -> None:
    """Log-probs, entropy, log-sum-exp and rank, chunked by row, by eight rows and not at all."""
    z, ids = case()
    got = counterfactuals(
        torch.tensor(z, dtype=torch.float32),
        torch.tensor(ids),
        train_temperature=own,
        temperatures=(0.5, 1.3),
        chunk_bytes=chunk_bytes,
    )
    pi = softmax(z / own)
    chosen = pi[np.arange(ROWS), ids]

    assert np.allclose(got.train_logprobs, np.log(chosen), atol=2e-5)
    assert np.allclose(got.entropy, -(pi * np.log(np.maximum(pi, 1e-300))).sum(axis=1), atol=2e-5)
    assert got.temperatures == tuple(sorted({0.5, 1.3, own}))
    for k, t in enumerate(got.temperatures):
        top = (z / t).max(axis=1)
        lse = np.log(np.exp(z / t - top[:, None]).sum(axis=1)) + top
        assert np.allclose(got.logsumexp_T[k], lse, rtol=1e-6, atol=2e-5)
    assert (got.sampled_rank.numpy() == (z > z[np.arange(ROWS), ids][:, None]).sum(axis=1)).all()


@pytest.mark.parametrize(
    "rule",
    [
        Truncation(top_p=0.9),
        Truncation(top_k=5),
        Truncation(min_p=0.1),
        Truncation(top_p=0.8, top_k=20, min_p=0.01, temperature=0.7),
    ],
)
def test_kept_mass_follows_the_engines_order(rule: Truncation) -> None:
    """Against a loop that keeps tokens one by one; the trainer's own temperature is 1.2."""
    z, ids = case()
    got = counterfactuals(
        torch.tensor(z, dtype=torch.float32),
        torch.tensor(ids),
        train_temperature=1.2,
        truncation=rule,
    )

    assert got.kept_mass is not None
    assert np.allclose(got.kept_mass, naive_kept(z, 1.2, rule), atol=1e-5)


def test_hidden_states_and_a_head_give_the_same_without_all_logits() -> None:
    """No call of the head sees more rows than a chunk, and nothing is recorded for autograd."""
    z, ids = case()
    weight = torch.eye(VOCABULARY, requires_grad=True)
    rows: list[int] = []

    def head(hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return hidden @ weight

    logits = torch.tensor(z, dtype=torch.float32)
    got = counterfactuals_from_hidden(
        logits, head, torch.tensor(ids), vocabulary=VOCABULARY, chunk_bytes=4 * VOCABULARY * 4
    )

    assert max(rows) == 4
    assert not got.entropy.requires_grad
    assert torch.allclose(got.entropy, counterfactuals(logits, torch.tensor(ids)).entropy)


def test_masked_logits_and_half_precision_stay_finite() -> None:
    """Tokens of logit −inf add nothing, and bfloat16 logits are reduced in float32."""
    z, ids = case()
    logits = torch.tensor(z, dtype=torch.bfloat16)
    logits[:, 50:60] = float("-inf")
    ids[(ids >= 50) & (ids < 60)] = 0
    got = counterfactuals(logits, torch.tensor(ids), truncation=Truncation(top_p=0.9))

    for values in (got.train_logprobs, got.entropy, got.logsumexp_T, got.kept_mass):
        assert values is not None
        assert torch.isfinite(values).all()
        assert values.dtype == torch.float32


def test_bad_arguments_name_the_value_and_the_fix() -> None:
    """Lengths that differ, temperatures of 0, impossible truncations."""
    z, ids = case()
    logits = torch.tensor(z)

    with pytest.raises(ConfigError, match="37 rows of logits for 36"):
        counterfactuals(logits, torch.tensor(ids[:-1]))
    with pytest.raises(ConfigError, match="above 0"):
        counterfactuals(logits, torch.tensor(ids), temperatures=(0.0,))
    with pytest.raises(ConfigError, match=r"top_p is 1\.5"):
        Truncation(top_p=1.5)
    with pytest.raises(ConfigError, match="top_k"):
        Truncation(top_k=-1)


def test_the_fields_are_what_the_trainer_probe_takes() -> None:
    """Sent through a real probe, they arrive as the tensors of the wire format."""
    z, ids = case()
    found = counterfactuals(
        torch.tensor(z, dtype=torch.float32),
        torch.tensor(ids),
        temperatures=(0.7,),
        truncation=Truncation(top_k=5),
    )
    with SinkServer() as server:
        probe = Probe(server.url, "run")
        probe.train(
            step=0,
            logprobs=found.train_logprobs,
            token_ids=torch.tensor(ids),
            offsets=[0, 10, ROWS],
            **found.fields(),
        )
        assert probe.flush(timeout=30)
        probe.close()
        (batch,) = server.batches()

    assert batch.temperatures == (0.7, 1.0)
    assert np.array_equal(batch.tensors["entropy"], found.entropy.numpy())
    assert np.array_equal(batch.tensors["logsumexp_T"], found.logsumexp_T.numpy())
    assert np.array_equal(batch.tensors["sampled_rank"], found.sampled_rank.numpy())
    assert found.kept_mass is not None
    assert np.array_equal(batch.tensors["kept_mass"], found.kept_mass.numpy())
