"""A program that uses vLLM and knows nothing of TwinScope; prints what it saw as one JSON line.

Usage: plugin_caller.py SCRIPT MODEL
"""

from __future__ import annotations

import json
import sys
from typing import Any

PREFIX = [0, *(5 + 7 * i % 500 for i in range(160))]
WRAPS = (
    ("output_processor", "OutputProcessor", "add_request"),
    ("output_processor", "RequestState", "make_request_output"),
    ("llm_engine", "LLMEngine", "__init__"),
)


def start(model: str) -> Any:
    """An engine as RL frameworks start it."""
    from vllm import LLM

    return LLM(
        model, logprobs_mode="processed_logprobs", enable_prefix_caching=True, enforce_eager=True,
        max_model_len=384, gpu_memory_utilization=0.2, seed=1,
    )  # fmt: skip


def offline(model: str) -> dict[str, Any]:
    """Five kinds of requests; the samples of those that asked for log-probs."""
    from vllm import SamplingParams, __version__

    llm = start(model)
    prompts = [{"prompt_token_ids": [*PREFIX, 20 + i]} for i in range(4)]
    stop = {"stop_token_ids": list(range(40, 60))}
    llm.generate(prompts[:1], SamplingParams(max_tokens=1), use_tqdm=False)  # warms the cache
    asked = [
        SamplingParams(n=2, max_tokens=24, logprobs=0, flat_logprobs=True, seed=3, **stop),
        SamplingParams(max_tokens=24, logprobs=2, seed=4),
    ]
    outputs = [o for params in asked for o in llm.generate(prompts, params, use_tqdm=False)]
    if hasattr(llm.llm_engine, "set_weight_version"):  # from vLLM 0.29 on
        llm.llm_engine.set_weight_version("12")
    trimmed = SamplingParams(max_tokens=16, logprobs=0, top_p=0.8, repetition_penalty=1.1, seed=5)
    outputs += llm.generate(prompts, trimmed, use_tqdm=False)
    unasked = llm.generate(prompts[:2], SamplingParams(max_tokens=4), use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
    return {
        "version": __version__,
        "tells_versions": hasattr(outputs[0].outputs[0], "weight_versions"),
        "samples": [
            {
                "prompt": output.prompt_token_ids,
                "ids": list(completion.token_ids),
                "logprobs": [
                    completion.logprobs[t][token].logprob
                    for t, token in enumerate(completion.token_ids)
                ],
                "cached": output.num_cached_tokens,
            }
            for output in outputs
            for completion in output.outputs
        ],
        "unasked_logprobs": [output.outputs[0].logprobs for output in unasked],
    }


def patched(model: str) -> dict[str, Any]:
    """Which methods are wrapped once vLLM has loaded its plugins, and which hooks are loaded."""
    from importlib import import_module

    from vllm.plugins import load_general_plugins

    load_general_plugins()
    found = []
    for module, owner, name in WRAPS:
        method = getattr(getattr(import_module(f"vllm.v1.engine.{module}"), owner), name)
        if hasattr(method, "__wrapped__") and "twinscope" in method.__code__.co_filename:
            found.append(f"{owner}.{name}")
    loaded = [name for name in sys.modules if name in ("twinscope.probe", "twinscope.http_sink")]
    return {"wrapped": found, "loaded_modules": loaded if not found else []}


def other_version(model: str) -> dict[str, Any]:
    """As `patched`, in a vLLM that says it is another one."""
    import vllm

    vllm.__version__ = "0.99.1"
    return patched(model)


def share(model: str) -> dict[str, Any]:
    """Requests that ask for no log-probs."""
    from vllm import SamplingParams

    llm = start(model)
    prompts = [{"prompt_token_ids": [0, 20 + i]} for i in range(2)]
    outputs = llm.generate(prompts, SamplingParams(n=2, max_tokens=8), use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
    completions = [completion for output in outputs for completion in output.outputs]
    return {
        "ids": [list(completion.token_ids) for completion in completions],
        "logprobs": [completion.logprobs for completion in completions],
    }


if __name__ == "__main__":
    script, model_folder = sys.argv[1:]
    print(json.dumps(globals()[script](model_folder)), flush=True)
