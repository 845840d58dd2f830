"""What the service reads is what the host had: through capture, codec and decoding."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from twinscope import Probe
from twinscope.books import REFUSE_REASONS
from twinscope.errors import WireError
from twinscope.testing import InMemorySink
from twinscope.wire.batch import Batch


def _send(method: str, **fields: Any) -> Batch:
    """One call, delivered and decoded as the service does it."""
    sink = InMemorySink()
    probe = Probe(sink=sink)
    assert getattr(probe, method)(**fields)
    probe.close()
    (batch,) = sink.batches()
    return batch


def test_a_padded_training_batch_arrives_ragged() -> None:
    """Right-padded, with a tool answer in the middle: the shape most trainers have."""
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    logprobs = -torch.arange(15, dtype=torch.float32).reshape(3, 5)
    batch = _send(
        "train",
        step=7,
        logprobs=logprobs,
        token_ids=torch.arange(15).reshape(3, 5),
        mask=mask,
        entropy=logprobs * -2,
        version=12,
        reward=torch.tensor([1.0, 0.0, 0.5], dtype=torch.bfloat16),
        sample_ids=["a", "b", "c"],
        groups={"engine": "e0", "replica": [0, 1, 1]},
        expect=6,
        sampling={"temperature": np.float32(0.5), "top_p": 1.0},
        fingerprint={"dtype": torch.bfloat16, "name": "fsdp"},
    )

    assert (batch.run, batch.side, batch.step) == ("default", "train", 7)
    assert_array_equal(batch.offsets, [0, 4, 5, 5])
    assert_array_equal(batch.tensors["train_logprobs"], [0, -1, -2, -3, -5])
    assert_array_equal(batch.tensors["token_ids"], [0, 1, 2, 3, 5])
    assert_array_equal(batch.tensors["mask"], [1, 1, 0, 1, 1])
    assert_array_equal(batch.tensors["entropy"], [0, 2, 4, 6, 10])
    assert_array_equal(batch.tensors["train_version"], [12, 12, 12])
    assert_array_equal(batch.tensors["reward"], np.float32([1.0, 0.0, 0.5]))
    assert batch.sample_ids == ("a", "b", "c")
    assert batch.groups == {"engine": ("e0", "e0", "e0"), "replica": ("0", "1", "1")}
    assert batch.expect == {"train": 6}
    assert batch.sampling == {"temperature": 0.5, "top_p": 1.0}
    assert batch.train == {"dtype": "bfloat16", "name": "fsdp", "logprob_dtype": "float32"}


def test_a_rollout_of_ragged_lists_needs_no_step() -> None:
    """What an engine has: lists, prompts, versions that change inside a sample."""
    batch = _send(
        "rollout",
        logprobs=[[-0.5, -0.25], [-1.0]],
        token_ids=[[5, 6], [7]],
        prompt_ids=[[1, 2], [3]],
        cached_tokens=[2, 0],
        version=[3, 4],
        version_spans=[(0, 0, 3), (0, 1, 4)],
        turn=0,
    )

    assert batch.step is None
    assert_array_equal(batch.tensors["rollout_logprobs"], np.float32([-0.5, -0.25, -1.0]))
    assert_array_equal(batch.tensors["prompt_ids"], [1, 2, 3])
    assert_array_equal(batch.tensors["prompt_offsets"], [0, 2, 3])
    assert_array_equal(batch.tensors["rollout_version"], [3, 4])
    assert_array_equal(batch.tensors["cached_tokens"], [2, 0])
    assert batch.version_spans == ((0, 0, 3), (0, 1, 4))
    assert batch.rollout is None


def test_ids_can_travel_as_digests() -> None:
    """On the second side: the join still proves that the tokens are equal, without their bytes."""
    ids = [[5, 6], [], [7]]
    batch = _send("train", step=1, logprobs=[[-1, -2], [], [-3]], token_ids=ids, ids="digest")

    expected = [hashlib.blake2b(np.int32(row).tobytes(), digest_size=16).digest() for row in ids]
    assert [row.tobytes() for row in batch.tensors["ids_digest"]] == expected
    assert "token_ids" not in batch.tensors


def test_left_padded_prompts_tell_how_much_was_padded() -> None:
    """Padding that the trainer attends to is a known fault: the diagnosis needs the amount."""
    ids = torch.tensor([[0, 0, 8, 9], [4, 5, 6, 7]])
    batch = _send(
        "train",
        step=0,
        logprobs=[[-1.0], [-2.0]],
        prompt_ids=ids,
        prompt_mask=ids != 0,
        sample_ids=["a", "b"],
    )

    assert_array_equal(batch.tensors["prompt_ids"], [8, 9, 4, 5, 6, 7])
    assert_array_equal(batch.tensors["prompt_offsets"], [0, 2, 6])
    assert_array_equal(batch.tensors["pad_left"], [2, 0])


def test_temperatures_become_one_tensor() -> None:
    """Log-sum-exp at K temperatures, each in the layout of the call."""
    base = torch.arange(4.0).reshape(2, 2)
    batch = _send(
        "train",
        step=0,
        logprobs=-base,
        mask=torch.tensor([[1, 1], [0, 1]]),
        logsumexp={0.5: base * 2, 1.0: base},
        sample_ids=["a", "b"],
    )

    assert batch.temperatures == (0.5, 1.0)
    assert_array_equal(batch.tensors["logsumexp_T"], [[0, 2, 6], [0, 1, 3]])


def test_a_pair_carries_both_sides_and_both_fingerprints() -> None:
    """Where one process holds both, there is nothing to join."""
    batch = _send(
        "pair",
        step=1,
        rollout_logprobs=np.float32([[-1.0, -2.0]]),
        train_logprobs=torch.tensor([[-1.5, -2.5]], dtype=torch.bfloat16),
        ref_logprobs=[[-1.25, -2.25]],
        rollout_version=1,
        train_version=2,
        rollout_fingerprint={"name": "vllm"},
        train_fingerprint={"name": "fsdp"},
    )

    assert batch.side == "paired"
    assert_array_equal(batch.tensors["rollout_logprobs"], [-1, -2])
    assert_array_equal(batch.tensors["train_logprobs"], np.float32([-1.5, -2.5]))
    assert_array_equal(batch.tensors["ref_logprobs"], np.float32([-1.25, -2.25]))
    assert batch.rollout == {"name": "vllm", "logprob_dtype": "float32"}
    assert batch.train == {"name": "fsdp", "logprob_dtype": "bfloat16"}


def test_the_reference_side_travels_alone() -> None:
    """A process that only runs the frozen policy."""
    batch = _send("ref", logprobs=[[-1.0]], sample_ids="only")

    assert (batch.side, batch.sample_ids) == ("ref", ("only",))


def test_what_was_bf16_before_the_cast_is_remembered() -> None:
    """A coarse source is a finding of its own, and after the cast nobody could see it."""
    source = torch.tensor([[-0.123456789]], dtype=torch.bfloat16)
    batch = _send("rollout", logprobs=source, sample_ids="a")

    assert batch.rollout == {"logprob_dtype": "bfloat16"}
    assert batch.tensors["rollout_logprobs"][0] == source.float().item()


def test_later_changes_by_the_host_do_not_matter() -> None:
    """Trainers update in place; the call has copied."""
    sink = InMemorySink()
    probe = Probe(sink=sink)
    logprobs, tensor = np.float32([-1.0, -2.0]), torch.tensor([-1.0, -2.0])
    prints = {"options": {"tp": 2}}
    probe.rollout(logprobs=logprobs, sample_ids="a", fingerprint=prints)
    probe.rollout(logprobs=[tensor], sample_ids=["x"])
    logprobs[:], prints["options"]["tp"] = 0.0, 4
    tensor.zero_()
    probe.close()

    first, second = sink.batches()
    assert_array_equal(first.tensors["rollout_logprobs"], [-1, -2])
    assert_array_equal(second.tensors["rollout_logprobs"], [-1, -2])
    assert first.rollout == {"options": {"tp": 2}, "logprob_dtype": "float32"}


def test_memory_used_again_does_not_change_what_still_waits() -> None:
    """Slabs return to the pool only when the last batch that uses them is gone."""
    sink = InMemorySink()
    probe = Probe(sink=sink, post_bytes=200_000)
    for step in range(12):
        logprobs = np.full((4, 30_000), -float(step), np.float32)
        assert probe.train(step=step, logprobs=logprobs, sample_ids=range(4))
        if step % 4 == 3:
            assert probe.flush(20)
    probe.close()

    for batch in sink.batches():
        assert set(batch.tensors["train_logprobs"].tolist()) == {-float(batch.step or 0)}
    assert sum(batch.tokens for batch in sink.batches()) == 12 * 120_000


def test_an_empty_batch_is_nothing_to_lose() -> None:
    """A rank without samples this step."""
    sink = InMemorySink()
    probe = Probe(sink=sink)

    assert probe.train(step=1, logprobs=[])
    assert probe.train(step=1, logprobs=np.zeros((0, 5)), mask=np.zeros((0, 5)))
    probe.close()
    assert sink.batches() == []
    assert probe.stats().balanced


ONE: dict[str, Any] = {"logprobs": [[-1.0]], "sample_ids": "a"}
TWO: dict[str, Any] = {"logprobs": [[-1.0], [-2.0]], "sample_ids": ["a", "b"]}
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no log-probs": ("train", {"step": 1}, "train_logprobs: got None; pass the log-probs"),
    "no step": ("train", ONE, "step: got None; pass an integer"),
    "boolean step": ("train", {"step": True, **ONE}, "step: got True"),
    "step too large": ("train", {"step": 1 << 53, **ONE}, "step: got 9007199254740992"),
    "fractional step": ("train", {"step": 1.5, **ONE}, "step: got 1.5"),
    "misspelt": ("rollout", {**ONE, "tokenids": [[1]]}, "use token_ids"),
    "other side's": ("rollout", {**ONE, "entropy": [[1.0]]}, "entropy: got 'an unknown"),
    "lengths": ("rollout", {**ONE, "token_ids": [[1, 2]]}, "sample 0 has 1 tokens"),
    "float ids": ("rollout", {**ONE, "token_ids": [np.zeros(1)]}, "pass integers"),
    "large ids": ("rollout", {**ONE, "token_ids": [[1 << 40]]}, "pass integers from -2147483648"),
    "text": ("rollout", {**ONE, "logprobs": [["-1.0"]]}, "logprobs[0][0]: got '-1.0'; pass num"),
    "ids missing": ("rollout", {**TWO, "sample_ids": ["a"]}, "pass 2"),
    "one value short": ("rollout", {**TWO, "version": [1]}, "pass 2 values"),
    "prompts": ("rollout", {**ONE, "prompt_ids": [[1], [2]]}, "pass one prompt for each"),
    "sampling": ("rollout", {**ONE, "sampling": 0.7}, "sampling: got 'float'; pass a dict"),
    "ids form": ("rollout", {**ONE, "ids": "none"}, "ids: got 'none'; use full or digest"),
    "complex": ("rollout", {**ONE, "logprobs": [torch.zeros(1).cfloat()]}, "real numbers"),
    "strings": ("rollout", {**ONE, "logprobs": [np.array(["x"])]}, "real numbers"),
    "no ids": ("rollout", {"logprobs": [[-1.0]]}, "token_ids: got None; pass token_ids or sample_"),
    "prompts only": ("train", {"step": 1, "logprobs": [[-1.0]], "prompt_ids": [[1]]},
                     "pass token_ids or sample_ids on both sides"),
    "no ids, ref": ("ref", {"logprobs": [[-1.0]]}, "cannot be joined"),
}  # fmt: skip


SEEN_AT_ONCE = ("no log-probs", "no step", "boolean step", "step too large", "fractional step",
                "misspelt", "other side's", "sampling", "no ids", "prompts only",
                "no ids, ref")  # fmt: skip


@pytest.mark.usefixtures("as_in_a_run")
@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named_and_counted(name: str) -> None:
    """Never raised. What names and missing ids tell makes the call return False; the rest is found
    later."""
    method, fields, words = BAD[name]
    probe = Probe(sink=InMemorySink())

    assert getattr(probe, method)(**fields) is (name not in SEEN_AT_ONCE)
    probe.close()
    stats = probe.stats()
    assert stats.dropped["invalid"].batches == 1
    assert stats.refused == {"invalid": 1}
    assert words in (stats.last_error or "")
    assert stats.balanced


PADDED = {"logprobs": -np.ones((2, 3))}
RAGGED = {"logprobs": [[-1.0, -2.0], [-3.0, -4.0, -5.0]], "sample_ids": ["a", "b"]}
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "id in a ragged list": ({"token_ids": [[1, 2], [3, 1 << 40, 5]]},
                            "token_ids[1][1]: got 1099511627776; pass integers from -2147483648"),
    "id in a padded list": ({**PADDED, "mask": [[1, 1, 0], [1, 1, 1]],
                             "token_ids": [[1, 2, 0], [3, 4, None]]},
                            "token_ids[1][2]: got None; pass integers"),
    "flat ids": ({"token_ids": [1, 2, 3, 4, 0.5]}, "token_ids[1][2]: got 0.5; pass integers"),
    "half of a token": ({**PADDED, "mask": np.float32([[1, 1, 0], [1, 0.5, 0.5]])},
                        "mask[1][1]: got 0.5; pass True and False, or 0 and 1"),
    "NaN in a mask": ({"mask": torch.tensor([1, 1, 1, np.nan, 1], dtype=torch.bfloat16)},
                      "mask[1][1]: got nan; pass True"),
    "mask in lists": ({"mask": [[1, True], [1.0, 0.0, 0.25]]}, "mask[1][2]: got 0.25; pass True"),
    "words": ({"mask": [[1, 1], ["no", 1, 1]]}, "mask[1][0]: got 'no'; pass True"),
    "per sample": ({"reward": [0.5, "high"]}, "reward[1]: got 'high'; pass numbers"),
    "prompts": ({"prompt_ids": [[1], [2, "x"]]}, "prompt_ids[1][1]: got 'x'; pass integers"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS.values(), ids=MISFITS)
def test_a_value_that_does_not_fit_is_named_with_its_sample(
    case: tuple[dict[str, Any], str],
) -> None:
    """Sample, token, value and fix: never the words of a Python exception."""
    fields, words = case
    with pytest.raises(WireError) as caught:
        _send("train", step=1, **{**RAGGED, **fields})

    assert words in str(caught.value)


@pytest.mark.parametrize(
    "mask",
    [[[1.0, 0], [True, 0.0, np.int64(7)]], np.float64([1, 0, 1, 0, 1]), torch.ones(5).half(),
     np.int8([1, 0, 2, 0, -1]), torch.tensor([True, False, True, False, True])],
    ids=["lists", "float64", "float16", "int8", "bool"],
)  # fmt: skip
def test_masks_of_any_type_are_fine_as_long_as_they_say_yes_or_no(mask: Any) -> None:
    """Integers: 0 or not 0. Floats: 0 or 1."""
    batch = _send("train", step=1, **RAGGED, mask=mask)

    assert set(batch.tensors["mask"].tolist()) <= {0, 1}
    assert batch.tensors["mask"][[0, 2, 4]].tolist() == [1, 1, 1]


@pytest.mark.usefixtures("as_in_a_run")
def test_scalars_and_events_are_checked_like_the_rest() -> None:
    """Non-finite numbers cannot travel as JSON: they are reported by name."""
    sink = InMemorySink()
    probe = Probe(sink=sink, run="r")

    assert not probe.scalar(step=3, reward=torch.tensor(0.5), grad_norm=float("nan"))
    assert probe.scalar(step=3, values={"lr": np.float32(0.25)})
    assert probe.event("weight_sync", step=3, version=9, layers=["a"])
    assert probe.close_step(3)
    assert not probe.scalar(step=3, reward="high")
    assert not probe.event("Weight Sync")
    assert not probe.close_step(-1)
    assert not probe.close_step()  # type: ignore[call-arg]
    probe.close()

    assert probe.stats().refused == {"not_finite": 1, "invalid": 4}
    assert set(probe.stats().refused) == set(REFUSE_REASONS)
    assert probe.stats().balanced
    assert sink.messages("/v1/scalars") == [
        {"run": "r", "step": 3, "values": {"reward": 0.5}},
        {"run": "r", "step": 3, "values": {"lr": 0.25}},
    ]
    assert sink.events("scalar_not_finite")[0]["fields"] == {"names": ["grad_norm"]}
    assert sink.events("weight_sync")[0]["fields"] == {"version": 9, "layers": ["a"]}
    assert [post.path for post in sink.posts].count("/v1/runs/r/steps/3/close") == 1


def test_a_loss_that_requires_grad_is_read_without_a_warning() -> None:
    """Warnings are errors here; in the host they would be noise on every step."""
    sink = InMemorySink()
    with Probe(sink=sink) as probe:
        assert probe.scalar(step=1, loss=torch.tensor(0.5, requires_grad=True))

    assert sink.messages("/v1/scalars")[0]["values"] == {"loss": 0.5}


def test_a_pair_needs_no_ids() -> None:
    """Nothing is left to join."""
    assert _send("pair", step=1, rollout_logprobs=[[-1.0]], train_logprobs=[[-1.5]]).samples == 1


PADS = -np.float32([[0.5, 0.25, 0.0, 0.0], [0.5, 0.25, 0.125, 1.0], [0.5, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    "logprobs",
    [PADS, torch.tensor(PADS), torch.tensor(PADS).bfloat16()],
    ids=lambda array: str(array.dtype),
)
def test_padding_without_a_mask_is_pointed_out_once(
    logprobs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is taken as it is: the host may mean it; one line in the log, no error."""
    sink = InMemorySink()
    with Probe(sink=sink) as probe:
        for step in range(3):
            assert probe.train(step=step, logprobs=logprobs, sample_ids=["a", "b", "c"])
        assert probe.flush(20)
        stats = probe.stats()

    (line,) = (record.message for record in caplog.records)
    assert "every column counts, and 2 of 3 rows end in 0.0" in line
    assert "pass mask=response_mask" in line
    assert [batch.tokens for batch in sink.batches()] == [12] * 3
    assert stats.errors == {}


NO_PADS: dict[str, dict[str, Any]] = {
    "masked": {"logprobs": PADS, "mask": PADS != 0},
    "meant": {"logprobs": PADS, "pad": "none"},
    "a certain last token": {"logprobs": PADS[[0, 1, 1]]},
    "ragged": {"logprobs": list(PADS)},
    "flat": {"logprobs": PADS.ravel(), "offsets": [0, 4, 8, 12]},
    "no columns": {"logprobs": PADS[:, :0]},
    "other fills": {"logprobs": PADS - 1},
}


@pytest.mark.parametrize("fields", NO_PADS.values(), ids=NO_PADS)
def test_what_needs_no_mask_is_not_remarked_upon(
    fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A line that is wrong once is not read twice."""
    _send("train", step=1, sample_ids=["a", "b", "c"], **fields)

    assert caplog.records == []
