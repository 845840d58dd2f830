"""reward, grad_norm, entropy ... out of what each framework logs."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from released import unpacked

from twinscope import Probe
from twinscope.hosts import openrlhf, slime
from twinscope.hosts.scalars import NAMES, read_scalars
from twinscope.testing import InMemorySink

torch = pytest.importorskip("torch")

# What the frameworks log in a step: a few of the names, from their sources.
LOGGED: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "verl": (
        {"critic/score/mean": 0.5, "critic/rewards/mean": 0.4, "actor/kl_loss": np.float64(0.1),
         "actor/reward_kl_penalty": 0.2, "perf/throughput": 9.0},
        {"reward": 0.5, "kl": 0.1},
    ),
    "SkyRL": (
        {"reward/avg_raw_reward": 0.5, "policy/policy_lr": 1e-6, "loss/avg_final_rewards": 2.0,
         "policy/grad_norm": 0.25, "timing/step": 3.0},
        {"reward": 0.5, "lr": 1e-6, "grad_norm": 0.25},
    ),
    "OpenRLHF": (
        {"reward": 0.5, "actor_grad_norm": 0.25, "policy_loss": -0.1, "actor_lr": 1e-6,
         "kl": 0.01, "generated_samples": ["a text", 0.5]},
        {"reward": 0.5, "grad_norm": 0.25, "loss": -0.1, "lr": 1e-6, "kl": 0.01},
    ),
    "NeMo-RL": (
        {"reward": np.array(0.5), "grad_norm": np.array([0.25]), "loss": np.array([1.0, 2.0]),
         "approx_entropy": 0.7},
        {"reward": 0.5, "grad_norm": 0.25, "entropy": 0.7},
    ),
    "TRL": (
        {"reward": 0.5, "grad_norm": 0.25, "learning_rate": 1e-6, "kl": 0.01, "entropy": 0.7,
         "loss": -0.1, "num_tokens": 900.0},
        {"reward": 0.5, "grad_norm": 0.25, "lr": 1e-6, "kl": 0.01, "entropy": 0.7, "loss": -0.1},
    ),
    "slime": (
        {"train/grad_norm": torch.tensor(0.25), "train/lr-pg_0": 1e-6, "train/step": 7,
         "train/critic-grad_norm": 9.0},
        {"grad_norm": 0.25, "lr": 1e-6},
    ),
    "torchtitan": (
        {"trainer/grad_norm/mean": 0.25, "trainer/entropy/mean": torch.tensor([0.7]),
         "loss/mean": 0.1, "trainer/policy_version": 3.0},
        {"grad_norm": 0.25, "entropy": pytest.approx(0.7), "loss": 0.1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("framework", LOGGED)
def test_the_known_metrics_of_a_framework_are_read_and_nothing_else(framework: str) -> None:
    """By the service's names; texts and arrays of several elements are left out."""
    logged, expected = LOGGED[framework]

    assert read_scalars(logged) == expected


@pytest.mark.parametrize("other", [None, 3, "text", ["reward"], {"reward": None}, {7: 1.0}])
def test_what_is_no_metrics_gives_nothing(other: Any) -> None:
    """It stands in a host's loop and does not raise there."""
    assert read_scalars(other) == {}


def test_the_names_are_in_the_released_sources() -> None:
    """A name that a framework no longer writes would be a curve that stays empty."""
    folders = {
        "verl": ("trainer/ppo", "workers"), "skyrl": ("train", "backends/skyrl_train/workers"),
        "openrlhf": ("trainer",), "areal": ("trainer/ppo", "engine"),
        "torchtitan": ("experiments/rl",),
    }  # fmt: skip
    paths = [unpacked(package) / folder for package in folders for folder in folders[package]]
    text = "\n".join(file.read_text() for path in paths for file in path.rglob("*.py"))
    unreleased = {"train/", "optim/", "rollout/", "actor_train/", "critic/kl", "entropy/all/mean",
                  "approx_entropy", "kl_penalty"}  # fmt: skip  # slime, prime-rl, ROLL, NeMo-RL
    prefixes = ("actor/", "policy/", "ppo_actor/update/", "ppo_actor/")  # put before names later

    for name in (name for names in NAMES.values() for name in names):
        if not any(name.startswith(other) for other in unreleased):
            bare = name.removesuffix("/avg")
            forms = {bare, *(bare.removeprefix(prefix) for prefix in prefixes)}
            assert any(f'"{form}"' in text or f" {form}=" in text for form in forms), name


def _experience(width: int = 2) -> Any:
    column = -torch.ones(1, width)
    return SimpleNamespace(
        sequences=torch.arange(width + 1).view(1, -1), action_mask=torch.ones(1, width),
        rollout_log_probs=column, action_log_probs=column - 0.1, base_action_log_probs=None,
    )  # fmt: skip


def test_openrlhf_closes_its_step_when_all_experiences_are_sent() -> None:
    """The driver holds the whole batch."""
    sink = InMemorySink()
    with Probe(run="r", sink=sink) as probe:
        assert openrlhf.send_experiences(probe, [_experience(), _experience(3)], step=4)
        assert probe.flush(10)

    paths = [post.path for post in sink.posts if post.path != "/v1/events"]
    assert paths == ["/v1/batches", "/v1/batches", "/v1/runs/r/steps/4/close"]


def test_openrlhfs_line_is_where_the_page_says() -> None:
    """docs/hosts/others.md names the method and the call before which it stands."""
    text = (unpacked("openrlhf") / "trainer/ppo_trainer.py").read_text()

    assert "def train_step(self, rollout_samples, global_step: int)" in text
    assert "experiences = self.experience_maker.make_experience_batch(rollout_samples)" in text
    assert "status = self.ppo_train(global_step)" in text
    assert list(inspect.signature(openrlhf.send_experiences).parameters) == [
        "probe", "experiences", "step",
    ]  # fmt: skip


@pytest.fixture
def slimes_sink(monkeypatch: pytest.MonkeyPatch, closing: list[Probe]) -> InMemorySink:
    """What slime's hook sends in this process."""
    sink = InMemorySink()
    closing.append(Probe(sink=sink))
    attachment = slime.Attachment(slime.SLIME, make_probe=lambda: closing[0])
    monkeypatch.setattr(slime, "_attachment", lambda: attachment)
    return sink


def test_a_rank_of_slime_says_how_many_samples_the_step_has(
    slimes_sink: InMemorySink, closing: list[Probe]
) -> None:
    """Two of three samples are here; raw rewards are shipped whole, and ours are picked out."""
    data = {
        "tokens": [torch.tensor([1, 2]), torch.tensor([1, 3])], "response_lengths": [1, 1],
        "rollout_log_probs": [torch.tensor([-1.0]), torch.tensor([-2.0])],
        "log_probs": [torch.tensor([-1.1]), torch.tensor([-2.1])],
        "rewards": [0.7, -0.7], "raw_reward": [1.0, 5.0, 0.0], "partition": [2, 0],
    }  # fmt: skip

    slime.postprocess(SimpleNamespace(), 8, data)
    slime.log(8, {"train/grad_norm": 0.25, "train/step": 8})
    slime.log(8, {"train/step": 9})

    assert closing[0].flush(10)
    (batch,) = slimes_sink.batches()
    assert batch.expect == {"rollout": 3, "train": 3}
    assert batch.tensors["reward"].tolist() == [0.0, 1.0]
    (scalars,) = slimes_sink.messages("/v1/scalars")
    assert (scalars["step"], scalars["values"]) == (8, {"grad_norm": 0.25})


def test_the_lines_of_the_other_loops_use_names_that_are_there() -> None:
    """docs/hosts/others.md, for the frameworks whose releases can be read."""
    areal = (unpacked("areal") / "trainer/rl_trainer.py").read_text()
    assert "def _export_and_commit_stats(self, epoch: int, epoch_step: int, global_step" in areal
    assert "stats = self.actor.export_stats()" in areal
    assert "self.stats_logger.commit(epoch, epoch_step, global_step, stats)" in areal
    titan = (unpacked("torchtitan") / "experiments/rl/controller.py").read_text()
    updated = titan.index("optim_result = self._get_rank_0_value(")
    logged = titan.index("self.metrics_processor.log(", updated)
    assert titan.index("fwd_bwd_metrics = combine_microbatch_metrics(") < updated < logged
    assert "self._trainer_policy_version = optim_result.policy_version" in titan
