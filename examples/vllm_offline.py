"""vLLM's offline LLM class and a transformers trainer, compared step by step.

    make serve                                                   # in another terminal
    .venv-engines/bin/python examples/vllm_offline.py --temperature 0.7
    .venv-engines/bin/python examples/vllm_offline.py --temperature 0.7 --trainer-temperature 1

The second line forgets the temperature on the trainer's side: verdict `inconsistent`. The model is
`--model PATH`, or SmolLM2-135M from a PyPI wheel (smollm2.py), or `--model tiny`.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.request
from typing import Any

from choose_model import add_model_argument, model_folder
from prompts import prompts_for
from transformers_scoring import fingerprint, load_model, score

from twinscope import Probe
from twinscope.hosts.vllm import read_request_outputs


def main() -> None:
    """Sample, score, send; print what the service says of each step."""
    arguments = _parse()
    from vllm import LLM, SamplingParams

    folder = model_folder(arguments.model)
    engine = LLM(
        str(folder),
        logprobs_mode=arguments.logprobs_mode,
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=64,
        gpu_memory_utilization=0.2,  # on the CPU: of the machine's memory, and it must be free
        seed=0,
    )
    sampling = SamplingParams(
        n=4,
        temperature=arguments.temperature,
        max_tokens=arguments.max_tokens,
        logprobs=0,  # the sampled token's log-prob and no other
        flat_logprobs=True,  # as plain lists
    )
    policy = load_model(folder)
    probe = Probe(arguments.url, arguments.run)
    for step in range(arguments.steps):
        outputs = engine.generate(prompts_for(folder, step), sampling, use_tqdm=False)
        rollout = read_request_outputs(outputs, sampling=sampling, engine=engine)
        probe.rollout(step=step, **rollout)

        p = score(
            policy,
            rollout["prompt_ids"],
            rollout["token_ids"],
            temperature=arguments.trainer_temperature or arguments.temperature,
        )
        probe.train(step=step, **p.fields(), fingerprint=fingerprint(policy))
        probe.close_step(step)
        probe.flush(60)
        print(_answer(arguments.url, arguments.run, step))
    probe.close()
    engine.llm_engine.engine_core.shutdown()


def _answer(url: str, run: str, step: int) -> str:
    """One line per step: verdict, mismatch, first cause."""
    with urllib.request.urlopen(f"{url}/v1/runs/{run}/steps/{step}", timeout=30) as answer:
        view: dict[str, Any] = json.load(answer)
    cause = view["diagnosis"][0]["cause"] if view["diagnosis"] else "no diagnosis"
    k3 = view["metrics"]["k3_mean"]
    return f"step {step}: {view['verdict']}, rollout_train_kl {k3:.3g}, {cause}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_model_argument(parser)
    parser.add_argument("--url", default=os.environ.get("TWINSCOPE_URL", "http://127.0.0.1:8321"))
    parser.add_argument("--run", default="vllm-offline")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument(
        "--trainer-temperature", type=float, help="default: the same; another one is a fault"
    )
    parser.add_argument("--logprobs-mode", default="processed_logprobs")
    return parser.parse_args()


if __name__ == "__main__":  # vLLM starts its engine process from this file
    main()
