"""The keyword arguments of the capturing calls: what a host may know about its samples.

The vocabulary is that of `twinscope.wire.schema`; all are optional except the log-probs. Forms:

per token    one 1-D array per sample, or [S,T] with a mask, or flat [N] with `offsets`: layout.py
per sample   S values, or one value for all samples
prompts      one 1-D array per sample, or [S,P] with `prompt_mask`, or flat with `prompt_offsets`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from twinscope.arrays import Array, Pad


class SampleFields(TypedDict, total=False):
    """What either side may send."""

    token_ids: Array  # per token: response token ids
    ids: Literal["full", "digest"]  # digest: send 16 bytes per sample instead of the response ids
    mask: Array  # per token: not 0 where the token counts; with [S,T] also tells padding
    prompt_ids: Array  # prompts: prompt token ids
    prompt_mask: Array  # [S,P]: not 0 where the prompt is; only with padded prompts
    prompt_offsets: Sequence[int]  # [S+1]: only with flat prompts
    sample_ids: Sequence[str] | str  # per sample, unique; without them samples join by content
    turn: Sequence[int] | int  # per sample: turn of a multi-turn episode, from 0
    sampling: Mapping[str, Any]  # the effective sampling parameters: temperature, top_p ...
    groups: Mapping[str, Sequence[str] | str]  # labels per sample: {"engine": [...]}
    expect: Mapping[str, int] | int  # samples this step will have: per side, or on this one
    offsets: Sequence[int]  # [S+1]: the per-token arrays are flat
    pad: Pad  # which padding is cut off [S,T] arrays: layout.py


class RolloutFields(SampleFields, total=False):
    """`Probe.rollout`: what the engine knows."""

    version: Sequence[int] | int  # per sample: weight version that sampled the tokens
    version_spans: Sequence[tuple[int, int, int]]  # (sample, first token, version)
    cached_tokens: Sequence[int] | int  # per sample: prompt tokens from the prefix cache
    fingerprint: Mapping[str, Any]  # the engine: name, version, dtype, logprobs_mode ...


class TrainFields(SampleFields, total=False):
    """`Probe.train`: what the trainer knows."""

    ref_logprobs: Array  # per token: log-probs under the frozen reference policy, nats
    entropy: Array  # per token: full-vocabulary entropy, nats
    logsumexp: Mapping[float, Array]  # temperature -> per token logsumexp(logits / T), nats
    kept_mass: Array  # per token: mass that the rollout's truncation keeps here
    sampled_rank: Array  # per token: rank of the sampled token, 0 is the most likely
    version: Sequence[int] | int  # per sample: weight version that recomputed the log-probs
    pad_left: Sequence[int] | int  # per sample; found by itself from `prompt_mask`
    pack_slot: Sequence[int] | int  # per sample: place inside its packed row, from 0
    advantage: Sequence[float]  # per sample
    reward: Sequence[float]  # per sample
    fingerprint: Mapping[str, Any]  # the trainer: name, version, dtype, temperature_applied ...


class RefFields(SampleFields, total=False):
    """`Probe.ref`: what a process that only runs the reference policy knows."""


class PairFields(SampleFields, total=False):
    """`Probe.pair`: both sides in one place."""

    ref_logprobs: Array
    entropy: Array
    logsumexp: Mapping[float, Array]
    kept_mass: Array
    sampled_rank: Array
    rollout_version: Sequence[int] | int
    train_version: Sequence[int] | int
    version_spans: Sequence[tuple[int, int, int]]
    cached_tokens: Sequence[int] | int
    pad_left: Sequence[int] | int
    pack_slot: Sequence[int] | int
    advantage: Sequence[float]
    reward: Sequence[float]
    rollout_fingerprint: Mapping[str, Any]
    train_fingerprint: Mapping[str, Any]


FIELDS_BY_SIDE: dict[str, frozenset[str]] = {
    "rollout": RolloutFields.__optional_keys__,
    "train": TrainFields.__optional_keys__,
    "ref": RefFields.__optional_keys__,
    "paired": PairFields.__optional_keys__,
}
