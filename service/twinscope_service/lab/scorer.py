"""Score recorded tokens with a real model on the CPU, with one thing switchably wrong.

Needs `torch` and `transformers` (and `gguf`, `accelerate` for a GGUF file); the service does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twinscope.counterfactual import Counterfactuals, counterfactuals
from twinscope.wire.batch import Batch
from twinscope_service.twin.trainer import pad

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
    others: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # p of other tokens
    logsumexp_T: NDArray[np.float32] | None = None  # [K, N]; None: not asked for


def load_model(path: Path, *, dtype: str = "float32") -> Any:
    """A causal language model from a folder, or from a GGUF file (dequantised)."""
    import torch
    from transformers import AutoModelForCausalLM

    arguments: dict[str, Any] = {"dtype": getattr(torch, dtype)}
    if path.suffix != ".gguf":
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(path), attn_implementation="eager", **arguments
        )
        return model.eval()
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, **arguments
    )
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    # what came from GGUF may compute from packed weights: move them to a model that never was
    build: Any = AutoModelForCausalLM.from_config
    plain = build(loaded.config, attn_implementation="eager", **arguments)
    plain.load_state_dict(loaded.state_dict())
    return plain.eval()


def score(
    model: Any,
    batch: Batch,
    how: Pass,
    *,
    others: Mapping[str, NDArray[np.int32]] | None = None,
    temperatures: Sequence[float] = (),
) -> Scores:
    """p of every response token of `batch`, left-padded in a fixed random order of samples.

    `others`: further tokens [N] at the same contexts, scored by the same pass. `temperatures`: the
    nodes of logsumexp_T, ascending, with the pass's own among them.
    """
    import torch

    ids = {"": batch.tensors["token_ids"], **(others or {})}
    p = {name: np.zeros(batch.tokens, np.float32) for name in ids}
    entropy, pads = np.zeros(batch.tokens, np.float32), np.zeros(batch.samples, np.int32)
    lse = np.zeros((len(temperatures), batch.tokens), np.float32)
    order = np.random.default_rng(0).permutation(batch.samples)
    model.train(how.train_mode)
    with torch.no_grad():
        for start in range(0, batch.samples, how.samples_per_batch):
            some = order[start : start + how.samples_per_batch]
            for sample, hidden, pad in _hidden_rows(model, batch, some, how):
                tokens = slice(int(batch.offsets[sample]), int(batch.offsets[sample + 1]))
                logits = _logits(model, hidden, how)
                for name, values in _log_probs(logits, ids, tokens, how).items():
                    p[name][tokens] = values
                found = _reduced(logits, ids[""][tokens], how, temperatures)
                entropy[tokens] = found.entropy.numpy()
                if temperatures:
                    lse[:, tokens] = found.logsumexp_T.numpy()
                pads[sample] = pad
    model.eval()
    return Scores(p.pop(""), entropy, pads, p, lse if temperatures else None)


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

    prompts, responses = (
        [batch.tensors[name][edges[s] : edges[s + 1]].tolist() for s in some]
        for name, edges in (
            ("prompt_ids", batch.tensors["prompt_offsets"]),
            ("token_ids", batch.offsets),
        )
    )
    ids, mask = pad(torch, prompts, responses, fill=PAD_ID)
    width = max(map(len, prompts))
    return ids, mask, width, [width - len(prompt) for prompt in prompts]


def _logits(model: Any, hidden: Tensor, how: Pass) -> Tensor:
    """[n, V] of one sample."""
    logits: Tensor = model.lm_head(hidden)
    return logits.bfloat16() if how.half_precision_logits else logits


def _log_probs(
    logits: Tensor, ids: Mapping[str, NDArray[np.int32]], tokens: slice, how: Pass
) -> dict[str, NDArray[np.float32]]:
    """p of each set of ids at the pass's temperature."""
    import torch

    law = (logits.float() / how.temperature).log_softmax(dim=-1)
    found = {}
    for name, all_ids in ids.items():
        index = torch.from_numpy(all_ids[tokens].astype(np.int64))[:, None]
        found[name] = law.gather(-1, index)[:, 0].numpy()
    return found


def _reduced(
    logits: Tensor, token_ids: NDArray[np.int32], how: Pass, temperatures: Sequence[float]
) -> Counterfactuals:
    import torch

    return counterfactuals(
        logits,
        torch.from_numpy(token_ids.astype(np.int64)),
        train_temperature=how.temperature,
        temperatures=temperatures,
        chunk_bytes=32 << 20,
    )


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
