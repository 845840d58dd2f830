"""The engine's side of the twin test: an OpenAI-compatible server, asked with token ids.

Prompts travel as ids and answers come back with ids: nothing is tokenised twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twinscope.errors import ConfigError
from twinscope.hosts.openai import read_completions

TIMEOUT_S = 600.0
AT_ONCE = 16  # prompts of one request for scores: its answer lists every prompt token


@dataclass(frozen=True)
class Samples:
    """S samples; log-probs in nats, as the engine returned them."""

    prompts: list[list[int]]
    responses: list[list[int]]
    logprobs: list[list[float]]
    cached_tokens: list[int] | None = None  # None: the server does not say
    fingerprint: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Engine:
    """A server at `url`; `sampling` are the run's own parameters, as request fields."""

    url: str
    model: str
    sampling: Mapping[str, Any]
    max_tokens: int
    logprobs_mode: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def sample(
        self, prompts: Sequence[Sequence[int]], *, alone: bool, salt: str, **changes: Any
    ) -> Samples:
        """One completion per prompt: all in one request, or each in a request of its own.

        `salt` isolates the prefix cache where the server knows cache salts: the same salt again
        finds what the first call left there.
        """
        sampling = {**self.sampling, **changes}
        groups = [[prompt] for prompt in prompts] if alone else [list(prompts)]
        body = {
            "max_tokens": self.max_tokens, "logprobs": 0, "return_token_ids": True,
            "return_tokens_as_token_ids": True, "cache_salt": salt, **sampling,
        }  # fmt: skip
        answers = [self._post({**body, "prompt": group}) for group in groups]
        found = read_completions(answers, request=sampling, logprobs_mode=self.logprobs_mode)
        return Samples(
            prompts=[list(prompt) for prompt in prompts],
            responses=found["token_ids"],
            logprobs=found["logprobs"],
            cached_tokens=found.get("cached_tokens"),
            fingerprint=found.get("fingerprint"),
        )

    def prefill(self, samples: Samples) -> list[list[float]] | None:
        """The engine's own scores of given tokens, at temperature 1; None: it does not offer them.

        vLLM scores a prompt's tokens in its prefill, another path through the same weights than
        the decoding that sampled them.
        """
        pairs = list(zip(samples.prompts, samples.responses, strict=True))
        rows: list[list[float]] = []
        for begin in range(0, len(pairs), AT_ONCE):
            part = pairs[begin : begin + AT_ONCE]
            body = {"prompt": [[*prompt, *response] for prompt, response in part],
                    "max_tokens": 1, "prompt_logprobs": 0, "temperature": 0.0}  # fmt: skip
            choices = self._post(body)["choices"]
            tables = [choice.get("prompt_logprobs") for choice in choices]
            if len(tables) != len(part) or not all(tables):
                return None
            for table, (prompt, response) in zip(tables, part, strict=True):
                scored = zip(table[len(prompt) :], response, strict=True)
                rows.append([float(entry[str(token)]["logprob"]) for entry, token in scored])
        return rows

    def _post(self, body: Mapping[str, Any]) -> Any:
        return request(
            f"{self.url}/v1/completions", {"model": self.model, **body}, api_key=self.api_key
        )


def served_model(url: str, *, api_key: str | None = None) -> str:
    """The name of the first model that the server offers."""
    found = request(f"{url}/v1/models", None, api_key=api_key)
    return str(found["data"][0]["id"])


def request(url: str, body: Mapping[str, Any] | None, *, api_key: str | None) -> Any:
    """The JSON answer of POST, or of GET without a body. Raises ConfigError."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        if body is None:
            answer = httpx.get(url, headers=headers, timeout=TIMEOUT_S)
        else:
            answer = httpx.post(url, json=dict(body), headers=headers, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        raise ConfigError(f"{url}: {error or type(error).__name__}; is the server up?") from error
    if answer.status_code != 200:
        raise ConfigError(f"{url}: {answer.status_code} {answer.text[:300]}")
    return answer.json()
