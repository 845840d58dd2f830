"""Faults as pure functions on a recorded, healthy, paired batch: same tokens, one thing wrong.

`exact` faults do to the numbers what the bug does (a shifted array, a sentinel, a grid). The
others need a distribution that a pair does not carry; they put noise of the right shape where the
bug would (more with padding, more with position ...). They are for drills and for testing the
machinery; confidences are fitted on really re-scored cases (`lab.rescore`) as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinscope.wire.batch import Batch
from twinscope_service.lab.draft import Draft, LabError

Change = Callable[[Draft], object]  # what it returns is not looked at


@dataclass(frozen=True)
class Fault:
    """`cause` is the id that a diagnosis should name; `exact` as explained above.

    The rest is for whole runs with healthy steps before the fault (drills): `before` gives those
    the fields that such a run has all along, `needs` names tensors that a recording must have,
    `grows` says that the fault builds up over the steps, `quiet` that the level stays where it was.
    """

    cause: str
    detail: str
    change: Change
    exact: bool = True
    before: Change | None = None
    needs: tuple[str, ...] = ()
    grows: bool = False
    quiet: bool = False


def apply(fault: Fault, batch: Batch, seed: int) -> Batch:
    """The batch with the fault in it. Pure: the same seed gives the same batch."""
    return _changed(batch, fault.change, seed)


def before(fault: Fault, batch: Batch, seed: int) -> Batch:
    """The same run's batch before the fault: the fields it has anyway, nothing wrong."""
    return batch if fault.before is None else _changed(batch, fault.before, seed)


def _changed(batch: Batch, change: Change, seed: int) -> Batch:
    draft = Draft.of(batch, seed)
    change(draft)
    return draft.finish()


# ---- format


def fill(value: float, *, share: float, side: str, runs: bool = False) -> Change:
    """`share` of one side's log-probs become `value`, scattered or as whole tails."""

    def change(draft: Draft) -> None:
        hit = draft.random.random(len(draft.q)) < share
        if runs:
            chosen = draft.some_samples(share * 4)
            tails = draft.positions() > draft.per_token(np.diff(draft.offsets)) * 0.75
            hit = np.isin(draft.per_token(np.arange(draft.samples)), chosen) & tails
        (draft.q if side == "rollout" else draft.p)[hit] = value

    return change


def to_bf16(draft: Draft) -> None:
    """p rounded to bfloat16 (to nearest, ties to even)."""
    bits = draft.p.view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    draft.arrays["train_logprobs"] = (rounded & 0xFFFF0000).view(np.float32)


def to_fp16(draft: Draft) -> None:
    """q rounded to float16."""
    draft.arrays["rollout_logprobs"] = draft.q.astype(np.float16).astype(np.float32)


def bypass(draft: Draft) -> None:
    """The trainer returns the engine's numbers."""
    draft.arrays["train_logprobs"] = draft.q.copy()


def drop_train_side(draft: Draft) -> None:
    """Only the rollout side arrives."""
    for name in ("train_logprobs", "entropy", "logsumexp_T", "kept_mass", "sampled_rank"):
        draft.arrays.pop(name, None)
    draft.header = {"side": "rollout", "temperatures": None}


def likeliest_token(draft: Draft) -> None:
    """q of the likeliest token instead of the sampled one, where the two differ.

    The likeliest probability m lies between e^q and 1 − e^q for a token that is not the likeliest;
    which tokens are not is drawn so that likely tokens mostly are.
    """
    eq = np.exp(draft.q.astype(np.float64))
    other = draft.random.random(len(eq)) > eq**0.5
    low, high = np.maximum(eq, 0.05), np.maximum(1.0 - eq, eq)
    m = low + (high - low) * draft.random.beta(1.2, 2.5, len(eq))
    draft.q[other] = np.log(np.maximum(m, eq))[other]


# ---- alignment


def shift(lag: int, *, share: float = 1.0) -> Change:
    """p[t + lag] holds what belongs to t, rolled inside each of `share` of the samples."""

    def change(draft: Draft) -> None:
        chosen = set(draft.some_samples(share).tolist())
        for s, tokens in enumerate(draft.slices()):
            if s in chosen:
                draft.p[tokens] = np.roll(draft.p[tokens], lag)

    return change


def shift_by_padding(draft: Draft) -> None:
    """p is late by the sample's own left padding."""
    if "pad_left" not in draft.arrays:
        raise LabError("the batch has no pad_left; record one with left padding")
    for pad, tokens in zip(draft.arrays["pad_left"], draft.slices(), strict=True):
        draft.p[tokens] = np.roll(draft.p[tokens], int(pad))


def permute(share: float) -> Change:
    """p of one sample is given to another (cut or repeated to its length)."""

    def change(draft: Draft) -> None:
        chosen = draft.some_samples(share, least=2)
        pieces = [draft.p[tokens].copy() for tokens in draft.slices()]
        spans = list(draft.slices())
        for to, source in zip(chosen, np.roll(chosen, 1), strict=True):
            draft.p[spans[to]] = np.resize(pieces[source], spans[to].stop - spans[to].start)

    return change


def edge(where: str, nats: float) -> Change:
    """The first or last token of every sample is off by about `nats`."""

    def change(draft: Draft) -> None:
        at = draft.offsets[:-1] if where == "first" else draft.offsets[1:] - 1
        off = nats * draft.random.uniform(0.5, 1.5, len(at))
        draft.p[at] = np.minimum(draft.p[at] - off, 0.0)

    return change


def tool_tokens(draft: Draft) -> None:
    """Runs of 12 to 30 tokens that nobody sampled count: q is 0.0, p a model's surprise."""
    for s in draft.some_samples(0.5):
        begin, end = int(draft.offsets[s]), int(draft.offsets[s + 1])
        length = int(draft.random.integers(12, 31))
        if end - begin < length + 16:
            continue
        start = int(draft.random.integers(begin + 8, end - length - 4))
        run = slice(start, start + length)
        draft.q[run] = 0.0
        draft.p[run] = -draft.random.gamma(1.5, 4.0, length)


def bad_tails(draft: Draft) -> None:
    """From a random token on, a quarter of the samples was scored on other ids."""
    for s in draft.some_samples(0.25):
        begin, end = int(draft.offsets[s]), int(draft.offsets[s + 1])
        if end - begin < 24:
            continue
        cut = int(draft.random.integers(begin + 8, end - 12))
        draft.p[cut:end] = draft.random.permutation(draft.p[cut:end]) * 1.5


def by_padding(*, clean_first: bool) -> Change:
    """Noise that grows with the sample's left padding."""

    def change(draft: Draft) -> None:
        if "pad_left" not in draft.arrays:
            pads = draft.random.integers(0, 40, draft.samples)
            pads[draft.random.random(draft.samples) < 0.15] = 0
            draft.arrays["pad_left"] = pads.astype(np.int32)
        scale = draft.per_token(np.minimum(draft.arrays["pad_left"] / 20.0, 1.5) * 0.5)
        if clean_first:
            t = draft.positions()
            scale = scale * np.where(t == 0, 0.0, 4.0 / np.sqrt(1.0 + t))
        draft.disturb_train(scale)

    return change


# ---- sampling


def other_temperature(temperature: float) -> Change:
    """q at another temperature than the tokens were drawn at.

    The rest of the distribution is taken to be flat over as many tokens as the entropy needs (50
    where it is unknown): ln Σ π^β of the true law is not in a pair.
    """

    def change(draft: Draft) -> None:
        q = draft.q.astype(np.float64)
        mass = np.maximum(-np.expm1(q), 1e-9)
        rest = np.full(len(q), np.log(50.0))
        if "entropy" in draft.arrays:  # H = -π ln π - (1 - π)(ln(1 - π) - ln K)
            own = -np.exp(q) * q - mass * np.log(mass)
            rest = np.clip((draft.arrays["entropy"] - own) / mass, 0.0, 10.0)
        beta = 1.0 / temperature
        total = np.logaddexp(beta * q, beta * np.log(mass) + (1.0 - beta) * rest)
        draft.arrays["rollout_logprobs"] = np.minimum(beta * q - total, 0.0)

    return change


def log_probs_over(temperature: float) -> Change:
    """q divided by a temperature after the log-softmax."""

    def change(draft: Draft) -> None:
        draft.arrays["rollout_logprobs"] = draft.q / np.float32(temperature)

    return change


def lose_mass(least: float) -> Change:
    """q renormalised over a kept set of mass `least` to 1; certain tokens keep everything."""

    def change(draft: Draft) -> None:
        certain = np.exp(draft.q)
        kept = 1.0 - (1.0 - least) * draft.random.beta(2.0, 1.5, len(draft.q))
        kept = np.maximum(kept, certain)
        draft.arrays["rollout_logprobs"] = np.minimum(draft.q - np.log(kept), 0.0)

    return change


def presence_penalty(nats: float) -> Change:
    """q of tokens that occurred before is lower by `nats`, of new ones higher."""

    def change(draft: Draft) -> None:
        if "token_ids" not in draft.arrays:
            raise LabError("the batch has no token_ids; record one with them")
        seen = np.zeros(len(draft.q), bool)
        for tokens in draft.slices():
            ids = draft.arrays["token_ids"][tokens]
            _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
            seen[tokens] = first[inverse] < np.arange(len(ids))
        uncertain = -np.expm1(draft.q)
        moved = np.where(seen, -nats, nats * 0.8) * uncertain
        draft.arrays["rollout_logprobs"] = np.minimum(draft.q + moved, 0.0)

    return change


def colder_sampling(draft: Draft) -> None:
    """The entropy says more than the sampled tokens show, on both sides alike."""
    surprise = -draft.p.astype(np.float64)
    smooth = np.convolve(surprise, np.ones(9) / 9.0, mode="same")
    draft.arrays["entropy"] = (1.6 * smooth + 0.3).astype(np.float32)


# ---- weights and numerics: noise of the right shape


def noise(sigma: float) -> Change:
    """Structureless disturbance of p by `sigma` nats at uncertain tokens."""
    return lambda draft: draft.disturb_train(sigma)


def equal_versions(draft: Draft) -> None:
    """Engine and trainer at the same version."""
    for name in ("rollout_version", "train_version"):
        draft.arrays[name] = np.full(draft.samples, 40, np.int64)


def late_versions(draft: Draft) -> None:
    """Half of the samples come from weights two to four versions old."""
    late = draft.random.random(draft.samples) < 0.5
    lag = np.where(late, draft.random.integers(2, 5, draft.samples), 0)
    draft.arrays["train_version"] = np.full(draft.samples, 40, np.int64)
    draft.arrays["rollout_version"] = 40 - lag.astype(np.int64)
    draft.disturb_train(draft.per_token(lag * 0.12))


def replicas(draft: Draft) -> NDArray[np.int64]:
    """Four replicas, named in the header; [S] which one made each sample."""
    replica = draft.random.integers(0, 4, draft.samples)
    draft.header = {"groups": {"replica": tuple(f"r{i}" for i in replica)}}
    return replica


def bad_replica(draft: Draft) -> None:
    """One replica of four holds other weights."""
    replica = replicas(draft)
    draft.disturb_train(draft.per_token(np.where(replica == 2, 0.5, 0.0)))


def some_cached(draft: Draft) -> NDArray[np.int64]:
    """The prompts of three samples in five came from the cache; [S] tokens of it."""
    cached = np.where(draft.random.random(draft.samples) < 0.6, 32, 0)
    draft.arrays["cached_tokens"] = cached.astype(np.int32)
    return cached


def cached_prefix(draft: Draft) -> None:
    """Samples whose prompt came from the cache are off, most just after the prefix."""
    hit = draft.per_token(some_cached(draft) > 0)
    draft.disturb_train(np.where(hit, 0.6 / np.sqrt(1.0 + draft.positions() / 16.0), 0.0))


def with_reference(draft: Draft) -> None:
    """The reference's log-probs: an adapter that has not learned yet changes nothing."""
    draft.arrays["ref_logprobs"] = draft.p.copy()


def without_adapter(draft: Draft) -> None:
    """The engine samples from the reference weights, the trainer has an adapter."""
    with_reference(draft)
    draft.disturb_train(0.35)


def grows_with_position(draft: Draft) -> None:
    """Noise in proportion to the position."""
    draft.disturb_train(0.004 * draft.positions())


def dropout(draft: Draft) -> None:
    """The trainer's pass is random: equal contexts get different p."""
    draft.disturb_train(0.6, repeatable=False)


def with_experts(draft: Draft) -> None:
    """A mixture of experts, by the engine's fingerprint."""
    draft.header = {"rollout": {**(draft.batch.rollout or {}), "num_experts": 8}}


def few_loud_tokens(draft: Draft) -> None:
    """One token in twenty is off by much, as when an expert flips."""
    loud = (draft.random.random(len(draft.q)) < 0.05) & (draft.positions() > 0)
    with_experts(draft)
    draft.disturb_train(np.where(loud, 1.8, 0.0))


def declared(sigma: float, **prints: tuple[str, str]) -> Change:
    """A fingerprint difference (engine, trainer) and noise to go with it (0: none)."""

    def change(draft: Draft) -> None:
        rollout, train = dict(draft.batch.rollout or {}), dict(draft.batch.train or {})
        for key, (engine, trainer) in prints.items():
            rollout[key], train[key] = engine, trainer
        draft.header = {"rollout": rollout, "train": train}
        if sigma > 0.0:
            draft.disturb_train(sigma)

    return change


FAULTS: dict[str, Fault] = {
    "missing_value_sentinel": Fault(
        "missing_value_sentinel", "3 % of q are 0.0", fill(0.0, share=0.03, side="rollout")
    ),
    "missing_value_minus_one": Fault(
        "missing_value_sentinel", "3 % of q are -1.0", fill(-1.0, share=0.03, side="rollout")
    ),
    "missing_value_coded": Fault(
        "missing_value_sentinel", "2 % of q are -9999", fill(-9999.0, share=0.02, side="rollout")
    ),
    "missing_value_positive": Fault(
        "missing_value_sentinel", "2 % of q are 1.0", fill(1.0, share=0.02, side="rollout")
    ),
    "missing_value_tails": Fault(
        "missing_value_sentinel",
        "tails of q are 0.0",
        fill(0.0, share=0.05, side="rollout", runs=True),
    ),
    "missing_value_train": Fault(
        "missing_value_sentinel", "5 % of p are 0.0", fill(0.0, share=0.05, side="train")
    ),
    "missing_value_constant": Fault(
        "missing_value_sentinel",
        "2 % of q are ln 1e-6",
        fill(-13.815511, share=0.02, side="rollout"),
    ),
    "missing_value_constant_train": Fault(
        "missing_value_sentinel", "3 % of p are ln 0.01", fill(-4.6051702, share=0.03, side="train")
    ),
    "nonfinite_values": Fault(
        "nonfinite_values", "1 % of p are NaN", fill(float("nan"), share=0.01, side="train")
    ),
    "wrong_token_logprob": Fault(
        "wrong_token_logprob", "q of the likeliest token", likeliest_token, exact=False
    ),
    "bf16_logprob_storage": Fault(
        "bf16_logprob_storage", "p rounded to bfloat16", to_bf16, quiet=True
    ),
    "fp16_logprob_storage": Fault(
        "bf16_logprob_storage", "q rounded to float16", to_fp16, quiet=True
    ),
    "bypass_mode": Fault("bypass_mode", "p is a copy of q", bypass),
    "side_missing": Fault("side_missing", "no train side", drop_train_side),
    "token_shift": Fault("token_shift", "p late by one token", shift(1)),
    "token_shift_early": Fault("token_shift", "p early by three tokens", shift(-3)),
    "token_shift_quarter": Fault(
        "token_shift", "p late by one token in a quarter of the samples", shift(1, share=0.25)
    ),
    "token_shift_padding": Fault(
        "token_shift",
        "p late by the sample's left padding",
        shift_by_padding,
        needs=("pad_left",),
    ),
    "sample_permutation": Fault(
        "sample_permutation", "p of other samples, everywhere", permute(1.0)
    ),
    "sample_permutation_tenth": Fault(
        "sample_permutation", "p of other samples in a tenth", permute(0.1)
    ),
    "boundary_token": Fault("boundary_token", "last token off by 2 nats", edge("last", 2.0)),
    "boundary_token_first": Fault(
        "boundary_token", "first token off by 1.5 nats", edge("first", 1.5)
    ),
    "mask_includes_non_response": Fault(
        "mask_includes_non_response", "tool tokens count", tool_tokens, exact=False
    ),
    "retokenized": Fault(
        "retokenized",
        "a quarter of the samples scored on other ids from a token on",
        bad_tails,
        exact=False,
    ),
    "padding_attended": Fault(
        "padding_attended",
        "noise with left padding",
        by_padding(clean_first=False),
        exact=False,
        needs=("pad_left",),
    ),
    "position_offset": Fault(
        "position_offset",
        "noise with left padding behind the first token",
        by_padding(clean_first=True),
        exact=False,
        needs=("pad_left",),
    ),
    "temperature_not_restored": Fault(
        "temperature_not_restored",
        "q at temperature 1.4 of what was sampled",
        other_temperature(1.4),
        exact=False,
    ),
    "temperature_on_logprobs": Fault(
        "temperature_on_logprobs", "q divided by 0.8", log_probs_over(0.8)
    ),
    "truncation_not_mirrored": Fault(
        "truncation_not_mirrored",
        "q renormalised over 90 % of the mass",
        lose_mass(0.9),
        exact=False,
    ),
    "penalty_not_mirrored": Fault(
        "penalty_not_mirrored", "presence penalty of 0.6 in q", presence_penalty(0.6), exact=False
    ),
    "sampling_not_as_reported": Fault(
        "sampling_not_as_reported",
        "entropy above the sampled surprise",
        colder_sampling,
        exact=False,
        needs=("entropy",),
    ),
    "stale_weights": Fault(
        "stale_weights",
        "half of the samples two to four versions late",
        late_versions,
        exact=False,
        before=equal_versions,
    ),
    "partial_weight_sync": Fault(
        "partial_weight_sync", "disturbance of 0.5 nats", noise(0.5), exact=False
    ),
    "corrupt_weight_layout": Fault(
        "corrupt_weight_layout", "disturbance of 1.4 nats", noise(1.4), exact=False
    ),
    "lora_not_applied": Fault(
        "lora_not_applied",
        "q from the reference weights",
        without_adapter,
        exact=False,
        before=with_reference,
    ),
    "stale_prefix_cache": Fault(
        "stale_prefix_cache",
        "samples with cached prompts are off",
        cached_prefix,
        exact=False,
        before=some_cached,
    ),
    "mixed_weight_versions": Fault(
        "mixed_weight_versions",
        "one replica of four is off",
        bad_replica,
        exact=False,
        before=replicas,
    ),
    "update_lost_to_rounding": Fault(
        "update_lost_to_rounding",
        "fp32 trainer, bf16 engine, off by 0.3 nats",
        declared(0.4, dtype=("bfloat16", "float32")),
        exact=False,
        before=declared(0.0, dtype=("bfloat16", "float32")),
        grows=True,
    ),
    "rope_mismatch": Fault(
        "rope_mismatch", "disturbance grows with position", grows_with_position, exact=False
    ),
    "train_mode_dropout": Fault("train_mode_dropout", "p does not repeat", dropout, exact=False),
    "moe_router_flips": Fault(
        "moe_router_flips",
        "one token in twenty is off by much",
        few_loud_tokens,
        exact=False,
        before=with_experts,
    ),
    "low_precision_logits": Fault(
        "low_precision_logits",
        "head in bfloat16 on one side",
        declared(0.3, head_dtype=("float32", "bfloat16")),
        exact=False,
    ),
    "quantized_rollout": Fault(
        "quantized_rollout",
        "fp8 weights in the engine",
        declared(0.6, quantization=("fp8", "none")),
        exact=False,
    ),
    "norm_or_precision_mismatch": Fault(
        "norm_or_precision_mismatch",
        "another rms_norm_eps",
        declared(0.3, rms_norm_eps=("1e-06", "1e-05")),
        exact=False,
    ),
}

# The same at other strengths, for the labelled set; a drill needs one of each.
STRENGTHS: dict[str, Fault] = {
    f"temperature_on_logprobs_{t:g}": Fault(
        "temperature_on_logprobs", f"q divided by {t:g}", log_probs_over(t)
    )
    for t in (0.9, 0.95, 1.05, 1.1)
} | {
    "missing_value_few_zeros": Fault(
        "missing_value_sentinel", "1 % of q are 0.0", fill(0.0, share=0.01, side="rollout")
    ),
    "missing_value_few_zeros_train": Fault(
        "missing_value_sentinel", "1 % of p are 0.0", fill(0.0, share=0.01, side="train")
    ),
    "token_shift_tenth": Fault(
        "token_shift", "p late by one token in a tenth of the samples", shift(1, share=0.1)
    ),
}

# A few markers, over other faults: the second must be named beside them.
MARKERS: dict[str, Fault] = {
    f"missing_value_{value:g}": Fault(
        "missing_value_sentinel",
        f"0.5 % of q are {value:g}",
        fill(value, share=0.005, side="rollout"),
    )
    for value in (0.0, -1.0, -9999.0)
}
