"""A small engine of the lab: samples from a real model on the CPU, under many laws at once.

One decoding loop keeps a cache, as an engine does, and goes on with the tokens of the plain law.
At every step each other law draws its own token from the same context: its log-prob is exactly
the one an engine with those settings reports, for one pass of the model. Laws that look back at
their own tokens (penalties) get rows of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinscope.wire.batch import Batch
from twinscope_service.lab.scorer import PAD_ID
from twinscope_service.twin.trainer import pad

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Law:
    """What an engine samples from, and what it reports of it; order of operations as in vLLM."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # of tokens in prompt and response
    presence_penalty: float = 0.0  # of tokens in the response
    reports: str = "processed"  # the law itself, "raw" (the model's), or "likeliest" (its token's)

    @property
    def looks_back(self) -> bool:
        """Does it depend on the tokens it has drawn before?"""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0

    def sampling(self) -> dict[str, float]:
        """The header's `sampling`, as an engine would declare it."""
        said: dict[str, float] = {"temperature": self.temperature}
        for key, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0),
                             ("repetition_penalty", 1.0), ("presence_penalty", 0.0)):  # fmt: skip
            if getattr(self, key) != neutral:
                said[key] = getattr(self, key)
        return said

    def log_probs(self, at: Step) -> Tensor:
        """[rows, V] float32 log-probs of the law; dropped tokens are at −inf."""
        z = self._penalised(at) if self.looks_back else at.logits
        z = z / self.temperature
        if self.top_p < 1.0 or self.top_k or self.min_p > 0.0:
            ordered = z.sort(dim=-1, descending=True).values if self.looks_back else at.ordered
            least = self._least_kept(ordered / (1.0 if self.looks_back else self.temperature))
            z = z.masked_fill(z < least, float("-inf"))
        return z.log_softmax(dim=-1)

    def _penalised(self, at: Step) -> Tensor:
        z, factor = at.logits, self.repetition_penalty
        pushed = (z / factor).where(z > 0, z * factor).where(_occurs(z, at.history), z)
        return pushed - self.presence_penalty * _occurs(z, at.history[:, at.response_from :])

    def _least_kept(self, ordered: Tensor) -> Tensor:
        """[rows, 1] the smallest of the logits, given in descending order, that is kept.

        Every rule keeps a prefix.
        """
        share = ordered.softmax(dim=-1)
        keep = share >= self.min_p * share[:, :1]
        if self.top_k:
            keep[:, self.top_k :] = False
        if self.top_p < 1.0:
            share = share * keep
            share = share / share.sum(dim=-1, keepdim=True)
            keep &= share.cumsum(dim=-1) - share < self.top_p
        return ordered.gather(-1, keep.sum(dim=-1, keepdim=True) - 1)


@dataclass(frozen=True)
class Step:
    """One position of all rows: what the laws see, and the noise that they all draw with."""

    logits: Tensor  # float32 [rows, V]
    history: Tensor  # [rows, t] prompt and response ids
    response_from: int
    gumbel: Tensor  # [rows, V]; shared by the laws: each is drawn from exactly, but not afresh

    @cached_property
    def ordered(self) -> Tensor:
        """[rows, V] the logits, largest first."""
        return self.logits.sort(dim=-1, descending=True).values


def _occurs(z: Tensor, ids: Tensor) -> Tensor:
    """[rows, V] bool: which ids are in `ids` [rows, t]. Padding counts as an id nobody draws."""
    import torch

    return torch.zeros_like(z, dtype=torch.bool).scatter_(1, ids, True)


def sample(
    model: Any,
    prompts: Sequence[Sequence[int]],
    laws: Mapping[str, Law],
    *,
    most_tokens: int,
    end_id: int,
    seed: int,
) -> dict[str, Batch]:
    """One rollout-side batch per law; all laws but the backward-looking share their contexts.

    `laws["plain"]` drives the contexts. A row ends with its `end_id` or after `most_tokens`.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    shared = {name: law for name, law in laws.items() if not law.looks_back}
    alone = [(name, {name: law}) for name, law in laws.items() if law.looks_back]
    found: dict[str, Batch] = {}
    for driver, group in (("plain", shared), *alone):
        drawn = _decode(model, prompts, driver, group, most_tokens, generator)
        lengths = _lengths(drawn[driver][0], end_id)
        for name in group:
            found[name] = _as_batch(prompts, *drawn[name], lengths, laws[name])
    return found


def _decode(
    model: Any,
    prompts: Sequence[Sequence[int]],
    driver: str,
    laws: Mapping[str, Law],
    most_tokens: int,
    generator: torch.Generator,
) -> dict[str, tuple[NDArray[np.int32], NDArray[np.float32]]]:
    """name -> (ids, reported log-probs), both [rows, most_tokens]."""
    import torch

    history, mask = pad(torch, prompts, [()] * len(prompts), fill=PAD_ID)
    width = history.shape[1]
    drawn: dict[str, tuple[list[Tensor], list[Tensor]]] = {name: ([], []) for name in laws}
    cache, new = None, history
    with torch.no_grad():
        for _ in range(most_tokens):
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :]
            out = model(new, attention_mask=mask, position_ids=positions, past_key_values=cache,
                        use_cache=True, logits_to_keep=1)  # fmt: skip
            cache, logits = out.past_key_values, out.logits[:, -1].float()
            uniform = torch.rand(logits.shape, generator=generator).clamp_(min=1e-30)
            step = Step(logits, history, width, -(-uniform.log()).log())
            for name, law in laws.items():
                ids, reported = _draw(law, step)
                drawn[name][0].append(ids)
                drawn[name][1].append(reported)
            new = drawn[driver][0][-1][:, None]
            history = torch.cat([history, new], dim=1)
            mask = torch.cat([mask, torch.ones_like(new)], dim=1)
    return {
        name: (torch.stack(ids, 1).int().numpy(), torch.stack(values, 1).numpy())
        for name, (ids, values) in drawn.items()
    }


def _draw(law: Law, at: Step) -> tuple[Tensor, Tensor]:
    """One token per row (Gumbel's trick) and the log-prob that is reported for it."""
    law_of = law.log_probs(at)
    ids = (law_of + at.gumbel).argmax(dim=-1)
    reported = law_of if law.reports != "raw" else at.logits.log_softmax(dim=-1)
    asked = reported.argmax(dim=-1) if law.reports == "likeliest" else ids
    return ids, reported.gather(-1, asked[:, None])[:, 0]


def _lengths(ids: NDArray[np.int32], end_id: int) -> NDArray[np.int64]:
    """[rows] tokens up to and with the first `end_id`."""
    ended = ids == end_id
    lengths: NDArray[np.int64] = np.where(ended.any(1), ended.argmax(1) + 1, ids.shape[1])
    return lengths


def _as_batch(
    prompts: Sequence[Sequence[int]],
    ids: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    lengths: NDArray[np.int64],
    law: Law,
) -> Batch:
    inside = np.arange(ids.shape[1]) < lengths[:, None]
    arrays: dict[str, NDArray[Any]] = {
        "offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "token_ids": ids[inside].astype(np.int32),
        "rollout_logprobs": logprobs[inside].astype(np.float32),
        "prompt_ids": np.concatenate(prompts).astype(np.int32),
        "prompt_offsets": np.concatenate([[0], np.cumsum([*map(len, prompts)])]).astype(np.int64),
    }
    mode = "raw_logprobs" if law.reports == "raw" else "processed_logprobs"
    rollout = {"engine": "lab", "dtype": "bfloat16", "logprobs_mode": mode}
    names = tuple(f"s{i}" for i in range(len(prompts)))
    return Batch(
        "lab", "rollout", 0, arrays, sample_ids=names, sampling=law.sampling(), rollout=rollout
    )
