"""A complete small GRPO run on the CPU: vLLM samples, PyTorch trains, weights really go back.

    make serve                                                    # in another terminal
    .venv-engines/bin/python examples/grpo_cpu.py --steps 60
    .venv-engines/bin/python examples/grpo_cpu.py --run no-sync --no-sync-from 10

Each step: prompts, most with a shared start, a group of samples for each, a reward (the share of
even token ids: it means nothing, and every model can learn it), one clipped policy-gradient update
with a KL term against the frozen start, of float32 weights under bfloat16 autocast; weights written
as bfloat16 and reloaded by the engine, its prefix cache flushed. Both sides carry their weight
version. Switches break one thing in mid-run:

    --no-sync-from STEP        the engine keeps the weights it had before STEP
    --keep-cache-from STEP     syncs, but the prefix cache is not flushed any more
    --trainer-temperature T --trainer-temperature-from STEP   one side changes its temperature

`--record FOLDER` keeps both sides of every step as trace files, too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from choose_model import add_model_argument, model_folder
from prompts import prompts_for
from recording import TraceFolder
from transformers_scoring import Scores, fingerprint, forward, load_model, score

from twinscope import Probe, approx_kl
from twinscope.hosts.vllm import read_request_outputs

CLIP = 0.2
MICRO_BATCH = 16


class Engine:
    """vLLM with a way to load new weights between steps."""

    def __init__(
        self, folder: Path, *, temperature: float, group: int, max_tokens: int, seed: int
    ) -> None:
        from vllm import LLM, SamplingParams

        self.llm = LLM(
            str(folder),
            logprobs_mode="processed_logprobs",  # q is the density that is sampled
            enable_prefix_caching=True,
            enforce_eager=True,
            max_model_len=384,
            max_num_seqs=64,
            gpu_memory_utilization=0.2,  # on the CPU: of the machine's memory, and it must be free
            seed=seed,
        )
        self.sampling = SamplingParams(
            n=group, temperature=temperature, max_tokens=max_tokens, logprobs=0, flat_logprobs=True
        )

    def sample(self, prompts: list[Any]) -> dict[str, Any]:
        """The arguments of `probe.rollout`: log-probs, ids, prompts, versions, fingerprint."""
        outputs = self.llm.generate(prompts, self.sampling, use_tqdm=False)
        return read_request_outputs(outputs, sampling=self.sampling, engine=self.llm)

    def load(self, policy: Any, *, version: int, folder: Path) -> None:
        """Replace the weights by the policy's, rounded to bfloat16, and name their version."""
        weights = {name: value.bfloat16() for name, value in policy.state_dict().items()}
        policy.save_pretrained(folder, state_dict=weights)
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        self.llm.llm_engine.set_weight_version(str(version))

    def flush(self) -> None:
        """Forget cached prefixes: they were computed by the weights of before."""
        self.llm.reset_prefix_cache()

    def close(self) -> None:
        """End the engine's processes."""
        self.llm.llm_engine.engine_core.shutdown()


def main() -> None:
    """Run the loop; one line per step."""
    arguments = _parse()
    folder = model_folder(arguments.model, seed=arguments.seed)
    policy = load_model(folder, dtype=torch.float32)
    frozen = load_model(folder)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=arguments.lr, weight_decay=0.0)
    trainer = fingerprint(policy) | {"dtype": "bfloat16", "master_dtype": "float32"}
    engine = Engine(
        folder,
        temperature=arguments.temperature,
        group=arguments.group,
        max_tokens=arguments.max_tokens,
        seed=arguments.seed,
    )
    probe = Probe(arguments.url, arguments.run)
    recorder = _recorder(arguments.record, run=arguments.run)
    with tempfile.TemporaryDirectory(dir=arguments.sync_dir) as sync_folder:
        for step in range(arguments.steps):
            _sync(arguments, engine, policy, step=step, folder=Path(sync_folder))
            for kind in _done(arguments, step):
                for each in (probe, recorder):
                    each.event(kind, step=step, version=step)
            rollout = engine.sample(_prompts(arguments, folder, step))
            probe.rollout(step=step, **rollout)

            p = _rescore(policy, rollout, temperature=_trainer_temperature(arguments, step))
            ref = _rescore(frozen, rollout, temperature=arguments.temperature).logprobs
            reward = _reward(p)
            advantage = _advantage(reward, group=arguments.group)
            probe.train(
                step=step,
                **p.fields(),
                ref_logprobs=ref,
                version=step,
                reward=reward,
                advantage=advantage,
                fingerprint=trainer,
            )
            recorder.pair(step=step, **_paired(rollout, p, step=step, trainer=trainer))
            norm = _update(
                policy, optimizer, p, advantage, ref,
                temperature=arguments.temperature, kl_coef=arguments.kl_coef,
            )  # fmt: skip
            numbers = {"reward": float(reward.mean()), "grad_norm": norm, "lr": arguments.lr}
            probe.scalar(step=step, values=numbers)
            probe.close_step(step)
            print(
                f"step {step}: reward {numbers['reward']:.3f} {_mismatch(rollout, p)}", flush=True
            )
    probe.flush(60)
    print(probe.stats())
    probe.close()
    recorder.close()
    engine.close()


def _done(arguments: argparse.Namespace, step: int) -> list[str]:
    """What happens to the engine before `step`, unless this step's fault forbids it."""
    if step >= arguments.no_sync_from:
        return []
    return ["weight_sync"] if step >= arguments.keep_cache_from else ["weight_sync", "cache_flush"]


def _prompts(arguments: argparse.Namespace, folder: Path, step: int) -> list[Any]:
    """The prompts of `step`, as many and as long as asked for."""
    return prompts_for(folder, step, count=arguments.prompts, start_words=arguments.start_words)


def _sync(
    arguments: argparse.Namespace, engine: Engine, policy: Any, *, step: int, folder: Path
) -> None:
    """The policy's weights into the engine."""
    done = _done(arguments, step)
    if "weight_sync" in done:
        engine.load(policy, version=step, folder=folder)
    if "cache_flush" in done:
        engine.flush()


def _recorder(folder: Path | None, *, run: str) -> Probe:
    """A second probe that writes files; one that is off if nobody wants them."""
    if folder is None:
        return Probe(disabled=True)
    return Probe(sink=TraceFolder(folder), run=run)


def _paired(
    rollout: dict[str, Any], p: Scores, *, step: int, trainer: dict[str, Any]
) -> dict[str, Any]:
    """Both sides of a step as the arguments of `probe.pair`."""
    renamed = {"logprobs": "rollout_logprobs", "version": "rollout_version"}
    renamed["fingerprint"] = "rollout_fingerprint"
    rows = zip(p.entropy, p.samples.mask.bool(), strict=True)
    return {
        **{renamed.get(name, name): value for name, value in rollout.items()},
        "train_logprobs": p.rows(),
        "entropy": [row[keep] for row, keep in rows],
        "train_version": step,
        "train_fingerprint": trainer,
    }


def _trainer_temperature(arguments: argparse.Namespace, step: int) -> float:
    changed = step >= arguments.trainer_temperature_from
    return float(arguments.trainer_temperature if changed else arguments.temperature)


def _rescore(policy: Any, rollout: dict[str, Any], *, temperature: float) -> Scores:
    """p as the update will see it: the same autocast, the same micro-batches."""
    with torch.autocast("cpu", torch.bfloat16):
        return score(
            policy,
            rollout["prompt_ids"],
            rollout["token_ids"],
            temperature=temperature,
            rows=MICRO_BATCH,
        )


def _reward(p: Scores) -> torch.Tensor:
    """float32 [S]: share of even ids."""
    mask = p.samples.mask
    return ((p.samples.token_ids % 2 == 0) * mask).sum(1) / mask.sum(1).clamp(min=1)


def _advantage(reward: torch.Tensor, *, group: int) -> torch.Tensor:
    """float32 [S]: standardised within each prompt's `group` samples."""
    groups = reward.view(-1, group)
    spread = groups.std(1, keepdim=True) + 1e-4
    return ((groups - groups.mean(1, keepdim=True)) / spread).flatten()


def _update(
    policy: Any,
    optimizer: torch.optim.Optimizer,
    p: Scores,
    advantage: torch.Tensor,
    ref: torch.Tensor,
    *,
    temperature: float,
    kl_coef: float,
) -> float:
    """One clipped update over all micro-batches; the norm of its gradient."""
    total = p.samples.mask.sum()
    columns = (column.split(MICRO_BATCH) for column in (p.logprobs, advantage, ref))
    optimizer.zero_grad()
    for part, before, weight, frozen in zip(p.samples.parts(MICRO_BATCH), *columns, strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            now, _ = forward(policy, part, temperature=temperature)
        ratio = (now - before).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        gain = torch.minimum(ratio * weight[:, None], clipped * weight[:, None])
        cost = kl_coef * approx_kl(now, frozen, "k3+") - gain
        ((cost * part.mask).sum() / total).backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    return float(norm)


def _mismatch(rollout: dict[str, Any], p: Scores) -> str:
    """The same number the service shows, for the eye."""
    q = torch.tensor([value for row in rollout["logprobs"] for value in row], dtype=torch.float64)
    rows = torch.tensor([value for row in p.rows() for value in row], dtype=torch.float64)
    delta = rows - q
    return f"rollout_train_kl {(torch.expm1(delta) - delta).mean():.3g} tokens {len(q)}"


def _parse() -> argparse.Namespace:
    never = 1 << 60
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_model_argument(parser)
    parser.add_argument("--url", default=os.environ.get("TWINSCOPE_URL", "http://127.0.0.1:8321"))
    parser.add_argument("--run", default="grpo-cpu")
    parser.add_argument("--steps", type=int, default=60)
    parser.set_defaults(model="tiny")  # on two cores a step of SmolLM2 takes minutes
    parser.add_argument("--lr", type=float, default=2e-4, help="suits the tiny model")
    parser.add_argument("--kl-coef", type=float, default=0.2, help="of the frozen start policy")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--prompts", type=int, default=8, help="per step")
    parser.add_argument("--group", type=int, default=8, help="samples per prompt, two at least")
    parser.add_argument("--start-words", type=int, help="of the shared start (default: all)")
    parser.add_argument("--max-tokens", type=int, default=48, help="per sample")
    parser.add_argument("--seed", type=int, default=0, help="of the draws, and of tiny's weights")
    parser.add_argument("--sync-dir", help="where weights are handed over (default: temporary)")
    parser.add_argument("--record", type=Path, help="folder for trace files of every step")
    parser.add_argument("--no-sync-from", type=int, default=never, metavar="STEP")
    parser.add_argument("--keep-cache-from", type=int, default=never, metavar="STEP")
    parser.add_argument("--trainer-temperature", type=float, default=0.8)
    parser.add_argument("--trainer-temperature-from", type=int, default=never, metavar="STEP")
    return parser.parse_args()


if __name__ == "__main__":  # vLLM starts its engine process from this file
    main()
