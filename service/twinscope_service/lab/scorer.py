"""Score recorded tokens with a real model on the CPU, with one thing switchably wrong.

Needs `torch` and `transformers` (and `gguf`, `accelerate` for a GGUF file); the service does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinscope.counterfactual import counterfactuals_from_hidden
from twinscope.wire.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor

PAD_ID = 2


@dataclass(frozen=True)
class Pass:
    """One forward pass over a batch of samples, and what is wrong with it."""

    attend_padding: bool = False  # the attention mask is not passed
    position_gap: bool = False  # response positions start at the padded width
    train_mode: bool = False  # dropout is on
    temperature: float = 1.0
    half_precision_logits: bool = False
    samples_per_batch: int = 8


@dataclass(frozen=True)
class Scores:
    """Per token [N], the trainer side of a batch."""

    train_logprobs: NDArray[np.float32]
    entropy: NDArray[np.float32]
    pad_left: NDArray[np.int32]  # [S]


def load_model(path: Path, *, dtype: str = "float32") -> Any:
    """A causal language model from a folder, or from a GGUF file (dequantised)."""
    import torch
    from transformers import AutoModelForCausalLM

    arguments: dict[str, Any] = {"dtype": getattr(torch, dtype), "attn_implementation": "eager"}
    if path.suffix == ".gguf":
        arguments["gguf_file"] = path.name
        path = path.parent
    model: Any = AutoModelForCausalLM.from_pretrained(str(path), **arguments)
    return model.eval()


def score(model: Any, batch: Batch, how: Pass) -> Scores:
    """p of every response token of `batch`, left-padded in a fixed random order of samples."""
    import torch

    order = np.random.default_rng(0).permutation(batch.samples)
    logprobs, entropy = np.zeros(batch.tokens, np.float32), np.zeros(batch.tokens, np.float32)
    pads = np.zeros(batch.samples, np.int32)
    model.train(how.train_mode)
    with torch.no_grad():
        for start in range(0, batch.samples, how.samples_per_batch):
            some = order[start : start + how.samples_per_batch]
            for sample, hidden, pad in _hidden_rows(model, batch, some, how):
                tokens = slice(int(batch.offsets[sample]), int(batch.offsets[sample + 1]))
                found = _reduce(model, hidden, batch.tensors["token_ids"][tokens], how)
                logprobs[tokens], entropy[tokens] = found
                pads[sample] = pad
    model.eval()
    return Scores(logprobs, entropy, pads)


def _hidden_rows(
    model: Any, batch: Batch, some: NDArray[np.int64], how: Pass
) -> Iterator[tuple[int, Tensor, int]]:
    """(sample, hidden states that predict its response [n, D], its left padding)."""
    ids, mask, width, pads = _left_padded(batch, some)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    if how.attend_padding:
        mask[:, :width] = 1
        positions = mask.new_ones(mask.shape).cumsum(1) - 1
    if how.position_gap:
        positions[:, width:] = mask.new_ones(mask[:, width:].shape).cumsum(1) - 1 + width
    hidden = model.model(
        ids, attention_mask=mask, position_ids=positions, use_cache=False
    ).last_hidden_state
    for row, sample in enumerate(some.tolist()):
        n = int(batch.offsets[sample + 1] - batch.offsets[sample])
        yield sample, hidden[row, width - 1 : width - 1 + n], pads[row]


def _left_padded(batch: Batch, some: NDArray[np.int64]) -> tuple[Tensor, Tensor, int, list[int]]:
    """ids and mask [rows, width + longest response]; prompts end at `width`."""
    import torch

    edges, prompts = batch.offsets, batch.tensors["prompt_offsets"]
    width = max(int(prompts[s + 1] - prompts[s]) for s in some)
    longest = max(int(edges[s + 1] - edges[s]) for s in some)
    ids = torch.full((len(some), width + longest), PAD_ID, dtype=torch.long)
    mask = torch.zeros_like(ids)
    pads = []
    for row, s in enumerate(some.tolist()):
        prompt = batch.tensors["prompt_ids"][prompts[s] : prompts[s + 1]]
        response = batch.tensors["token_ids"][edges[s] : edges[s + 1]]
        pads.append(width - len(prompt))
        begin, end = pads[-1], width + len(response)
        joined = np.concatenate([prompt, response]).astype(np.int64)
        ids[row, begin:end] = torch.from_numpy(joined)
        mask[row, begin:end] = 1
    return ids, mask, width, pads


def _reduce(
    model: Any, hidden: Tensor, token_ids: NDArray[np.int32], how: Pass
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    import torch

    def head(rows: Tensor) -> Tensor:
        logits: Tensor = model.lm_head(rows)
        return logits.bfloat16() if how.half_precision_logits else logits

    found = counterfactuals_from_hidden(
        hidden,
        head,
        torch.from_numpy(token_ids.astype(np.int64)),
        vocabulary=model.config.vocab_size,
        train_temperature=how.temperature,
        temperatures=(),
        chunk_bytes=32 << 20,
    )
    return found.train_logprobs.numpy(), found.entropy.numpy()


@contextmanager
def restored_after(model: Any) -> Iterator[None]:
    """Weights and buffers are as before when the block ends."""
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    inverse = model.model.rotary_emb.inv_freq.clone()
    try:
        yield
    finally:
        model.load_state_dict(kept)
        model.model.rotary_emb.inv_freq = inverse
