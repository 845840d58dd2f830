"""The trainer's side: the same tokens, scored again by transformers in a trainer's own layout.

Prompts are padded on the left, responses on the right, samples run in micro-batches. The examples
and the engine tests use it where a real run has its trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from twinscope.hosts.vllm import read_model


@dataclass(frozen=True)
class Samples:
    """Padded as trainers keep them: prompts on the left [S,P], responses on the right [S,T]."""

    prompt_ids: torch.Tensor  # int64 [S,P]
    prompt_mask: torch.Tensor  # int64 [S,P]
    token_ids: torch.Tensor  # int64 [S,T]
    mask: torch.Tensor  # int64 [S,T]

    def parts(self, rows: int) -> Iterator[Samples]:
        """Micro-batches of at most `rows` samples, padding kept."""
        for begin in range(0, len(self.mask), rows):
            cut = slice(begin, begin + rows)
            yield Samples(
                self.prompt_ids[cut], self.prompt_mask[cut], self.token_ids[cut], self.mask[cut]
            )


@dataclass(frozen=True)
class Scores:
    """What the trainer knows of samples; values are meaningless where the mask is 0."""

    samples: Samples
    logprobs: torch.Tensor  # float32 [S,T] p, nats
    entropy: torch.Tensor  # float32 [S,T] nats

    def fields(self) -> dict[str, torch.Tensor]:
        """The arguments of `probe.train` that these tensors are."""
        return {**vars(self.samples), "logprobs": self.logprobs, "entropy": self.entropy}

    def rows(self) -> list[list[float]]:
        """p per sample, without padding."""
        pairs = zip(self.logprobs, self.samples.mask.bool(), strict=True)
        return [row[keep].tolist() for row, keep in pairs]


def load_model(folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The checkpoint in evaluation mode."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


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


def pad(prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Samples:
    """Ragged lists of token ids -> padded tensors."""
    return Samples(*_pad(prompts, left=True), *_pad(responses, left=False))


def forward(
    model: Any, samples: Samples, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probs, entropies) of the responses, both float32 [S,T] nats; gradients flow.

    `temperature` divides the logits, as a trainer does that restores the rollout's temperature.
    """
    ids = torch.cat([samples.prompt_ids, samples.token_ids], 1)
    kept = torch.cat([samples.prompt_mask, samples.mask], 1)
    positions = (kept.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=kept, position_ids=positions).logits
    # Position t predicts token t + 1: the responses' log-probs start one place to the left.
    logits = logits[:, samples.prompt_ids.shape[1] - 1 : -1].float() / temperature
    table = logits.log_softmax(-1)
    logprobs = table.gather(-1, samples.token_ids[..., None])[..., 0]
    return logprobs, -(table.exp() * table).sum(-1)


@torch.no_grad()
def score(
    model: Any,
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    rows: int = 16,
) -> Scores:
    """Log-probs and entropies of `responses` in micro-batches of `rows` samples."""
    samples = pad(prompts, responses)
    found = [forward(model, part, temperature=temperature) for part in samples.parts(rows)]
    logprobs, entropy = (torch.cat(columns) for columns in zip(*found, strict=True))
    return Scores(samples, logprobs, entropy)


def _pad(rows: Sequence[Sequence[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, mask), both int64 [S, longest]."""
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        begin = longest - len(row) if left else 0
        ids[index, begin : begin + len(row)] = torch.tensor(row, dtype=torch.int64)
        mask[index, begin : begin + len(row)] = 1
    return ids, mask
