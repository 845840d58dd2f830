"""Read what SGLang returns: the answers of `/generate`, `Engine.generate` and its meta_info.

    answers = engine.generate(input_ids=prompts, sampling_params=params, return_logprob=True)
    probe.rollout_from(lambda: read_outputs(answers, sampling=params, prompts=prompts))

SGLang's log-probs have the temperature applied and are taken before top-p, top-k and min-p, so
that they are not renormalised; SGLANG_RETURN_ORIGINAL_LOGPROB=1 takes the temperature out. -inf
arrives as the lowest float32, and NaN as null: both are handed on and counted by the service.
Written against SGLang 0.5.23; SGLang is never imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from twinscope.errors import WireError
from twinscope.hosts.sampling import read_sampling

__all__ = ["read_outputs"]

ASK = "ask for them: return_logprob=True"


def read_outputs(
    outputs: Iterable[Mapping[str, Any]],
    *,
    sampling: object = None,
    prompts: Sequence[Sequence[int]] | None = None,
    fingerprint: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments for `Probe.rollout` from finished answers, one sample each.

    Token ids are those beside the log-probs (`output_token_logprobs`), nothing is tokenised again.
    `prompts`: the ids that were sent; else `prompt_token_ids` of the answers
    (`return_prompt_token_ids`), else unknown.
    """
    answers = list(outputs)
    rows = [_row(answer, f"outputs[{i}]") for i, answer in enumerate(answers)]
    metas = [answer["meta_info"] for answer in answers]
    told: list[Any] = [answer.get("prompt_token_ids") for answer in answers]
    given = told if prompts is None else list(prompts)
    found: dict[str, Any] = {
        "logprobs": [[math.nan if entry[0] is None else entry[0] for entry in row] for row in rows],
        "token_ids": [[entry[1] for entry in row] for row in rows],
        "prompt_ids": None if any(prompt is None for prompt in given) else given,
        "cached_tokens": _known([meta.get("cached_tokens") for meta in metas]),
        "sampling": None if sampling is None else read_sampling(sampling),
        "fingerprint": fingerprint,
        **_read_versions(metas),
    }
    return {name: value for name, value in found.items() if value is not None}


def _row(answer: Mapping[str, Any], where: str) -> Sequence[Sequence[Any]]:
    """(log-prob, token id, text) of each token; as many as tokens were made."""
    meta = answer["meta_info"]
    row: Sequence[Sequence[Any]] | None = meta.get("output_token_logprobs")
    if row is None:
        raise WireError(f"{where}.meta_info.output_token_logprobs", None, ASK)
    made = meta.get("completion_tokens", len(row))
    if made != len(row):
        # Known to happen after retractions: which of them belong to the tokens is not known.
        raise WireError(
            f"{where}.meta_info.output_token_logprobs", f"{len(row)} values", f"{made} tokens"
        )
    return row


def _known(values: list[Any]) -> list[int] | None:
    return None if not values or any(value is None for value in values) else values


def _read_versions(metas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`version` of each sample's first token, and where it changes; known only if all are numbers.

    `weight_versions` are spans, `weight_version` is the one at the end. "default": nobody set it.
    """
    spans = [
        meta.get("weight_versions") or [{"version": meta.get("weight_version"), "start": 0}]
        for meta in metas
    ]
    names = [str(span["version"]) for row in spans for span in row]
    if not names or not all(name.isascii() and name.isdecimal() for name in names):
        return {}
    changes = [
        (s, int(span["start"]), int(span["version"]))
        for s, row in enumerate(spans)
        for span in row[1:]
    ]
    return {
        "version": [int(row[0]["version"]) for row in spans],
        "version_spans": changes or None,
    }
