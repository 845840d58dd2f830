"""Readers of trainers against structures of the documented shapes, worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from twinscope import Probe
from twinscope.hosts import areal, nemo_rl, prime_rl, roll, slime, trl, verl
from twinscope.hosts.sides import choose, send
from twinscope.testing import InMemorySink

torch = pytest.importorskip("torch")


def _sent(fields: dict[str, Any], step: int = 3) -> Any:
    """What arrives when a reader's answer is sent."""
    sink = InMemorySink()
    with Probe(sink=sink) as probe:
        assert send(probe, choose(fields), step=step)
        assert probe.flush(10)
    (batch,) = sink.batches()
    return batch


def test_missing_side_is_sent_alone_and_never_as_a_pair() -> None:
    """Names lose their side's prefix; what only the other side knows is left out."""
    fields = {"rollout_logprobs": [[-1.0]], "train_logprobs": None, "rollout_version": [2],
              "entropy": [[1.0]], "token_ids": [[5]]}  # fmt: skip

    rollout = choose(fields)
    train = choose({**fields, "train_logprobs": [[-1.1]]}, only="train")

    assert rollout is not None
    assert rollout.side == "rollout"
    assert rollout.fields == {"logprobs": [[-1.0]], "version": [2], "token_ids": [[5]]}
    assert train is not None
    assert train.side == "train"
    assert train.fields == {"logprobs": [[-1.1]], "entropy": [[1.0]], "token_ids": [[5]]}
    assert choose({"token_ids": [[5]]}) is None


@pytest.mark.usefixtures("as_in_a_run")
def test_a_line_in_a_trainer_does_not_raise_when_its_batch_is_another() -> None:
    """pair_from: a missing key is counted as invalid and named; the next step is sent."""
    good = {
        "infer_logprobs": torch.tensor([[-1.0, -2.0]]),
        "old_log_probs": torch.tensor([[-1.5, -2.5]]),
        "response_mask": torch.tensor([[0, 1, 1]]),
        "input_ids": torch.tensor([[7, 8, 9]]),
    }
    other = {name: value for name, value in good.items() if name != "infer_logprobs"}
    sink = InMemorySink()
    with Probe(sink=sink) as probe:
        assert not probe.pair_from(lambda: roll.read_batch(other), step=1)
        assert probe.pair_from(lambda: roll.read_batch(good), step=2)
        assert not probe.pair_from(lambda: {"token_ids": [[5]]}, step=3)  # no side at all
        assert probe.flush(10)
        stats = probe.stats()

    (batch,) = sink.batches()
    assert (batch.step, batch.side) == (2, "paired")
    assert stats.errors == {"pair_from: KeyError": 1}
    assert "infer_logprobs" in stats.last_error
    assert stats.dropped["invalid"].batches == 1
    assert stats.balanced


@pytest.mark.usefixtures("as_in_a_run")
def test_a_batch_without_one_side_is_sent_as_the_other() -> None:
    """pair_from chooses the call; what it sends is what `choose` says."""
    sink = InMemorySink()
    with Probe(sink=sink) as probe:
        assert probe.pair_from(lambda: {"train_logprobs": [[-1.0]], "token_ids": [[5]]}, step=3)
        assert probe.flush(10)

    assert [batch.side for batch in sink.batches()] == ["train"]


def test_trl_tool_tokens_are_kept_in_place_and_masked() -> None:
    """completion_mask says where tokens are, tool_mask which of them the model wrote."""
    batch = {
        "prompt_ids": torch.tensor([[0, 7, 8], [5, 6, 7]]),
        "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
        "completion_ids": torch.tensor([[10, 11, 12, 13], [20, 21, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
        "tool_mask": torch.tensor([[1, 0, 0, 1], [1, 1, 1, 1]]),
        "sampling_per_token_logps": -torch.arange(1.0, 9.0).view(2, 4),
        "old_per_token_logps": -torch.arange(1.0, 9.0).view(2, 4) - 0.5,
        "advantages": torch.tensor([0.5, -0.5]),
    }

    found = _sent(trl.read_batch(batch))

    assert found.offsets.tolist() == [0, 4, 6]
    assert found.tensors["mask"].tolist() == [1, 0, 0, 1, 1, 1]
    assert found.tensors["rollout_logprobs"].tolist() == [-1, -2, -3, -4, -5, -6]
    assert found.tensors["prompt_ids"].tolist() == [7, 8, 5, 6, 7]
    assert found.tensors["pad_left"].tolist() == [1, 0]


def test_verl_prompts_and_padding_are_cut() -> None:
    """V0 has prompts and one attention mask over both; zeros of the padding never arrive."""
    batch = {
        "prompts": torch.tensor([[0, 9], [8, 9]]),
        "responses": torch.tensor([[1, 2, 0], [3, 4, 5]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
        "response_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        "rollout_log_probs": torch.tensor([[-1.0, -2.0, 0.0], [-3.0, -4.0, -5.0]]),
        "old_log_probs": torch.tensor([[-1.1, -2.1, -9.0], [-3.1, -4.1, -5.1]]),
    }

    found = _sent(verl.read_batch(batch))

    assert found.tensors["rollout_logprobs"].tolist() == [-1, -2, -3, -4, -5]
    assert found.tensors["prompt_ids"].tolist() == [9, 8, 9]
    assert found.tensors["pad_left"].tolist() == [1, 0]


def test_prime_rl_sequences_are_split_at_the_loss_mask() -> None:
    """Prompt, response, tail without loss; null is NaN, counted by the service."""
    record = {
        "step": 7, "export_step": 7, "rank": 1, "export_sequence_idx": 0, "env_name": "math",
        "token_ids": [1, 2, 3, 4, 5], "loss_mask": [False, False, True, True, False],
        "inference_logprobs": [0.0, 0.0, -1.0, None, 0.0],
        "trainer_logprobs": [0.0, 0.0, -1.5, -2.5, 0.0], "entropy": [0.1, 0.2, 0.3, 0.4, 0.5],
    }  # fmt: skip
    empty = {**record, "loss_mask": [False] * 5, "export_sequence_idx": 1}

    found = _sent(prime_rl.read_records([record, empty]))

    assert found.sample_ids == ("7-1-0",)
    assert found.groups["env"] == ("math",)
    assert found.tensors["token_ids"].tolist() == [3, 4]
    assert found.tensors["prompt_ids"].tolist() == [1, 2]
    assert found.tensors["train_logprobs"].tolist() == [-1.5, -2.5]
    assert math.isnan(found.tensors["rollout_logprobs"][1])


def test_nemo_rl_dummy_column_and_dropped_samples_stay_out() -> None:
    """Column 0 belongs to no token; a sample that is not trained on is not judged."""
    record = {
        "token_ids": [1, 2, 3, 4, 0], "token_loss_mask": [0, 0, 1, 1, 0], "sample_loss_mask": 1,
        "generation_logprobs": [0.0, 0.0, -1.0, -2.0, 0.0],
        "prev_logprobs": [0.0, -0.3, -1.5, -2.5, -7.0],
    }  # fmt: skip
    dropped = {**record, "sample_loss_mask": 0}

    found = _sent(nemo_rl.read_records([dropped, record], step=3))

    assert found.sample_ids == ("3-1",)
    assert found.tensors["rollout_logprobs"].tolist() == [-1, -2]
    assert found.tensors["train_logprobs"].tolist() == [-1.5, -2.5]
    data = {
        "input_ids": torch.tensor([record["token_ids"]] * 2),
        "token_mask": torch.tensor([record["token_loss_mask"]] * 2),
        "sample_mask": torch.tensor([0, 1]),
        "generation_logprobs": torch.tensor([record["generation_logprobs"]] * 2),
        "prev_logprobs": torch.tensor([record["prev_logprobs"]] * 2),
    }
    in_process = _sent(nemo_rl.read_batch(data))
    assert in_process.tensors["train_logprobs"].tolist() == [-1.5, -2.5]
    assert in_process.tensors["token_ids"].tolist() == [3, 4]


def _rollout_data() -> dict[str, Any]:
    return {
        "tokens": [torch.tensor([1, 2, 3, 4]), torch.tensor([1, 5])],
        "response_lengths": [2, 1], "sample_indices": [40, 41],
        "loss_masks": [torch.tensor([1, 0]), torch.tensor([1])],
        "rollout_log_probs": [torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])],
        "log_probs": [torch.tensor([-1.5, -2.5]), torch.tensor([-3.5])],
        "weight_versions": [["4", "5"], ["4"]],
    }  # fmt: skip


def test_slime_ragged_tensors_keep_ids_versions_and_masks() -> None:
    """One 1-D tensor per sample; the first turn's version is the sample's."""
    found = _sent(slime.read_rollout_data(_rollout_data(), rollout_id=8))

    assert found.sample_ids == ("8-40", "8-41")
    assert found.tensors["token_ids"].tolist() == [3, 4, 5]
    assert found.tensors["prompt_ids"].tolist() == [1, 2, 1]
    assert found.tensors["mask"].tolist() == [1, 0, 1]
    assert found.tensors["rollout_version"].tolist() == [4, 4]


def test_slime_hook_tells_what_it_does_not_get(
    monkeypatch: pytest.MonkeyPatch, closing: list[Probe]
) -> None:
    """Context parallelism is refused by name; skipped log-probs are told with their switch."""
    sink = InMemorySink()
    closing.append(Probe(sink=sink))
    attachment = slime.Attachment(slime.SLIME, make_probe=lambda: closing[0])
    monkeypatch.setattr(slime, "_attachment", lambda: attachment)
    arguments = SimpleNamespace(rollout_temperature=0.7, rollout_top_p=1.0)
    data = _rollout_data()

    slime.postprocess(arguments, 8, data)
    del data["log_probs"]
    slime.postprocess(arguments, 9, data)
    slime.postprocess(SimpleNamespace(context_parallel_size=2), 10, data)

    assert closing[0].flush(10)
    assert [batch.side for batch in sink.batches()] == ["paired", "rollout"]
    assert sink.batches()[0].sampling == {"temperature": 0.7, "top_p": 1.0}
    assert "--get-mismatch-metrics" in sink.events("host_side_missing")[0]["fields"]["why"]
    assert "context_parallel_size=2" in sink.events("host_refused")[0]["fields"]["reason"]


def test_areal_sides_meet_at_the_same_token() -> None:
    """p is shifted by one against q; versions become one per sample and the changes."""
    trajectory = {
        "input_ids": torch.tensor([[1, 2, 3, 4]]), "loss_mask": torch.tensor([[0, 0, 1, 1]]),
        "logprobs": torch.tensor([[0.0, 0.0, -1.0, -2.0]]),
        "prox_logp": torch.tensor([[-9.0, -1.5, -2.5, -9.0]]),
        "versions": torch.tensor([[-1, -1, 6, 7]]),
    }  # fmt: skip

    found = _sent(areal.read_trajectory(trajectory))

    assert found.tensors["token_ids"].tolist() == [3, 4]
    assert found.tensors["rollout_logprobs"].tolist() == [-1, -2]
    assert found.tensors["train_logprobs"].tolist() == [-1.5, -2.5]
    assert found.tensors["rollout_version"].tolist() == [6]
    assert found.version_spans == ((0, 1, 7),)


def test_roll_columns_are_of_the_next_token() -> None:
    """[B,T-1] log-probs against [B,T] ids and mask."""
    batch = {
        "input_ids": torch.tensor([[1, 2, 3, 4]]), "response_mask": torch.tensor([[0, 0, 1, 1]]),
        "infer_logprobs": torch.tensor([[0.0, -1.0, -2.0]]),
        "old_log_probs": torch.tensor([[-9.0, -1.5, -2.5]]),
    }  # fmt: skip

    found = _sent(roll.read_batch(batch))

    assert found.tensors["token_ids"].tolist() == [3, 4]
    assert found.tensors["rollout_logprobs"].tolist() == [-1, -2]
    assert found.tensors["train_logprobs"].tolist() == [-1.5, -2.5]
