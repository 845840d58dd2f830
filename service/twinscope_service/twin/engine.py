"""The engine's side of the twin test: an OpenAI-compatible server, asked with token ids.

Prompts travel as ids and answers come back with ids: nothing is tokenised twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from twinscope.errors import ConfigError
from twinscope.hosts.openai import read_completions

TIMEOUT_S = 600.0
# What a model's generation_config.json would else fill in.
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
MOST_IDS = 100  # token ids that are scored beside the sampled one in one request; vLLM takes 128
AT_ONCE = 16  # prompts of one request for scores (its answer lists every prompt token); requests
# How prompts are asked: in one request; in one request each, at once; one after the other.
How = Literal["together", "apart", "alone"]
# Counters of cached prompt tokens at /metrics, over all requests of an engine.
HITS = re.compile(
    r"^(?:vllm:prefix_cache_hits_total|sglang:cached_tokens_total)(?:\{.*\})? (\S+)", re.MULTILINE
)


@dataclass(frozen=True)
class Samples:
    """S samples; log-probs in nats, as the engine returned them."""

    prompts: list[list[int]]
    responses: list[list[int]]
    logprobs: list[list[float]]
    cached_tokens: list[int] | None = None  # per sample; None: the server does not say
    cached_by_counter: int | None = None  # of all samples, by the server's counter; None: no such
    fingerprint: Mapping[str, Any] | None = None


class Source(Protocol):
    """What the twin test asks of an engine, on a server or not."""

    @property
    def sampling(self) -> Mapping[str, Any]:
        """The run's own parameters."""
        ...

    @property
    def context(self) -> int | None:
        """Most tokens of a prompt and its response; None: not known."""
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], *, how: How, salt: str, **changes: Any
    ) -> Samples:
        """One completion per prompt."""
        ...

    def prefill(self, samples: Samples) -> list[list[float]] | None:
        """Scores of given tokens as parts of prompts, temperature 1; None: not offered."""
        ...

    def forced(self, samples: Samples) -> list[list[float]] | None:
        """Scores of given tokens decoded one by one, temperature 1; None: not offered."""
        ...


@dataclass(frozen=True)
class Engine:
    """A server at `url`; `sampling` are the run's own parameters, as request fields.

    A context manager, which closes its connections.
    """

    url: str
    model: str
    sampling: Mapping[str, Any]
    max_tokens: int
    logprobs_mode: str | None = None
    api_key: str | None = field(default=None, repr=False)
    context: int | None = None
    client: Any = field(default_factory=lambda: _client(), repr=False, compare=False)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def sample(
        self, prompts: Sequence[Sequence[int]], *, how: How, salt: str, **changes: Any
    ) -> Samples:
        """One completion per prompt. A request of its own says what it took from the prefix cache.

        `salt` isolates the prefix cache where the server knows cache salts: the same salt again
        finds what the first call left there.
        """
        sampling = {**self.sampling, **changes}
        groups = [list(prompts)] if how == "together" else [[prompt] for prompt in prompts]
        body = {
            "max_tokens": self.max_tokens, "logprobs": 0, "return_token_ids": True,
            "return_tokens_as_token_ids": True, "cache_salt": salt, **sampling,
        }  # fmt: skip
        before = self._hits() if how == "apart" else None
        bodies = [{**body, "prompt": group} for group in groups]
        answers = list(self._all_at_once(bodies) if how == "apart" else map(self._post, bodies))
        after = self._hits() if before is not None else None
        found = read_completions(answers, request=sampling, logprobs_mode=self.logprobs_mode)
        return Samples(
            prompts=[list(prompt) for prompt in prompts],
            responses=found["token_ids"],
            logprobs=found["logprobs"],
            cached_tokens=found.get("cached_tokens"),
            cached_by_counter=None if before is None or after is None else int(after - before),
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

    def forced(self, samples: Samples) -> list[list[float]] | None:
        """The engine's scores of given tokens, decoded one by one; None: it does not offer them.

        Token t is asked for after the prompt and the tokens before it, all samples in one request:
        one new token each, the rest from the prefix cache, as in decoding. vLLM's
        `logprob_token_ids` names the tokens that are scored, whichever is sampled.
        """
        rows: list[list[float]] = [[] for _ in samples.responses]
        for t in range(max(map(len, samples.responses), default=0)):
            live = [s for s, response in enumerate(samples.responses) if t < len(response)]
            for begin in range(0, len(live), MOST_IDS):
                part = live[begin : begin + MOST_IDS]
                found = self._score_next(samples, part, t)
                if found is None:
                    return None
                for s, value in zip(part, found, strict=True):
                    rows[s].append(value)
        return rows

    def _score_next(self, samples: Samples, part: Sequence[int], t: int) -> list[float] | None:
        """The scores of token `t` of the samples `part`."""
        asked = [samples.responses[s][t] for s in part]
        body = {
            "prompt": [[*samples.prompts[s], *samples.responses[s][:t]] for s in part],
            "max_tokens": 1, "logprobs": 1, **NEUTRAL,
            "logprob_token_ids": sorted(set(asked)), "return_tokens_as_token_ids": True,
        }  # fmt: skip
        choices = self._post(body)["choices"]
        if len(choices) != len(part):
            return None
        found = [_named(choice, token) for choice, token in zip(choices, asked, strict=True)]
        return [value for value in found if value is not None] if None not in found else None

    def _all_at_once(self, bodies: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from pool.map(self._post, bodies)

    def _hits(self) -> float | None:
        """Prompt tokens that came from the prefix cache since the server's start; None: unknown."""
        import httpx

        try:
            page = self.client.get(f"{self.url}/metrics")
        except httpx.HTTPError:
            return None
        found = [float(value) for value in HITS.findall(page.text)]
        return sum(found) if found else None

    def _post(self, body: Mapping[str, Any]) -> Any:
        """The answer, its choices in the order of the prompts."""
        answer = request(
            f"{self.url}/v1/completions", {"model": self.model, **body}, api_key=self.api_key,
            client=self.client,
        )  # fmt: skip
        answer["choices"].sort(key=lambda choice: int(choice.get("index", 0)))
        return answer


def _named(choice: Mapping[str, Any], token: int) -> float | None:
    """The score of `token` at a choice's first place; None: it is not among those returned."""
    tables = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
    value = tables[0].get(f"token_id:{token}")
    return None if value is None else float(value)


@dataclass(frozen=True)
class Served:
    """A model that a server offers. `context`: most tokens; None: the server does not say."""

    name: str
    context: int | None


def served_model(url: str, *, api_key: str | None = None) -> Served:
    """The first model that the server offers."""
    first = request(f"{url}/v1/models", None, api_key=api_key)["data"][0]
    return Served(str(first["id"]), first.get("max_model_len"))


def _client() -> Any:
    """Connections that are kept: forced decoding is a request per token."""
    import httpx

    return httpx.Client(timeout=TIMEOUT_S)


def request(
    url: str, body: Mapping[str, Any] | None, *, api_key: str | None, client: Any = None
) -> Any:
    """The JSON answer of POST, or of GET without a body. Raises ConfigError."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    given = {} if body is None else {"json": dict(body)}
    method = "GET" if body is None else "POST"
    try:
        with nullcontext(client) if client is not None else _client() as kept:
            answer = kept.request(method, url, headers=headers, **given)
    except httpx.HTTPError as error:
        raise ConfigError(f"{url}: {error or type(error).__name__}; is the server up?") from error
    if answer.status_code != 200:
        raise ConfigError(f"{url}: {answer.status_code} {answer.text[:300]}")
    return answer.json()
