"""Read the answers of OpenAI-compatible servers (vLLM, SGLang, proxies in front of them).

    body = {"prompt": ids, "logprobs": 0, "return_token_ids": True, "temperature": 1.0, ...}
    answer = post("/v1/completions", body)
    probe.rollout_from(lambda: read_completion(answer, request=body))

Token ids come from `token_ids` (ask with `return_token_ids`) or from "token_id:N" strings (ask
with `return_tokens_as_token_ids`), never from tokenising the text again: the same text can have
several tokenisations, and then every following log-prob belongs to another token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from twinscope.errors import WireError
from twinscope.hosts.sampling import read_sampling

__all__ = ["read_completion", "read_completions"]

TOKEN_ID = re.compile(r"token_id:(\d+)")
VLLM_SYSTEM = re.compile(r"vllm-(\d[^-]*)")
ASK_IDS = 'ask for them: "return_token_ids": true'
ASK_LOGPROBS = 'ask for them: "logprobs": 0 (/v1/completions), true (/v1/chat/completions)'


def read_completion(
    response: Mapping[str, Any],
    *,
    request: Mapping[str, Any] | None = None,
    logprobs_mode: str | None = None,
) -> dict[str, Any]:
    """Arguments for `probe.rollout(**...)` from one answer, either endpoint.

    `response`: the JSON object of /v1/completions or /v1/chat/completions, not a stream (with the
    openai client: `.model_dump()`);
    `request`: the body that was sent, for its sampling parameters; `logprobs_mode`: what the
    server's log-probs mean, if known (an answer does not say). One sample per choice.
    """
    return read_completions([response], request=request, logprobs_mode=logprobs_mode)


def read_completions(
    responses: Iterable[Mapping[str, Any]],
    *,
    request: Mapping[str, Any] | None = None,
    logprobs_mode: str | None = None,
) -> dict[str, Any]:
    """Like `read_completion` for many answers to requests with the same sampling parameters.

    Without prompt ids (only `return_token_ids` brings them) the sides can be joined by `sample_ids`
    alone: add them. A null log-prob (how a NaN leaves a server) becomes NaN; vLLM's -9999.0 for a
    missing value is handed on. The service counts both and keeps them out of every mean.
    """
    answers = list(responses)
    choices = [
        (answer, choice, f"responses[{i}].choices[{j}]")
        for i, answer in enumerate(answers)
        for j, choice in enumerate(_choices(answer, f"responses[{i}]"))
    ]
    samples = [_read_choice(choice, where) for _, choice, where in choices]
    prompts = [
        choice.get("prompt_token_ids") or answer.get("prompt_token_ids")
        for answer, choice, _ in choices
    ]
    found: dict[str, Any] = {
        "logprobs": [logprobs for _, logprobs in samples],
        "token_ids": [ids for ids, _ in samples],
        "prompt_ids": None if any(prompt is None for prompt in prompts) else prompts,
        "cached_tokens": _read_cached(answers),
        "sampling": None if request is None else read_sampling(request),
        "fingerprint": _read_server(answers, logprobs_mode),
    }
    return {name: value for name, value in found.items() if value is not None}


def _choices(answer: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    choices: list[Mapping[str, Any]] | None = answer.get("choices")
    if choices is None:
        raise WireError(f"{where}.choices", answer.get("error"), "pass a finished completion")
    return choices


def _read_choice(choice: Mapping[str, Any], where: str) -> tuple[list[int], list[float]]:
    """(token ids, log-probs in nats) of one choice; raises WireError if either is missing."""
    block = choice.get("logprobs")
    if not block:
        raise WireError(f"{where}.logprobs", block, ASK_LOGPROBS)
    tokens, values = _columns(block)
    ids = choice.get("token_ids")
    if ids is None:
        ids = [_id_of(token, f"{where}.logprobs.tokens[{t}]") for t, token in enumerate(tokens)]
    if len(ids) != len(values):
        raise WireError(
            f"{where}.logprobs", f"{len(values)} values", f"one for each of the {len(ids)} ids"
        )
    return list(ids), [math.nan if value is None else float(value) for value in values]


def _columns(block: Mapping[str, Any]) -> tuple[list[str], list[float | None]]:
    """(tokens, log-probs) from the chat layout (a list of entries) or the completions layout."""
    entries = block.get("content")
    if entries is not None:
        return [entry["token"] for entry in entries], [entry["logprob"] for entry in entries]
    return list(block["tokens"]), list(block["token_logprobs"])


def _id_of(token: str, where: str) -> int:
    match = TOKEN_ID.fullmatch(token)
    if match is None:
        raise WireError(where, token, ASK_IDS)
    return int(match[1])


def _read_cached(answers: list[Mapping[str, Any]]) -> list[int] | None:
    """Prompt tokens from the prefix cache. None: unknown, or one number for several choices."""
    found: list[int] = []
    for answer in answers:
        details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens")
        if cached is None or len(answer["choices"]) != 1:
            return None
        found.append(cached)
    return found or None


def _read_server(
    answers: list[Mapping[str, Any]], logprobs_mode: str | None
) -> dict[str, Any] | None:
    """What the answers say about the server. None: nothing."""
    systems = sorted({str(a["system_fingerprint"]) for a in answers if a.get("system_fingerprint")})
    vllm = VLLM_SYSTEM.match(systems[0]) if len(systems) == 1 else None
    found = {
        "name": "vllm" if vllm else None,
        "version": vllm[1] if vllm else None,
        "system_fingerprint": ",".join(systems) or None,
        "logprobs_mode": logprobs_mode,
    }
    return {key: value for key, value in found.items() if value is not None} or None
