"""The sampling parameters that decide which density the tokens came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Names as in the batch header's `sampling`; both vLLM's SamplingParams and the OpenAI-style request
# bodies use them. Seeds, lengths and stop rules do not change a token's density and stay out.
SAMPLING_KEYS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
)


def read_sampling(params: object) -> dict[str, Any]:
    """The header's `sampling` from a request body (mapping) or an engine's parameter object.

    What is absent or None stays absent: unknown. An engine's own object holds the effective values
    (vLLM raises a temperature below 0.01 and resets top_p at temperature 0); a request body holds
    only what the client asked for, and a model's `generation_config.json` may fill in the rest.
    """
    if isinstance(params, Mapping):
        values = {key: params.get(key) for key in SAMPLING_KEYS}
    else:
        values = {key: getattr(params, key, None) for key in SAMPLING_KEYS}
    return {key: _plain(value) for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """JSON-ready: the keys of a logit bias are token ids, JSON keys are strings."""
    if isinstance(value, Mapping):
        return {str(key): float(bias) for key, bias in value.items()}
    return value
