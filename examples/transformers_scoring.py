"""The trainer's side: the same tokens, scored again by transformers in a trainer's own layout.

Prompts are padded on the left, responses on the right, samples run in micro-batches. The examples
and the engine tests use it where a real run has its trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from twinscope.hosts.vllm import read_model


@dataclass(frozen=True)
class Scores:
    """Padded as trainers keep them: prompts on the left [S,P], responses on the right [S,T]."""

    prompt_ids: torch.Tensor  # int64 [S,P]
    prompt_mask: torch.Tensor  # int64 [S,P]
    token_ids: torch.Tensor  # int64 [S,T]
    mask: torch.Tensor  # int64 [S,T]
    logprobs: torch.Tensor  # float32 [S,T] nats, p; meaningless where mask is 0
    entropy: torch.Tensor  # float32 [S,T] nats

    def fields(self) -> dict[str, torch.Tensor]:
        """The arguments of `probe.train` that these tensors are."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def rows(self) -> list[list[float]]:
        """p per sample, without padding."""
        pairs = zip(self.logprobs, self.mask.bool(), strict=True)
        return [row[keep].tolist() for row, keep in pairs]


def load_model(folder: Path) -> torch.nn.Module:
    """The checkpoint in bfloat16, in evaluation mode."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return model.eval()


def fingerprint(model: Any) -> dict[str, Any]:
    """What the trainer can say of itself, for `probe.train(fingerprint=...)`."""
    found = {
        "name": "transformers",
        "version": transformers.__version__,
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention_backend": model.config._attn_implementation,
        **read_model(model.config),
    }
    return {name: value for name, value in found.items() if value is not None}


@torch.no_grad()
def score(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    rows: int = 16,
) -> Scores:
    """Log-probs and entropies of `responses` in micro-batches of `rows` samples.

    `temperature` divides the logits, as a trainer does that restores the rollout's temperature.
    """
    prompt_ids, prompt_mask = _pad(prompts, left=True)
    token_ids, mask = _pad(responses, left=False)
    ids, attention = torch.cat([prompt_ids, token_ids], 1), torch.cat([prompt_mask, mask], 1)
    logprobs, entropy = [], []
    for part, kept in zip(ids.split(rows), attention.split(rows), strict=True):
        positions = (kept.cumsum(1) - 1).clamp(min=0)
        logits = model(input_ids=part, attention_mask=kept, position_ids=positions).logits
        # Position t predicts token t + 1: the responses' log-probs start one place to the left.
        logits = logits[:, prompt_ids.shape[1] - 1 : -1].float() / temperature
        table = logits.log_softmax(-1)
        chosen = part[:, prompt_ids.shape[1] :, None]
        logprobs.append(table.gather(-1, chosen)[..., 0])
        entropy.append(-(table.exp() * table).sum(-1))
    return Scores(prompt_ids, prompt_mask, token_ids, mask, torch.cat(logprobs), torch.cat(entropy))


def _pad(samples: Sequence[Sequence[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask), both int64 [S, longest]."""
    longest = max(len(sample) for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sample in enumerate(samples):
        begin = longest - len(sample) if left else 0
        ids[row, begin : begin + len(sample)] = torch.tensor(sample, dtype=torch.int64)
        mask[row, begin : begin + len(sample)] = 1
    return ids, mask
