"""The batch, declared once: codec, validation, docs/wire-format.md and golden bytes follow from it.

A batch is a safetensors body. Ragged samples are flattened along one token axis, N tokens in S
samples; prompts likewise, M tokens. This module knows names, dtypes and shapes, not how to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA_VERSION = 1
HEADER_KEY = "twinscope"  # the key inside safetensors' __metadata__ whose value is our JSON header
CONTENT_TYPE = "application/x-safetensors"

Side = Literal["rollout", "train", "ref", "paired"]
SIDES: tuple[Side, ...] = ("rollout", "train", "ref", "paired")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a batch.

    `shape` uses the axis names S+1, S, N, M, K and literal sizes; `side` says who may send it;
    `absent_means` is None for a required tensor.
    """

    name: str
    dtype: str  # safetensors spelling: F32 I32 I64 U8
    shape: tuple[str, ...]
    side: str
    meaning: str
    absent_means: str | None


@dataclass(frozen=True)
class FieldSpec:
    """One key of the JSON header. `absent_means` is None for a required key."""

    name: str
    json_type: str
    meaning: str
    absent_means: str | None


# fmt: off
TENSORS: tuple[TensorSpec, ...] = (
    TensorSpec("offsets", "I64", ("S+1",), "both", "sample s is tokens offsets[s]:offsets[s+1]; starts at 0, ends at N, never decreases", None),
    TensorSpec("token_ids", "I32", ("N",), "both", "response token ids", "ids unknown: join by sample id alone, retokenisation cannot be seen"),
    TensorSpec("ids_digest", "U8", ("S", "16"), "one side", "blake2b-128 of the sample's response ids as little-endian int32 bytes", "no digest: the join compares `token_ids` where both sides sent them"),
    TensorSpec("rollout_logprobs", "F32", ("N",), "rollout", "q: the engine's log-prob of the sampled token, nats", "the rollout side is not in this batch"),
    TensorSpec("train_logprobs", "F32", ("N",), "train", "p: the trainer's log-prob of the same token before any update, nats", "the train side is not in this batch"),
    TensorSpec("ref_logprobs", "F32", ("N",), "ref", "the frozen reference policy's log-prob of the same token, nats", "no reference policy"),
    TensorSpec("mask", "U8", ("N",), "any", "1 where the token counts, 0 where it is excluded (tool output, padding)", "every token counts"),
    TensorSpec("entropy", "F32", ("N",), "train", "full-vocabulary entropy of the trainer's distribution at this position, nats", "full-vocabulary entropy not available"),
    TensorSpec("logsumexp_T", "F32", ("K", "N"), "train", "logsumexp of the trainer's logits divided by temperatures[k], nats", "no counterfactual temperatures"),
    TensorSpec("kept_mass", "F32", ("N",), "train", "trainer-side probability mass kept by the rollout's truncation (header `sampling`)", "no counterfactual truncation"),
    TensorSpec("sampled_rank", "I32", ("N",), "train", "rank of the sampled token in the trainer's distribution, 0 is the most likely", "ranks unknown"),
    TensorSpec("prompt_ids", "I32", ("M",), "both", "prompt token ids", "prompts unknown"),
    TensorSpec("prompt_offsets", "I64", ("S+1",), "both", "prompt of sample s is prompt_ids[prompt_offsets[s]:prompt_offsets[s+1]]", "prompts unknown"),
    TensorSpec("pad_left", "I32", ("S",), "train", "left-padding tokens before the sample's prompt in the trainer's batch", "unknown"),
    TensorSpec("cached_tokens", "I32", ("S",), "rollout", "prompt tokens the engine took from its prefix cache", "unknown"),
    TensorSpec("turn", "I32", ("S",), "both", "turn of a multi-turn episode, from 0", "unknown"),
    TensorSpec("pack_slot", "I32", ("S",), "train", "position of the sample inside its packed row, from 0", "unknown"),
    TensorSpec("rollout_version", "I64", ("S",), "rollout", "weight version that sampled the tokens", "unknown; per-token spans in the header if it changes inside a sample"),
    TensorSpec("train_version", "I64", ("S",), "train", "weight version that recomputed the log-probs", "unknown"),
    TensorSpec("advantage", "F32", ("S",), "train", "advantage of the sample", "unknown"),
    TensorSpec("reward", "F32", ("S",), "train", "reward of the sample", "unknown"),
)
ITEM_BYTES: dict[str, int] = {"I64": 8, "F32": 4, "I32": 4, "U8": 1}
TENSOR_BY_NAME: dict[str, TensorSpec] = {spec.name: spec for spec in TENSORS}

FIELDS: tuple[FieldSpec, ...] = (
    FieldSpec("schema", "integer", "version of this format: 1", None),
    FieldSpec("run", "string", "name of the run: 1 to 200 printable characters", None),
    FieldSpec("step", "integer", "trainer step whose batch the tokens belong to, 0 <= step < 2^53", "unknown; allowed on the rollout and ref sides, the step then comes from the train side"),
    FieldSpec("side", "string", "rollout, train, ref or paired", "taken from the log-probs present: both is paired, one is its side"),
    FieldSpec("sample_ids", "array of S strings", "unique within the batch, 1 to 200 printable characters each", "the join key is a hash of prompt and response ids"),
    FieldSpec("sampling", "object", "the effective sampling parameters: temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, n ...", "unknown"),
    FieldSpec("rollout", "object", "engine fingerprint: engine, engine_version, model, dtype, logits_dtype, head_dtype, logprobs_mode, tp, pp, ep, quantization, kv_cache_dtype, attention_backend, rms_norm_eps, rope_theta, rope_scaling, prefix_caching, speculative_method ...", "unknown"),
    FieldSpec("train", "object", "trainer fingerprint: trainer, trainer_version, the same keys as `rollout` where they apply, and temperature_applied", "unknown"),
    FieldSpec("expect", "object", "samples this step will have per side, if known: {\"rollout\": S, \"train\": S}", "unknown: the step closes by call or after the grace period"),
    FieldSpec("temperatures", "array of K numbers", "temperatures of `logsumexp_T`, each > 0", "no counterfactual temperatures"),
    FieldSpec("groups", "object of arrays of S strings", "labels per sample, e.g. {\"engine\": [...], \"replica\": [...]}; at most 8 names, 256 different labels per name, 64 characters per label (empty: unknown)", "no groups"),
    FieldSpec("version_spans", "array of [sample, first_token, version]", "rollout weight version per token where it changes inside a sample; sorted by sample, then token", "one version per sample (`rollout_version`) or unknown"),
    FieldSpec("part", "object", "{\"rank\": r, \"index\": i}: where this batch came from; carried, not interpreted", "unknown"),
)
# fmt: on
FIELD_BY_NAME: dict[str, FieldSpec] = {spec.name: spec for spec in FIELDS}
