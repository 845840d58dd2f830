"""A GRPO run with TRL on the CPU: vLLM in the same process, a tiny model, real updates.

Usage: trl_run.py MODEL STEPS [trainer]      prints TRL's own metrics, one JSON line per step
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from typing import Any


class Even:
    """A reward that every model can learn: the share of even token ids."""

    __name__ = "even"

    def __call__(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [sum(i % 2 == 0 for i in ids) / max(len(ids), 1) for ids in completion_ids]


def make_trainer(model: str, steps: int, folder: str, **changes: Any) -> Any:
    """TRL's trainer with vLLM colocated, at a temperature that both sides apply."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    prompts = [" ".join(f"t{20 + 3 * i + j}" for j in range(4 + i % 3)) for i in range(16)]
    settings = {
        "output_dir": folder, "use_cpu": True, "bf16": False, "report_to": "none",
        "use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 128,
        "per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 24,
        "max_steps": steps, "logging_steps": 1, "temperature": 0.8, "learning_rate": 1e-4,
        "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    _start_eager()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=Even(),
        args=GRPOConfig(**{**settings, **changes}),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.vllm_generation.sync_weights = lambda: _sync(trainer, folder)
    return trainer


def _start_eager() -> None:
    """TRL has no switch for it, and compiling takes minutes on a small machine."""
    from trl.generation import vllm_generation

    vllm_generation.LLM = functools.partial(vllm_generation.LLM, enforce_eager=True)


def _sync(trainer: Any, folder: str) -> None:
    """TRL writes tensor by tensor into the engine's modules, which vLLM's CPU build repacks."""
    weights = {name: value.bfloat16() for name, value in trainer.model.state_dict().items()}
    trainer.model.save_pretrained(f"{folder}/sync", state_dict=weights)
    llm = trainer.vllm_generation.llm
    llm.collective_rpc("reload_weights", kwargs={"weights_path": f"{folder}/sync"})
    llm.reset_prefix_cache()


def main() -> None:
    """Train with the adapter attached."""
    from twinscope.hosts.trl import observe

    model, steps = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(model, steps, folder)
        if "TWINSCOPE_URL" in os.environ:
            probe = observe(trainer)
        trainer.train()
        if "TWINSCOPE_URL" in os.environ:
            probe.flush(60)
    for entry in trainer.state.log_history:
        if "sampling/sampling_logp_difference/mean" in entry:
            print(json.dumps(entry), flush=True)


if __name__ == "__main__":
    main()
