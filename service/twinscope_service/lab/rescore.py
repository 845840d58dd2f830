"""Make labelled traces: tokens that an engine really sampled, scored again with one real fault.

    python -m twinscope_service.lab.rescore RECORDING --model PATH --out FOLDER [--case NAME ...]

RECORDING is a healthy paired trace with token and prompt ids; PATH the weights it was sampled from
(a folder, or a GGUF file). Writes one trace per case and an index.json that `lab.evaluate` reads.
Minutes per case on two cores: by command only, never in the default tests.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from twinscope.wire.batch import Batch
from twinscope.wire.codec import encode_batch, read_trace
from twinscope_service.lab.scorer import Pass, load_model, restored_after, score
from twinscope_service.replay import take

Spoil = Callable[[Any], None]  # changes the model in place; undone after the case


@dataclass(frozen=True)
class Rescoring:
    """One case: what is done to the weights, and how the pass goes."""

    cause: str
    detail: str
    spoil: Spoil | None = None
    how: Pass = field(default_factory=Pass)
    with_reference: bool = False  # the recorded q's weights are the reference policy
    rollout: Mapping[str, str] = field(default_factory=dict)  # what the fingerprints would say
    train: Mapping[str, str] = field(default_factory=dict)


def disturb(pattern: str, sigma: float, *, rank: int | None = None) -> Spoil:
    """Gaussian change of all tensors whose name contains `pattern`, relative to their spread."""

    def spoil(model: Any) -> None:
        import torch

        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if pattern in name and weight.ndim == 2:
                    rows, columns = weight.shape
                    change = torch.randn(rows, rank or columns, generator=generator)
                    if rank:
                        right = torch.randn(rank, columns, generator=generator)
                        change = change @ right / math.sqrt(rank)
                    weight.add_((change * sigma * weight.float().std()).to(weight.dtype))

    return spoil


def roll_heads(layer: int) -> Spoil:
    """The query heads of one layer in the wrong order."""

    def spoil(model: Any) -> None:
        import torch

        weight = model.model.layers[layer].self_attn.q_proj.weight
        size = model.config.head_dim
        with torch.no_grad():
            heads = weight.view(-1, size, weight.shape[1])
            weight.copy_(heads.roll(1, 0).reshape(weight.shape))

    return spoil


def rotary(theta: float | None = None, *, dtype: str | None = None) -> Spoil:
    """Another rotary base, or inverse frequencies kept in low precision."""

    def spoil(model: Any) -> None:
        import torch

        embedding = model.model.rotary_emb
        if theta is not None:
            size = model.config.head_dim
            embedding.inv_freq = theta ** -(torch.arange(0, size, 2) / size)
        if dtype is not None:
            embedding.inv_freq = embedding.inv_freq.to(getattr(torch, dtype)).float()

    return spoil


def attention_dropout(rate: float) -> Spoil:
    """Dropout of the attention weights, active in train mode."""

    def spoil(model: Any) -> None:
        import torch

        torch.manual_seed(0)
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = rate

    return spoil


def quantised(levels: int) -> Spoil:
    """Weights of all layers rounded to `levels` steps per sign and row."""

    def spoil(model: Any) -> None:
        import torch

        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "layers" in name and weight.ndim == 2:
                    step = weight.abs().amax(1, keepdim=True) / levels
                    weight.copy_((weight / step).round() * step)

    return spoil


def cases(strength: float = 1.0) -> dict[str, Rescoring]:
    """The faults by name; `strength` scales how far weights and arithmetic are off."""
    return _in_weights(strength) | _in_the_pass(strength)


def _in_weights(x: float) -> dict[str, Rescoring]:
    """Other weights on one side; the plain pass first."""
    return {
        "healthy": Rescoring("numerical_noise", "the same weights"),
        "stale_all": Rescoring(
            "stale_weights", f"all layers {0.02 * x:.2g} off", disturb("layers.", 0.02 * x)
        ),
        "stale_low_rank": Rescoring(
            "stale_weights", "all layers off by rank 4", disturb("layers.", 0.02 * x, rank=4)
        ),
        "partial_layer": Rescoring(
            "partial_weight_sync", "one layer off", disturb("layers.3.", 0.1 * x)
        ),
        "partial_late_layer": Rescoring(
            "partial_weight_sync", "a late layer off", disturb("layers.27.", 0.15 * x)
        ),
        "partial_embedding": Rescoring(
            "partial_weight_sync", "tied embedding off", disturb("embed_tokens", 0.03 * x)
        ),
        "corrupt_heads": Rescoring(
            "corrupt_weight_layout",
            "query heads of one layer rolled",
            roll_heads(3 if x <= 1.0 else 6),
        ),
        "lora_missing": Rescoring(
            "lora_not_applied",
            "an adapter of rank 4 in the trainer only",
            disturb("q_proj", 0.15 * x, rank=4),
            with_reference=True,
        ),
    }


def _in_the_pass(x: float) -> dict[str, Rescoring]:
    """The same weights, another arithmetic, position or mask."""
    return {
        "rope_theta": Rescoring(
            "rope_mismatch", f"theta {1e4 / x:.3g} instead of 1e5", rotary(1e4 / x)
        ),
        "rope_low_precision": Rescoring(
            "rope_mismatch", "inverse frequencies in float8", rotary(dtype="float8_e4m3fn")
        ),
        "dropout": Rescoring(
            "train_mode_dropout",
            f"attention dropout {0.05 * x:.2g}",
            attention_dropout(0.05 * x),
            Pass(train_mode=True),
        ),
        "padding_attended": Rescoring(
            "padding_attended", "no attention mask", how=Pass(attend_padding=True)
        ),
        "position_gap": Rescoring(
            "position_offset", "a gap before the response", how=Pass(position_gap=True)
        ),
        "half_logits": Rescoring(
            "low_precision_logits",
            "logits in bfloat16",
            how=Pass(half_precision_logits=True),
            train={"head_dtype": "bfloat16"},
            rollout={"head_dtype": "float32"},
        ),
        "int6": Rescoring(
            "quantized_rollout",
            "weights in few bits",
            quantised(round(31 / x)),
            rollout={"quantization": "int6"},
        ),
    }


CASES = cases()


def rescore(model: Any, batch: Batch, case: Rescoring) -> Batch:
    """The recorded batch with the trainer side of `case`."""
    if case.with_reference:
        reference = score(model, batch, Pass()).train_logprobs
    with restored_after(model):
        if case.spoil is not None:
            case.spoil(model)
        scores = score(model, batch, case.how)
    if case.how.train_mode:
        attention_dropout(0.0)(model)
    kept = ("offsets", "token_ids", "prompt_ids", "prompt_offsets", "rollout_logprobs")
    tensors = {name: np.array(batch.tensors[name]) for name in kept}
    tensors |= {"train_logprobs": scores.train_logprobs, "entropy": scores.entropy}
    tensors["pad_left"] = scores.pad_left
    if case.with_reference:
        tensors["ref_logprobs"] = reference
    return replace(
        batch,
        tensors=tensors,
        temperatures=None,
        side="paired",
        rollout={**(batch.rollout or {}), **case.rollout},
        train={"trainer": "lab", "dtype": str(model.dtype).removeprefix("torch."), **case.train},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Score, write, and keep the index up to date after every case."""
    parser = argparse.ArgumentParser(prog="python -m twinscope_service.lab.rescore")
    parser.add_argument("recording", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--case", nargs="*", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--samples", type=int, default=None, help="only the first so many")
    args = parser.parse_args(argv)
    batch = read_trace(args.recording)
    if args.samples is not None:
        batch = take(batch, range(min(args.samples, batch.samples)))
    model = load_model(args.model)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.case:
        _write(args.out, name, rescore(model, batch, CASES[name]), CASES[name])
        print(name, CASES[name].cause, flush=True)
    return 0


def _write(folder: Path, name: str, batch: Batch, case: Rescoring) -> None:
    """One trace, and its row in the index (replaced if it was there)."""
    file = f"{name}.safetensors"
    (folder / file).write_bytes(b"".join(encode_batch(replace(batch, run=name))))
    index = folder / "index.json"
    rows = json.loads(index.read_text()) if index.exists() else []
    rows = [row for row in rows if row["file"] != file]
    rows.append({"file": file, "cause": case.cause, "detail": case.detail})
    index.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
