"""Hooks and readers against released code: the parts of the wheels that run without a GPU."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from recorded import paired_batch, recorded
from released import empty_packages, stand_in, unpacked

from twinscope import Probe
from twinscope.hosts import openrlhf, sglang_plugin, skyrl, torchtitan
from twinscope.testing import InMemorySink

torch = pytest.importorskip("torch")


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch, closing: list[Probe]) -> Iterator[InMemorySink]:
    """Where the probes that hooks make for themselves send to."""
    sink = InMemorySink()

    for module in (skyrl, sglang_plugin, torchtitan):
        monkeypatch.setattr(module, "Attachment", recorded(sink, closing))
    return sink


def test_skyrl_calls_our_callback_with_its_own_classes(
    sink: InMemorySink, closing: list[Probe]
) -> None:
    """The real TrainingCallback, CallbackHandler and CallbackInput."""
    with empty_packages("skyrl", "train", "train.utils", __version__="0.3.0"):
        real = importlib.import_module("skyrl.train.utils.callbacks")
        callback = skyrl.make_callback()
        assert isinstance(callback, real.TrainingCallback)
        names = inspect.signature(real.TrainingCallback.on_step_end).parameters
        assert list(names) == ["self", "trainer", "callback_input", "control"]
        source = paired_batch()
        batch = {
            "sequences": torch.cat([torch.full((2, 3), 9), source["responses"]], 1),
            "response_mask": source["response_mask"], "loss_mask": source["response_mask"],
            "rollout_logprobs": source["rollout_log_probs"],
            "action_log_probs": source["old_log_probs"],
        }  # fmt: skip
        given = real.CallbackInput(
            global_step=4, epoch=0, total_steps=9, steps_per_epoch=9, batch=batch
        )
        callback.on_train_start(None, given, None)
        callback.on_step_end(None, given, None)
        callback.on_log(None, replace(given, logs={"policy/grad_norm": 0.25, "timing/x": 1}), None)
        callback.on_log(None, replace(given, logs={"eval/all/avg_score": 0.5}), None)

    assert closing[0].flush(10)
    order = [post.path for post in sink.posts if post.path != "/v1/events"]
    assert order == ["/v1/batches", "/v1/runs/default/steps/4/close", "/v1/scalars"]
    assert sink.messages("/v1/scalars")[0]["values"] == {"grad_norm": 0.25}
    loop = (unpacked("skyrl") / "train/trainer.py").read_text()
    assert loop.index('self._fire("on_log", logs=log_payload)') < loop.rindex(
        "self.global_step += 1"
    )
    (arrived,) = sink.batches()
    assert arrived.step == 4
    assert arrived.tensors["token_ids"].tolist() == [0, 1, 2, 4, 5, 6, 7]
    kept = source["response_mask"].bool()
    marked = arrived.tensors["mask"] != 0
    assert arrived.tensors["train_logprobs"][marked].tolist() == (
        source["old_log_probs"][kept].tolist()
    )


def test_sglang_calls_our_exporter_with_every_finished_request(
    sink: InMemorySink, closing: list[Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real hook registry and the real manager of exporters; bit for bit, as the client sees."""
    monkeypatch.setenv("TWINSCOPE_SGLANG", "1")
    levels = ("srt", "srt.plugins", "srt.observability", "srt.managers")
    with empty_packages("sglang", *levels, __version__="0.5.23"):
        stand_in("sglang.srt.constants", HEALTH_CHECK_RID_PREFIX="HEALTH_CHECK")
        stand_in("sglang.srt.managers.io_struct", EmbeddingReqInput=None, GenerateReqInput=None)
        stand_in("sglang.srt.server_args", ServerArgs=None)
        registry = importlib.import_module("sglang.srt.plugins.hook_registry")
        sglang_plugin.register()
        registry.HookRegistry.apply_hooks()
        exporters = importlib.import_module("sglang.srt.observability.request_metrics_exporter")
        arguments = SimpleNamespace(export_metrics_to_file=False, tp_size=2, model_path="m",
                                    disable_radix_cache=False)  # fmt: skip
        manager = exporters.RequestMetricsExporterManager(arguments)
        assert manager.exporter_enabled()
        for values in ([[-0.5, 7, None], [None, 8, None]], None):
            meta = {"output_token_logprobs": values, "completion_tokens": 2, "cached_tokens": 3,
                    "weight_versions": [{"version": "4", "start": 0, "end": 1},
                                        {"version": "5", "start": 1, "end": 2}],
                    "finish_reason": {"type": "stop"}}  # fmt: skip
            asked = SimpleNamespace(sampling_params={"temperature": 0.7}, input_ids=[1, 2])
            asyncio.run(manager.write_record(asked, {"meta_info": meta}))
        tap = manager._exporters[0]._tap

    assert tap.drain(10)
    assert closing[0].flush(10)
    (batch,) = sink.batches()
    assert tap.seen == {"captured": 1, "no_logprobs": 1}
    assert batch.tensors["token_ids"].tolist() == [7, 8]
    assert batch.tensors["prompt_ids"].tolist() == [1, 2]
    assert batch.tensors["rollout_logprobs"][0] == -0.5
    assert math.isnan(batch.tensors["rollout_logprobs"][1])
    assert batch.tensors["rollout_version"].tolist() == [4]
    assert batch.version_spans == ((0, 1, 5),)
    assert batch.sampling == {"temperature": 0.7}
    assert batch.rollout is not None
    assert batch.rollout["tp"] == 2
    assert batch.rollout["logprobs_mode"] == "sglang_default"


def test_openrlhf_experience_is_read_as_it_is() -> None:
    """The real Experience class, with log-probs of the last A tokens of each sequence."""
    with empty_packages("openrlhf", "trainer", "trainer.ppo_utils", "utils"):
        stand_in("openrlhf.utils.utils", zero_pad_sequences=None)
        real = importlib.import_module("openrlhf.trainer.ppo_utils.experience")
        source = paired_batch()
        experience = real.Experience(
            sequences=torch.tensor([[7, 0, 1, 2, 3], [7, 4, 5, 6, 7]]),
            action_mask=source["response_mask"].bool(),
            action_log_probs=source["old_log_probs"],
            rollout_log_probs=source["rollout_log_probs"],
        )
        found = openrlhf.read_experience(experience)

    assert found["token_ids"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found["rollout_logprobs"] is source["rollout_log_probs"]
    assert "ref_logprobs" not in found


def test_torchtitan_is_captured_inside_its_own_loss(
    sink: InMemorySink, closing: list[Probe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real GRPO loss on packed rows: its own mean log ratio, its result, its gradient."""
    levels = ("components", "experiments", "experiments.rl", "experiments.rl.losses", "distributed")
    with empty_packages("torchtitan", *levels):
        monkeypatch.syspath_prepend(unpacked("torchtitan").parent)  # its version is metadata
        stand_in("spmd_types", register_autograd_function=lambda function: function)
        stand_in("torchtitan.config", CompileConfig=object, Configurable=_Configurable)
        stand_in("torchtitan.distributed.spmd_types", current_spmd_mesh=None, spmd_mesh_size=None)
        stand_in("torchtitan.distributed.utils", get_spmd_backend=lambda: "default")
        stand_in("torchtitan.tools.logging", logger=None)
        grpo = importlib.import_module("torchtitan.experiments.rl.losses.grpo")
        loss = grpo.GRPOLoss(grpo.GRPOLoss.Config())
        plain, plain_metrics, plain_gradient = _titan_step(loss)
        torchtitan.observe()
        value, metrics, gradient = _titan_step(loss)

    assert closing[0].flush(10)
    (batch,) = sink.batches()
    p, q = (batch.tensors[f"{side}_logprobs"] for side in ("train", "rollout"))
    assert batch.offsets.tolist() == [0, 2, 3, 5]  # two turns in the first row, one in the second
    assert batch.tensors["token_ids"].tolist() == [1, 2, 4, 0, 1]
    assert batch.tensors["advantage"].tolist() == [0.5, -1.0, 2.0]
    mean = (p.astype(float) - q).sum() / 5
    assert metrics["bit_wise/logprob_diff/mean"].item() == pytest.approx(mean, rel=1e-6)
    assert batch.tensors["entropy"].mean() == pytest.approx(
        metrics["trainer/entropy/mean"].item(), rel=1e-6
    )
    assert torch.equal(value, plain)
    assert torch.equal(gradient, plain_gradient)
    assert metrics.keys() == plain_metrics.keys()
    assert sink.events("host_attached")[0]["fields"]["host"] == "torchtitan"


class _Configurable:
    """The base of torchtitan's configurable parts, without its registry."""

    class Config:
        """Nothing is configured."""


def _titan_step(loss: Any) -> tuple[Any, dict[str, Any], Any]:
    """(loss, metrics, gradient) of two packed rows of five labels over a vocabulary of six."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 5, 6, generator=generator).requires_grad_()
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0]]).bool()
    advantages = torch.tensor([[0, 0.5, 0.5, 0, -1], [2, 2, 0, 0, 0]])
    value, metrics = loss(
        logits, torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]), 5,
        generator_logprobs=-torch.rand(2, 5, generator=generator) * 3,
        advantages=advantages, loss_mask=mask,
    )  # fmt: skip
    value.backward()
    return value.detach(), metrics, logits.grad


def test_torchtitan_counts_its_versions_where_the_step_is_read() -> None:
    """The released trainer makes its loss, calls it in the forward, and counts after the update."""
    text = (unpacked("torchtitan") / "experiments/rl/actors/trainer.py").read_text()

    assert "class PolicyTrainer(" in text
    assert "loss, loss_metrics = self.loss_fn(" in text
    assert "self.policy_version += 1" in text
    assert "self.parallel_dims = " in text


def test_areal_shifts_its_own_log_probs_as_the_reader_does() -> None:
    """The released actor rolls q by -1 before it meets p: the reader undoes it on p's side."""
    text = (unpacked("areal") / "trainer/ppo/actor.py").read_text()

    assert 'old_logp = torch.roll(data["logprobs"], shifts=-1, dims=-1)' in text


def test_areal_has_the_names_that_the_line_in_its_loop_uses() -> None:
    """docs/hosts/others.md: after p is set, before q may be overwritten, on one rank of a group."""
    root = unpacked("areal")
    loop = (root / "trainer/rl_trainer.py").read_text()

    after = loop.index('traj["prox_logp"] = logp')
    assert after < loop.index("adv_batch = self.actor.compute_advantages(rollout_batch)")
    assert "for traj, logp in zip(rollout_batch, prox_logps):" in loop
    assert "for global_step in range(" in loop
    for engine in ("engine/fsdp_engine.py", "infra/controller/train_controller.py"):
        assert "def is_data_parallel_head(self) -> bool:" in (root / engine).read_text()
    assert "def localize(obj" in (root / "infra/rpc/rtensor.py").read_text()
