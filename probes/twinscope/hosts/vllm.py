"""Read what vLLM returns: request outputs, sampling parameters, the engine's configuration.

    params = SamplingParams(logprobs=0, ...)  # 0: the sampled token's only, the cheapest
    outputs = llm.generate(prompts, params)
    probe.rollout_from(lambda: read_request_outputs(outputs, sampling=params, engine=llm))

    outputs = async_llm.generate(prompt, params, request_id)
    async for output in observe(outputs, probe, sampling=params, engine=async_llm):
        ...

What q means depends on the engine's `logprobs_mode`: vLLM's default `raw_logprobs` is
log softmax(logits), without temperature, penalties or truncation; `processed_logprobs` is the
density that was sampled. The mode travels in the fingerprint, values travel as they are. Written
against vLLM 0.23 to 0.33; objects are read by attribute, vLLM is never imported.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from copy import copy
from typing import Any

from twinscope.errors import WireError
from twinscope.hosts.sampling import read_sampling
from twinscope.probe import Probe

__all__ = ["observe", "read_engine", "read_request_outputs"]


def read_request_outputs(
    outputs: Iterable[Any], *, sampling: object = None, engine: object = None
) -> dict[str, Any]:
    """Arguments for `probe.rollout(**...)` from finished `RequestOutput`s.

    One sample per completion. `sampling`: the SamplingParams that all these requests used, or a
    mapping; `engine`: the LLM, LLMEngine or AsyncLLM object, for its fingerprint. Log-probs in
    nats, float32 values as Python floats. Samples carry no ids: engine request ids restart with the
    engine, so the two sides are joined by content, unless the caller adds `sample_ids`.

    Raises WireError when an output is unfinished or brings no log-probs.
    """
    pairs = [
        (request, completion, f"outputs[{i}].outputs[{j}]")
        for i, request in enumerate(outputs)
        for j, completion in enumerate(_completions(request, f"outputs[{i}]"))
    ]
    found: dict[str, Any] = {
        "logprobs": [_sampled_logprobs(completion, where) for _, completion, where in pairs],
        "token_ids": [list(completion.token_ids) for _, completion, _ in pairs],
        "prompt_ids": _known([request.prompt_token_ids for request, _, _ in pairs], list),
        "cached_tokens": _known([_cached(request) for request, _, _ in pairs], int),
        **_read_versions([completion for _, completion, _ in pairs]),
        "sampling": None if sampling is None else read_sampling(sampling),
        "fingerprint": None if engine is None else read_engine(engine),
    }
    return {name: value for name, value in found.items() if value is not None}


async def observe(
    outputs: AsyncGenerator[Any, None],
    probe: Probe,
    *,
    sampling: object = None,
    engine: object = None,
    **fields: Any,
) -> AsyncGenerator[Any, None]:
    """Pass on what `AsyncLLM.generate` yields; the finished request goes to the probe, too.

    With n > 1 a sample that ends before the others may appear in an earlier output only: each is
    kept from the output in which it ended. `fields`: more arguments of `Probe.rollout`, e.g.
    `sample_ids`, `version`. A request that is aborted or left early sends nothing. With
    `output_kind` DELTA the last output holds the last tokens only: it is refused, and counted by
    the probe as invalid.
    """
    ended: dict[int, Any] = {}
    async with aclosing(outputs):
        async for output in outputs:
            ended |= {c.index: c for c in output.outputs if c.finish_reason is not None}
            if output.finished and all(c.finish_reason != "abort" for c in ended.values()):
                whole = copy(output)
                whole.outputs = [ended[index] for index in sorted(ended)]
                _hand_over(probe, whole, sampling, engine, fields)
            yield output


def _hand_over(
    probe: Probe, output: Any, sampling: object, engine: object, fields: dict[str, Any]
) -> None:
    """One finished request; errors are the probe's to count."""

    def read() -> dict[str, Any]:
        kind = _plain(getattr(sampling, "output_kind", None))
        if kind == "DELTA":
            raise WireError("sampling.output_kind", kind, "use FINAL_ONLY or CUMULATIVE")
        return read_request_outputs([output], sampling=sampling, engine=engine)

    probe.rollout_from(read, **fields)


def read_engine(engine: object) -> dict[str, Any]:
    """The engine fingerprint from an LLM, LLMEngine or AsyncLLM; unknown entries are absent."""
    config = _vllm_config(engine)
    found = {
        "name": "vllm",
        "version": getattr(sys.modules.get("vllm"), "__version__", None),
        "runner": _runner(config),
        "dtype": _plain(_dig(config, "model_config.dtype")),
        "head_dtype": _plain(_dig(config, "model_config.head_dtype")),
        "logprobs_mode": _dig(config, "model_config.logprobs_mode"),
        "quantization": _dig(config, "model_config.quantization"),
        "tp": _dig(config, "parallel_config.tensor_parallel_size"),
        "pp": _dig(config, "parallel_config.pipeline_parallel_size"),
        "dp": _dig(config, "parallel_config.data_parallel_size"),
        "kv_cache_dtype": _dig(config, "cache_config.cache_dtype"),
        "prefix_caching": _dig(config, "cache_config.enable_prefix_caching"),
        "speculative_method": _dig(config, "speculative_config.method"),
        "attention_backend": _attention_in_use(engine)
        or _plain(_dig(config, "attention_config.backend")),
        **read_model(_dig(config, "model_config.hf_text_config")),
    }
    return {name: value for name, value in found.items() if value is not None}


def read_model(config: object) -> dict[str, Any]:
    """Norm and rope parameters of a Hugging Face model configuration (either side's)."""
    rope = _dig(config, "rope_parameters") or {}
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    return {
        "model_type": _dig(config, "model_type"),
        "rms_norm_eps": _dig(config, "rms_norm_eps"),
        "rope_theta": rope.get("rope_theta", _dig(config, "rope_theta")),
        "rope_scaling": scaling if scaling.get("rope_type", "default") != "default" else None,
    }


def _completions(request: Any, where: str) -> Sequence[Any]:
    if getattr(request, "finished", True) is False:
        raise WireError(
            f"{where}.finished", False, "pass the last output of each request, when it is finished"
        )
    completions: Sequence[Any] = request.outputs
    return completions


def _sampled_logprobs(completion: Any, where: str) -> list[float]:
    """Log-prob of each sampled token, nats, from either of vLLM's two layouts."""
    ids, logprobs = completion.token_ids, completion.logprobs
    if logprobs is None:
        raise WireError(f"{where}.logprobs", None, "ask for them: SamplingParams(logprobs=0)")
    starts = getattr(logprobs, "start_indices", None)  # FlatLogprobs: parallel lists
    rows = len(logprobs if starts is None else starts)
    if rows != len(ids):
        raise WireError(
            f"{where}.logprobs", f"{rows} rows", f"one row for each of the {len(ids)} token ids"
        )
    if starts is None:  # one dictionary per position: token id -> Logprob
        return [row[token].logprob for row, token in zip(logprobs, ids, strict=True)]
    values: list[float] = logprobs.logprobs
    # With logprobs=0 there is one entry per position and the list is handed over as it is.
    return list(values) if len(values) == rows else [values[start] for start in starts]


def _cached(request: Any) -> int | None:
    cached = getattr(request, "num_cached_tokens", None)
    return None if cached is None or cached < 0 else cached


def _read_versions(completions: Sequence[Any]) -> dict[str, Any]:
    """`version` (of each sample's first token) and `version_spans` (where it changes later).

    vLLM's versions are strings, "default" until a trainer sets one: known only if all are numbers.
    """
    spans = [_numbered_spans(completion) for completion in completions]
    if not spans or not all(spans):
        return {}
    changes = [(s, start, version) for s, parts in enumerate(spans) for start, version in parts[1:]]
    return {"version": [parts[0][1] for parts in spans], "version_spans": changes or None}


def _numbered_spans(completion: Any) -> list[tuple[int, int]]:
    """(first token, version) of each span; empty if one of them is not a number."""
    spans = getattr(completion, "weight_versions", None) or ()
    names = [str(span.version) for span in spans]
    if not all(name.isascii() and name.isdigit() for name in names):
        return []
    return [(span.start, int(name)) for span, name in zip(spans, names, strict=True)]


def _known(values: list[Any], convert: Any) -> list[Any] | None:
    """The column, or None (unknown) when any sample lacks it."""
    if not values or any(value is None for value in values):
        return None
    return [convert(value) for value in values]


def _vllm_config(engine: object) -> object:
    inner = getattr(engine, "llm_engine", engine)
    return getattr(inner, "vllm_config", None)


MODEL_RUNNER = "engine_core.engine_core.model_executor.driver_worker.worker.model_runner"


def _attention_in_use(engine: object) -> str | None:
    """What the layers really run; known here only if the engine runs in this process.

    Elsewhere the workers pick and tell nobody. Several, of different layers, are joined by +.
    """
    rows = _dig(getattr(engine, "llm_engine", engine), f"{MODEL_RUNNER}.attn_groups") or ()
    found = {group.backend.get_name() for row in rows for group in row}
    return "+".join(sorted(found)) or None


def _runner(config: object) -> str | None:
    """Which of vLLM's two model runners; their log-probs are computed by different kernels."""
    newer = getattr(config, "use_v2_model_runner", None)
    return None if newer is None else "v2" if newer else "v1"


def _dig(root: object, path: str) -> Any:
    """Follow attributes; None as soon as one is missing (other versions name things otherwise)."""
    for name in path.split("."):
        root = getattr(root, name, None)
    return root


def _plain(value: object) -> str | None:
    """torch.bfloat16 -> "bfloat16"; enumeration members -> their name; None stays unknown."""
    if value is None:
        return None
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else str(value).removeprefix("torch.")
