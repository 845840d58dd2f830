"""verl's own training loops on the CPU: its classes, its data, its logger; fakes for the workers.

Run by test_verl.py in a process of its own, where `import verl` loads the hook as in a run. Prints
what arrived, as JSON. Usage: verl_loops.py v0 separated one_step_off fully_async v1 v1_rounds
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

from twinscope import Probe
from twinscope.hosts import attach
from twinscope.hosts import verl as hook
from twinscope.testing import InMemorySink

PROMPT, RESPONSE, VOCABULARY, SAMPLES, STEPS = 3, 4, 50, 4, 3
SINK = InMemorySink()
PROBES: list[Probe] = []


def make_probe() -> Probe:
    """The hook's probe, which records."""
    PROBES.append(Probe(sink=SINK))
    return PROBES[-1]


class Recorded(attach.Attachment):
    """An attachment whose probe records."""

    def __init__(self, host: attach.Host) -> None:
        super().__init__(host, make_probe=make_probe)


for unused in ("datasets", "pandas", "aiohttp"):  # imported for what does not happen here
    sys.modules[unused] = MagicMock(__spec__=ModuleSpec(unused, None))
hook.Attachment = Recorded  # type: ignore[misc]

from omegaconf import OmegaConf  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from verl import DataProto  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402

CONFIG = OmegaConf.create({
    "trainer": {
        "project_name": "p", "experiment_name": "e", "logger": ["console"], "total_epochs": 9,
        "val_before_train": False, "balance_batch": False, "critic_warmup": 0, "save_freq": -1,
        "test_freq": -1, "rollout_data_dir": None, "esi_redundant_time": 0, "n_gpus_per_node": 1,
        "v1": {"trainer_mode": "sync"},
    },
    "data": {"train_batch_size": SAMPLES},
    "actor_rollout_ref": {
        "rollout": {
            "name": "vllm", "n": 1, "temperature": 0.8, "top_p": 0.9, "top_k": -1,
            "calculate_log_probs": True, "logprobs_mode": "processed_logprobs",
            "dtype": "bfloat16", "tensor_model_parallel_size": 2,
            "multi_turn": {"enable": False},
        },
        "actor": {
            "loss_agg_mode": "token-mean", "loss_scale_factor": None, "calculate_entropy": False,
            "entropy_coeff": 0.0, "ppo_mini_batch_size": SAMPLES, "ppo_epochs": 1,
            "data_loader_seed": 1, "shuffle": False, "policy_loss": {},
        },
        "model": {},
    },
    "algorithm": {
        "adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "use_kl_in_reward": False,
        "norm_adv_by_std_in_grpo": True, "rollout_correction": None,
    },
    "global_profiler": {"steps": None, "profile_continuous_steps": False},
    "skip": {},
})  # fmt: skip
OmegaConf.set_struct(CONFIG, True)


class Workers:
    """The actor and the reference: log-probs that only depend on the tokens; no weights."""

    world_size = 1

    def _answer(self, ids: Any, shift: float) -> TensorDict:
        """Of the token *after* each position, as verl's workers answer."""
        rows = [row.float() for row in ids.unbind()]
        values = [-(torch.roll(row, -1) + shift) / VOCABULARY for row in rows]
        entropy = [row / VOCABULARY for row in (torch.roll(row, -1) for row in rows)]
        jagged = {
            "log_probs": torch.nested.as_nested_tensor(values, layout=torch.jagged),
            "entropy": torch.nested.as_nested_tensor(entropy, layout=torch.jagged),
        }
        answer = tu.get_tensordict(jagged)
        tu.assign_non_tensor(answer, metrics={"mfu": 0.1})
        return answer

    def compute_log_prob(self, batch: TensorDict) -> TensorDict:
        """p"""
        return self._answer(batch["input_ids"], 0.5)

    def compute_ref_log_prob(self, batch: TensorDict) -> TensorDict:
        """ref"""
        return self._answer(batch["input_ids"], 2.0)

    def update_actor(self, batch: TensorDict) -> TensorDict:
        """An update that changes nothing."""
        metrics = {"mfu": 0.1, "grad_norm": 0.25, "lr": 1e-6, "kl_loss": 0.03, "kl_coef": 0.001}
        answer = tu.get_tensordict({"nothing": torch.zeros(len(batch))})
        tu.assign_non_tensor(answer, metrics=metrics)
        return answer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("async_calls"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None  # save, restore and clear weights


class Sync:
    """The manager of weights: remembers the number that verl gave them last."""

    version = 0

    def update_weights(self, global_steps: int) -> dict[str, Any]:
        """verl hands weights over."""
        self.version = global_steps
        return {}

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


class Engine:
    """Rollouts: random tokens of two lengths, q near p, the version that the manager gave."""

    def __init__(self, sync: Sync) -> None:
        self.sync, self.seed = sync, 0

    def sample(self) -> DataProto:
        """What verl's agent loop returns for SAMPLES prompts."""
        self.seed += 1
        generator = torch.Generator().manual_seed(self.seed)
        ids = torch.randint(1, VOCABULARY, (SAMPLES, PROMPT + RESPONSE), generator=generator)
        there = torch.ones_like(ids)
        there[0, 0] = 0  # left padding
        there[1, -1] = 0  # a shorter response
        ids = ids * there
        mask = there[:, PROMPT:]
        responses = ids[:, PROMPT:]
        batch = {
            "prompts": ids[:, :PROMPT], "responses": responses, "input_ids": ids,
            "attention_mask": there, "position_ids": (there.cumsum(1) - 1).clamp(min=0),
            "response_mask": mask, "rollout_log_probs": -responses / VOCABULARY * mask,
            "rm_scores": torch.zeros(SAMPLES, RESPONSE),
        }  # fmt: skip
        batch["rm_scores"][:, -2] = torch.arange(SAMPLES).float()
        versions = np.empty(SAMPLES, dtype=object)
        versions[:] = self.sync.version
        return DataProto(
            batch=TensorDict(batch, batch_size=SAMPLES),
            non_tensor_batch={
                "min_global_steps": versions, "max_global_steps": versions.copy(),
                "multi_modal_inputs": np.array([{}] * SAMPLES, dtype=object),
            },
            meta_info={"timing": {}},
        )  # fmt: skip

    def generate_sequences(self, batch: Any) -> DataProto:
        """Synchronous trainers."""
        return self.sample()


class AsyncEngine(Engine):
    """For one-step-off, whose manager is awaited."""

    async def generate_sequences(self, batch: Any) -> DataProto:  # type: ignore[override]
        """The version is that of the beginning, as the engine reports it."""
        return self.sample()


def equip(trainer: Any, engine: type[Engine] = Engine) -> Any:
    """What the trainer's __init__ and init_workers would have made with GPUs."""
    sync = Sync()
    pool = SimpleNamespace(get_n_gpus=lambda: 1)
    given = {
        "config": CONFIG, "use_critic": False, "use_reference_policy": True, "use_rm": False,
        "ref_in_actor": False, "use_prefix_grouper": False, "total_training_steps": STEPS,
        "train_dataloader": [{"dummy": torch.zeros(SAMPLES, 1)}] * 9, "train_dataset": None,
        "actor_rollout_wg": Workers(), "ref_policy_wg": Workers(), "checkpoint_manager": sync,
        "async_rollout_manager": engine(sync), "resource_pool_manager": pool, "epoch": 0,
        "max_steps_duration": 0, "llm_server_manager": None, "global_steps": 0,
        "timing_raw": {}, "metrics": {},
    }  # fmt: skip
    for name, value in given.items():
        setattr(trainer, name, value)
    for name in ("_load_checkpoint", "_start_profiling", "_stop_profiling"):
        setattr(trainer, name, lambda *args, **kwargs: None)
    trainer._init_dump_executor()
    return trainer


def run_v0() -> None:
    """The colocated trainer's `fit`."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    equip(object.__new__(RayPPOTrainer)).fit()


def run_separated() -> None:
    """`fit` of the trainer that the separated ones are made of."""
    from verl.experimental.separation.ray_trainer import SeparateRayPPOTrainer

    equip(object.__new__(SeparateRayPPOTrainer)).fit()


def run_one_step_off() -> None:
    """Its `fit`: rollouts are one step older than what trains on them."""
    from verl.experimental.one_step_off_policy.ray_trainer import OneStepOffRayTrainer

    asyncio.run(equip(object.__new__(OneStepOffRayTrainer), AsyncEngine).fit())


def run_fully_async() -> None:
    """The methods of its `fit_step` that compute; two training steps per weight version.

    Its trainer is an actor of Ray: the class inside it is taken, its rollouter is not there.
    """
    from verl.experimental.fully_async_policy.detach_utils import MetricsAggregator
    from verl.experimental.fully_async_policy.fully_async_trainer import FullyAsyncTrainer
    from verl.utils.tracking import Tracking

    trainer = equip(object.__new__(FullyAsyncTrainer.__ray_metadata__.modified_class))
    trainer.logger = Tracking("p", "e", ["console"])
    trainer.metrics_aggregator = MetricsAggregator(total_gpus=1)
    trainer.message_queue_client = SimpleNamespace(get_queue_size_sync=lambda: 0)
    trainer.progress_bar = MagicMock()
    trainer.required_samples = SAMPLES
    trainer.current_param_version, trainer.local_trigger_step = 0, 1
    trainer.trigger_parameter_sync_step = 2
    sync = trainer.checkpoint_manager
    trainer.global_steps += 1
    for _ in range(2 * STEPS):
        trainer.metrics, trainer.timing_raw, trainer.reward_tensor = {}, {"step": 1.0}, None
        batch = trainer.async_rollout_manager.sample()
        batch.non_tensor_batch["uid"] = np.array(["a"] * SAMPLES, dtype=object)
        batch.meta_info |= {"temperature": 0.8, "global_token_num": [7] * SAMPLES}
        for stage in ("reward", "log_prob", "ref_log_prob", "critic", "advantage"):
            batch = getattr(trainer, f"_fit_compute_{stage}")(batch)
        batch = trainer._fit_update_actor(batch)
        trainer._fit_update_local_step()
        trainer._fit_collect_metrics(batch)
        if trainer.local_trigger_step == 1:  # as in its _fit_update_weights
            sync.update_weights(trainer.current_param_version)
            trainer._fit_log_aggregated_training_metrics({})
        trainer._fit_postprocess_step()


class Queue:
    """Columns by row, jagged, in the place of verl's transfer queue."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def kv_batch_put(self, *, keys: Any, partition_id: str, fields: Any = None, **_: Any) -> Any:
        """Write columns; answers with the batch's names, which the caller knows."""
        for name in fields.keys() if fields is not None else ():
            for key, value in zip(keys, fields[name].unbind(), strict=True):
                self.rows[key][name] = value
        return self.batch

    def kv_batch_get(self, *, keys: Any, partition_id: str, select_fields: Any) -> TensorDict:
        """Read columns; one that no row has is left out."""
        found = {}
        for name in select_fields:
            column = [self.rows[key][name] for key in keys if name in self.rows[key]]
            if column and isinstance(column[0], torch.Tensor):
                found[name] = torch.nested.as_nested_tensor(column, layout=torch.jagged)
            elif column:
                found[name] = column
        answer = TensorDict({n: v for n, v in found.items() if not isinstance(v, list)},
                            batch_size=len(keys))  # fmt: skip
        for name, values in found.items():
            if isinstance(values, list):
                tu.assign_non_tensor_stack(answer, name, values)
        return answer

    def kv_clear(self, **_: Any) -> None:
        """Nothing is kept."""


def fill(queue: Queue, engine: Engine, *, empty: int = 1) -> Any:
    """A batch of rows as the agent loop writes them, with `empty` rows that fill it up."""
    from transfer_queue import KVBatchMeta

    data, version = engine.sample(), engine.sync.version
    keys, tags = [], []
    for n in range(SAMPLES):
        there = data.batch["attention_mask"][n].bool()
        row = {name: data.batch[name][n][there[PROMPT:]] for name in
               ("responses", "response_mask", "rollout_log_probs", "rm_scores")}  # fmt: skip
        row["prompts"] = data.batch["prompts"][n][there[:PROMPT]]
        row["input_ids"] = data.batch["input_ids"][n][there]
        keys.append(f"prompt{engine.seed}_{n}_0")
        queue.rows[keys[-1]] = row | {"uid": f"prompt{engine.seed}", "num_turns": 1}
        tags.append({"seq_len": len(row["input_ids"]), "min_global_steps": version,
                     "max_global_steps": version})  # fmt: skip
    for n in range(empty):
        row = {name: value[:1] * 0 if isinstance(value, torch.Tensor) else value
               for name, value in queue.rows[keys[0]].items()}  # fmt: skip
        row["input_ids"] = torch.tensor([1, 0])
        keys.insert(1, f"pad{engine.seed}_{n}_0")
        queue.rows[keys[1]] = row
        tags.insert(1, {**tags[0], "is_padding": True})
    queue.batch = KVBatchMeta(partition_id="train", keys=keys, tags=tags)
    queue.batch.extra_info = {}
    return queue.batch


class RowWorkers(Workers):
    """V1's workers read their columns from the queue, and write them there."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def _write(self, batch: Any, shift: float) -> Any:
        for key in batch.keys:
            row = self.queue.rows[key]
            row["log_probs"] = -(torch.roll(row["input_ids"].float(), -1) + shift) / VOCABULARY
            row["entropy"] = torch.roll(row["input_ids"].float(), -1) / VOCABULARY
        return batch

    def compute_log_prob(self, batch: Any) -> Any:
        """p"""
        return self._write(batch, 0.5)

    def compute_ref_log_prob(self, batch: Any) -> Any:
        """ref"""
        return self._write(batch, 2.0)


def run_v1(rounds: int = 1) -> None:
    """`fit` of the synchronous V1 trainer, with `rounds` mini-batches per step."""
    from verl.trainer.ppo.v1 import trainer_base, trainer_sync

    queue = Queue()
    trainer_base.tq = queue
    trainer = equip(object.__new__(trainer_sync.PPOTrainerSync))
    engine = trainer.async_rollout_manager
    trainer.actor_rollout_wg = trainer.ref_policy_wg = RowWorkers(queue)
    trainer.parameter_sync_step, trainer.steps_per_epoch = rounds, 1
    trainer.prepare_step = dict
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
    trainer._balance_batch = lambda batch, metrics: batch
    trainer._reissue_inflight_prompts = lambda: 0
    trainer._get_n_gpus_for_throughput = lambda: 1
    trainer._rollout_moe_lb_metrics_accumulator = None
    trainer.replay_buffer = SimpleNamespace(sample=lambda **_: (fill(queue, engine), {}))
    trainer.fit(None)


def run_v1_rounds() -> None:
    """As the separate-async trainer does it."""
    run_v1(rounds=2)


def arrived() -> dict[str, Any]:
    """What the hook sent since the last time."""
    assert PROBES[0].flush(20)
    batches = [
        {
            "step": batch.step, "side": batch.side, "sampling": batch.sampling,
            "rollout": batch.rollout, "sample_ids": batch.sample_ids,
            **{name: tensor.tolist() for name, tensor in batch.tensors.items()},
        }
        for batch in SINK.batches()
    ]  # fmt: skip
    found = {
        "batches": batches,
        "order": [post.path.removeprefix("/v1/runs/default") for post in SINK.posts],
        "scalars": SINK.messages("/v1/scalars"), "events": SINK.messages("/v1/events"),
        "errors": PROBES[0].stats().errors,
    }  # fmt: skip
    SINK.forget_after_fork()
    return found


def main() -> None:
    """Run the loops named, in one process; print what arrived from each."""
    found = {}
    for name in sys.argv[1:]:
        globals()[f"run_{name}"]()
        found[name] = arrived()
    print("ARRIVED", json.dumps(found))


if __name__ == "__main__":
    main()
