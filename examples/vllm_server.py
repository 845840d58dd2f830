"""A running OpenAI-compatible vLLM server and a transformers trainer, compared.

    python -m vllm.entrypoints.openai.api_server --model FOLDER --logprobs-mode processed_logprobs
    python examples/vllm_server.py --server http://127.0.0.1:8000 --model FOLDER

What matters is in the request: `logprobs` (0: the sampled token's only) and `return_token_ids`.
Prompts are sent as token ids, so that engine and trainer cannot tokenise differently.
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
from twinscope.hosts.openai import read_completion


def main() -> None:
    """One step: sixteen completions, scored again, sent; print the service's verdict."""
    arguments = _parse()
    folder = model_folder(arguments.model)
    request = {
        "model": _ask(f"{arguments.server}/v1/models")["data"][0]["id"],
        "prompt": [prompt["prompt_token_ids"] for prompt in prompts_for(folder, 0)],
        "n": 4,
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
        "logprobs": 0,
        "return_token_ids": True,
    }
    answer = _ask(f"{arguments.server}/v1/completions", request)
    rollout = read_completion(answer, request=request, logprobs_mode=arguments.logprobs_mode)
    policy = load_model(folder)
    p = score(
        policy, rollout["prompt_ids"], rollout["token_ids"], temperature=arguments.temperature
    )

    probe = Probe(arguments.url, arguments.run)
    probe.rollout(step=0, **rollout)
    probe.train(step=0, **p.fields(), fingerprint=fingerprint(policy))
    probe.close_step(0)
    probe.flush(60)
    probe.close()
    view = _ask(f"{arguments.url}/v1/runs/{arguments.run}/steps/0")
    print(f"{view['verdict']}, rollout_train_kl {view['metrics']['k3_mean']:.3g}")


def _ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON answer of GET, or of POST with a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_model_argument(parser)
    parser.add_argument("--server", default="http://127.0.0.1:8000", help="the engine's address")
    parser.add_argument("--url", default=os.environ.get("TWINSCOPE_URL", "http://127.0.0.1:8321"))
    parser.add_argument("--run", default="vllm-server")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument(
        "--logprobs-mode", default="processed_logprobs", help="what the server was started with"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
