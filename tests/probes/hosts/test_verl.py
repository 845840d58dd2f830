"""verl 0.9.1: its own training loops on the CPU, and its own functions wrapped by the hook."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recorded import paired_batch, recorded
from released import ASKED, WHEELS, empty_packages, stand_in, unpacked

from twinscope import Probe
from twinscope.hosts import attach, verl, verl_step
from twinscope.testing import InMemorySink

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("verl_loops.py")
LOOPS = ("v0", "separated", "one_step_off", "fully_async", "v1", "v1_rounds")
PER_TOKEN = ("rollout_logprobs", "train_logprobs", "ref_logprobs", "entropy", "mask")


@pytest.fixture(scope="module")
def loops() -> dict[str, Any]:
    """What arrived from each loop: they run once, in one process that verl's plugins load in."""
    needs = WHEELS.resolve() / "verl-needs"
    if not (needs / "ray").is_dir():
        (pytest.fail if ASKED else pytest.skip)("verl's needs are not there: run make test-hosts")
    paths = (unpacked("verl").resolve().parent, needs)
    environment = {name: value for name, value in os.environ.items() if "TWINSCOPE" not in name}
    environment |= {"TWINSCOPE_VERL": "1", "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *LOOPS],
        capture_output=True, text=True, env=environment, timeout=600, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("ARRIVED ")]
    assert lines, done.stdout[-1000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("ARRIVED "))
    return found


@pytest.mark.parametrize("loop", LOOPS)
def test_every_trainer_sends_its_steps_under_their_own_numbers(
    loops: dict[str, Any], loop: str
) -> None:
    """Steps from 1, one pair each (V1: one per round), closed after it and before its metrics."""
    steps = {"fully_async": 6}.get(loop, 3)
    rounds = 2 if loop == "v1_rounds" else 1
    expected: list[str] = []
    for step in range(1, steps + 1):
        expected += ["/v1/batches"] * rounds + [f"/steps/{step}/close"]
        if loop != "fully_async" or step % 2 == 0:
            expected.append("/v1/scalars")

    arrived = loops[loop]

    assert [path for path in arrived["order"] if path != "/v1/events"] == expected
    assert [batch["step"] for batch in arrived["batches"]] == [
        step for step in range(1, steps + 1) for _ in range(rounds)
    ]
    assert {batch["side"] for batch in arrived["batches"]} == {"paired"}
    assert arrived["errors"] == {}


@pytest.mark.parametrize("loop", LOOPS)
def test_every_column_is_that_of_its_token(loops: dict[str, Any], loop: str) -> None:
    """The fake workers answer by token id: q, p, the reference and the entropy follow from it."""
    for batch in loops[loop]["batches"]:
        ids = batch["token_ids"]
        assert len(ids) == 15  # 4 + 3 + 4 + 4: neither padding nor V1's empty rows
        assert {len(batch[name]) for name in PER_TOKEN} == {15}
        assert batch["rollout_logprobs"] == pytest.approx([-i / 50 for i in ids])
        assert batch["train_logprobs"] == pytest.approx([-(i + 0.5) / 50 for i in ids])
        assert batch["ref_logprobs"] == pytest.approx([-(i + 2) / 50 for i in ids])
        assert batch["entropy"] == pytest.approx([i / 50 for i in ids])
        assert batch["reward"] == [0, 1, 2, 3]
        assert batch["sampling"] == {"temperature": 0.8, "top_p": 0.9, "top_k": -1}
        assert batch["rollout"]["logprobs_mode"] == "processed_logprobs"


def test_prompts_come_from_v0_and_names_of_samples_from_v1(loops: dict[str, Any]) -> None:
    """What docs/hosts/verl.md says about the columns that only some of the trainers have."""
    for loop in LOOPS:
        for batch in loops[loop]["batches"]:
            in_v1 = loop.startswith("v1")
            assert ("prompt_ids" in batch) != in_v1
            assert (batch["sample_ids"] is not None) == in_v1
    assert loops["v0"]["batches"][0]["pad_left"] == [1, 0, 0, 0]
    assert loops["v1"]["batches"][1]["sample_ids"] == [f"prompt2_{n}_0" for n in range(4)]


def test_versions_of_both_sides_are_in_the_same_numbers(loops: dict[str, Any]) -> None:
    """Lag 0 where the engine sampled with the weights that p is of, 1 in one-step-off."""
    for loop in LOOPS:
        for batch in loops[loop]["batches"]:
            lags = [
                train - rollout
                for train, rollout in zip(
                    batch["train_version"], batch["rollout_version"], strict=True
                )
            ]
            assert set(lags) == {1 if loop == "one_step_off" else 0}, loop


def test_scalars_are_those_that_verl_logs(loops: dict[str, Any]) -> None:
    """By the service's names; the fully asynchronous trainer's under the step they end with."""
    for loop in LOOPS:
        scalars = loops[loop]["scalars"]
        steps = [1, 3, 5] if loop == "fully_async" else [1, 2, 3]
        assert [post["step"] for post in scalars] == steps
        for post in scalars:
            values = dict(post["values"])
            assert values.pop("entropy") > 0
            assert values == pytest.approx(
                {"reward": 1.5, "grad_norm": 0.25, "kl": 0.03, "kl_coef": 0.001, "lr": 1e-6}
            )


# ---- the hook over parts of the wheel, without Ray ----


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch, closing: list[Probe]) -> Iterator[InMemorySink]:
    """Where the hook's probe sends to; the hook is switched on."""
    sink = InMemorySink()

    monkeypatch.setattr(verl, "Attachment", recorded(sink, closing))
    monkeypatch.setenv("TWINSCOPE_VERL", "1")
    return sink


def _batch() -> dict[str, Any]:
    """Without the entropy, which verl drops before it compares."""
    batch = paired_batch()
    del batch["entropy"]
    return batch


def _data(**columns: Any) -> Any:
    """A DataProto, as far as the hook looks at it."""
    return SimpleNamespace(batch=_batch() | columns, non_tensor_batch={})


class _Trainer:
    """A trainer that only computes p."""

    config = SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="sglang", temperature=0.7))
    )

    def _compute_old_log_prob(self, batch: Any) -> Any:
        return SimpleNamespace(batch={"entropys": torch.full((2, 4), 0.5)}), 0.1


def _compare(trainer: Any, data: Any) -> Any:
    """The real comparison, right after the trainer computed p."""
    trainer._compute_old_log_prob(data)
    return importlib.import_module("verl.utils.debug.metrics").calculate_debug_metrics(data)


LEVELS = ("utils", "utils.debug", "trainer", "trainer.ppo", "trainer.ppo.v1")


@contextlib.contextmanager
def _hooked_trainers() -> Iterator[Callable[[], Any]]:
    """Makes trainers of a module that the hook has wrapped at import."""
    with empty_packages("verl", *LEVELS, __version__="0.9.1"):
        stand_in("verl.protocol", DataProto=object)
        module = stand_in("verl.trainer.ppo.ray_trainer", RayPPOTrainer=type("T", (_Trainer,), {}))
        verl.register()
        yield module.RayPPOTrainer


def test_the_pair_is_what_verls_own_function_compares(
    sink: InMemorySink, closing: list[Probe]
) -> None:
    """The real calculate_debug_metrics, wrapped at import: same tokens, same mean, same result."""
    with _hooked_trainers() as make:
        trainer = make()
        trainer.global_steps = 12
        answer = _compare(trainer, _data())

    assert closing[0].flush(10)
    (batch,) = sink.batches()
    kept = batch.tensors["mask"] != 0
    p, q = (batch.tensors[f"{side}_logprobs"][kept] for side in ("train", "rollout"))
    gap = torch.tensor(p).exp() - torch.tensor(q).exp()
    assert batch.step == 12
    assert batch.tensors["train_version"].tolist() == [11, 11]
    assert answer["training/rollout_probs_diff_mean"] == pytest.approx(
        gap.abs().mean().item(), rel=1e-6
    )
    assert sink.events("host_attached")[0]["fields"]["host"] == "verl"
    assert batch.tensors["entropy"][kept].tolist() == [0.5] * 6
    assert batch.sampling == {"temperature": 0.7}
    assert batch.rollout is not None
    assert "logprobs_mode" not in batch.rollout  # vLLM's setting
    assert sink.posts[-1].path.endswith("/steps/12/close")


def test_a_trainer_that_counts_no_steps_is_refused_and_not_taken_for_step_0(
    sink: InMemorySink, closing: list[Probe]
) -> None:
    """Nothing is sent; the run's history says why, once."""
    with _hooked_trainers() as make:
        for _ in range(3):
            _compare(make(), _data())

    assert closing[0].flush(10)
    assert sink.batches() == []
    (refusal,) = sink.events("host_refused")
    assert "counts no global_steps" in refusal["fields"]["reason"]


def test_a_verl_without_the_method_that_names_the_trainer_is_refused(
    sink: InMemorySink, closing: list[Probe]
) -> None:
    """Without it no step would be known."""
    with empty_packages("verl", *LEVELS, __version__="0.9.1"):
        stand_in("verl.trainer.ppo.ray_trainer", RayPPOTrainer=object)
        verl.register()

    assert closing[0].flush(10)
    (refusal,) = sink.events("host_refused")
    assert "object has no _compute_old_log_prob" in refusal["fields"]["reason"]


def test_the_manager_of_weights_is_not_wrapped(sink: InMemorySink) -> None:
    """It looks at its caller's frame: a wrapper there would make `await` of it fail."""
    text = (unpacked("verl") / "utils/ray_utils.py").read_text()
    assert "caller_frame.f_code.co_flags & inspect.CO_COROUTINE" in text
    assert (
        "@auto_await\n    async def update_weights("
        in (unpacked("verl") / "checkpoint_engine/base.py").read_text()
    )
    with empty_packages("verl", "checkpoint_engine", __version__="0.9.1"):
        verl.register()
        manager = SimpleNamespace(update_weights=print)
        module = stand_in("verl.checkpoint_engine.base", CheckpointEngineManager=manager)

    assert not attach.is_wrapped(module.CheckpointEngineManager, "update_weights")


def test_verl_says_why_nothing_is_compared(sink: InMemorySink, closing: list[Probe]) -> None:
    """The real bypass function of V0, which copies q into p; a V1 trainer that asks for no q."""
    levels = (*LEVELS, "trainer.config", "workers")
    with empty_packages("verl", *levels, __version__="0.9.1"):
        stand_in("omegaconf", open_dict=contextlib.nullcontext)
        stand_in("verl.protocol", DataProto=object)
        stand_in("verl.trainer.config.algorithm", RolloutCorrectionConfig=object)
        stand_in("verl.workers.config.actor", PolicyLossConfig=object)
        stand_in("verl.utils.torch_functional")
        trainer = stand_in("verl.trainer.ppo.v1.trainer_base", PPOTrainer=_V1Trainer)
        verl.register()
        helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
        data, settings = SimpleNamespace(batch=_batch()), {}
        for _ in range(3):
            helper.apply_bypass_mode(data, None, settings)
            trainer.PPOTrainer()._compute_old_log_prob(SimpleNamespace(), {})

    assert closing[0].flush(10)
    assert data.batch["old_log_probs"] is data.batch["rollout_log_probs"]
    told = [event["fields"] for event in sink.events("host_side_missing")]
    assert [fields["field"] for fields in told] == ["old_log_probs", "rollout_log_probs"]
    assert "bypass_mode" in told[0]["why"]
    assert "calculate_log_probs=False" in told[1]["why"]
    text = (unpacked("verl") / "trainer/ppo/v1/trainer_base.py").read_text()
    assert 'rollout_corr_config.get("bypass_mode", False)' in text
    assert "self.config.actor_rollout_ref.rollout.calculate_log_probs" in text


class _V1Trainer:
    """The method of V1's trainer and the settings that it reads; the class itself needs Ray."""

    config = SimpleNamespace(
        algorithm={"rollout_correction": {"bypass_mode": False}},
        actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(calculate_log_probs=False)),
    )

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return batch


def test_no_loop_of_verl_sends_from_a_seam_that_is_not_there() -> None:
    """The released sources have every name that the hook wraps, where it looks for it."""
    root = unpacked("verl")
    for module, name in (
        (verl.METRICS, verl.COMPARE), (verl.V0_TRAINER, verl.OLD), (verl.V0_TRAINER, verl.REF),
        (verl.V1_TRAINER, verl.OLD), (verl.V1_ADVANTAGE, verl.ADVANTAGE),
        (verl.SEPARATED, verl.SYNC), (verl.LOG, "log"), (verl.BYPASS, verl.BYPASS_FUNCTION),
    ):  # fmt: skip
        path = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
        assert f"def {name}(" in path.read_text(), module
    separated = (root / "experimental/separation/ray_trainer.py").read_text()
    assert "class SeparateRayPPOTrainer(RayPPOTrainer)" in separated
    assert "SkipManager" not in separated  # its step is never set there: the trainer's own is
    assert 'group="verl.plugins"' in (root / "__init__.py").read_text()
    assert "_ep.load()" in (root / "__init__.py").read_text()


# ---- the readers, by hand ----


def test_versions_that_the_engine_did_not_tell_are_unknown() -> None:
    """verl writes None for them; one is enough, a version of 0 would be a claim."""
    some = verl_step.read_batch(_batch(), {"min_global_steps": [3, None]})
    all_known = verl_step.read_batch(_batch(), {"min_global_steps": [3, 0]})

    assert "rollout_version" not in some
    assert all_known["rollout_version"] == [3, 0]


def test_rows_that_fill_a_batch_up_are_named_by_their_tags() -> None:
    """V1 marks them; the rest are samples, in order."""
    tags = [{"min_global_steps": 4}, {"min_global_steps": 4, "is_padding": True},
            {"min_global_steps": 5}]  # fmt: skip

    found, real = verl_step.read_tags(["a", "b", "c"], tags)

    assert real == [0, 2]
    assert found == {"sample_ids": ["a", "b", "c"], "rollout_version": [4, 4, 5]}
