"""Format causes: values that are not log-probs of the sampled token, or not there at all."""

from __future__ import annotations

from collections import Counter

from twinscope_service.diagnose.alignment import nobody_sampled, other_tokens
from twinscope_service.diagnose.claim import Claim, Diagnostic
from twinscope_service.diagnose.context import JoinCounts
from twinscope_service.diagnose.level import expected_floor
from twinscope_service.diagnose.view import Mask, View

GRID_SHARE = (
    0.99  # share of values on a coarse grid that chance cannot give (chance: 2^-9 and less)
)
GRID_TOKENS = 20
REPEATS = 8  # of one exact value among the tokens that differ most ...
REPEATED_SHARE = 0.5  # ... and this share of those at the head of the list
# zeros that are few: so many, up to this share; the other side so many nats away on average
FEWEST_ZEROS, MOST_FEW, LEAST_GAP = 4, 0.03, 0.3
# nats of a sample's zeros together up to which they are natural, as the other side is near 0 too:
# certain tokens; where those leave too little, what a truncation keeps alone as well
NATURAL_GAPS = (0.1, 1.0)
LEAST_REST = 300.0  # tokens of samples without a marker from which those are judged by themselves
SCATTERED = 3  # at so many positions, with so many values on the other side
# share of natural zeros that the other side is far from, at most: none in the labelled traces, but
# where all are zeros they may be a greedy engine's, which is sure of what is not sure
FAR_OF_ZEROS, FAR_OF_GREEDY = 0.001, 0.005
FILLED_TOKENS = 32  # so many tokens in a row are not certain by chance


def side_missing(view: View) -> Claim | None:
    """One side sent nothing for this step, or for much of it; or nothing of both sides matches."""
    join = view.context.join
    counts = {"rollout": join.rollout_samples, "train": join.train_samples}
    most = max(counts.values())
    if most == 0:
        return None
    side = min(counts, key=lambda name: counts[name])
    if view.tokens == 0 and _none_matches(join):
        return _unmatched(join, side)
    missing = 1.0 - counts[side] / most
    waiting = max(join.waiting_rollout, join.waiting_train) / most
    share = max(missing, waiting if view.tokens == 0 else 0.0)
    if share < 0.02:
        return None
    return Claim(
        cause="side_missing",
        kind="exact",
        strength=3.0 if share > 0.2 else 1.2,
        evidence=(
            f"{counts['rollout']} rollout and {counts['train']} train samples came: "
            f"{share:.0%} of the step has no {side} side"
        ),
        estimate={"side": side, "share": round(share, 4)},
    )


def _none_matches(join: JoinCounts) -> bool:
    """Samples of both sides wait for the other, and not one has met its own."""
    met = join.joined + join.retokenized
    return met == 0 and join.waiting_rollout > 0 and join.waiting_train > 0


def _unmatched(join: JoinCounts, side: str) -> Claim:
    """Both sides send, under keys that differ: the probes are attached, their keys disagree."""
    waiting = {"rollout": join.waiting_rollout, "train": join.waiting_train}
    other = "train" if side == "rollout" else "rollout"
    return Claim(
        cause="side_missing",
        kind="exact",
        strength=3.0,
        evidence=(
            f"{waiting[side]} {side} samples of this run wait and none matches the step's "
            f"{waiting[other]} {other} samples: ids or prompts differ"
        ),
        estimate={"side": side, "share": 1.0, "waiting": waiting},
        fix=(
            "Send the same sample ids from both sides, or none; prompt_ids must come from both "
            "sides or from neither, and token ids must be the engine's."
        ),
    )


def nonfinite_values(view: View) -> Claim | None:
    """NaN or infinite log-probs: excluded from every mean, and never to be turned into 0."""
    count = view.coverage("nonfinite")
    unmasked = view.coverage("received") - view.coverage("masked_out")
    if count == 0 or not view.whole:
        return None
    return Claim(
        cause="nonfinite_values",
        kind="exact",
        strength=3.0,
        evidence=f"{count} of {unmasked} tokens have a NaN or infinite log-prob on a side",
        estimate={"tokens": count, "share": round(count / max(unmasked, 1), 6)},
        k3_after=view.k3 if view.tokens > 0 else None,
    )


def missing_value_sentinel(view: View) -> Claim | None:
    """A marker stands where a log-prob is missing: −9999, a positive number, 0.0 or −1.0."""
    coded = view.coverage("sentinel") + view.coverage("positive") if view.whole else 0
    unmasked = view.coverage("received") - view.coverage("masked_out")
    positive = view.coverage("positive")
    zeros = max(view.coverage("zero_rollout"), view.coverage("zero_train"))
    # an NLL or a probability is above 0 but where rounding made it 0: no marker is that frequent
    if view.whole and positive > 0.5 * unmasked and positive + zeros >= 0.95 * unmasked:
        return _not_log_probs(positive, unmasked)
    if coded > max(1, 1e-4 * unmasked):
        return Claim(
            cause="missing_value_sentinel",
            kind="exact",
            strength=3.0,
            evidence=(
                f"{view.coverage('sentinel')} tokens are below −1000 nats and "
                f"{view.coverage('positive')} above 0: markers, not log-probs"
            ),
            estimate={"tokens": coded, "share": round(coded / max(unmasked, 1), 6)},
            k3_after=view.k3 if view.tokens > 0 else None,
            hides=False,  # they are left out of every sum: what else is found is true of the rest
        )
    if (both := _both_filled(view)) is not None:
        return both
    fills = [c for c in (_fill(view, "q", "p"), _fill(view, "p", "q")) if c is not None]
    return max(fills, key=lambda c: c.strength) if fills else _repeated(view)


def _with_fill(view: View, side: str, value: float) -> Mask | None:
    """[S] the samples with such a marker; None if too few tokens are in samples without one.

    The others are then judged by themselves: a marker counts in the sums of its own sample only.
    """
    zeros = view.column(f"zero_{side}")
    if value != 0.0:
        return _if_enough_is_left(view, view.column(f"fill_{side}") > zeros)
    gap = -view.column(f"fill_{side}_{'p' if side == 'q' else 'q'}")
    for least in NATURAL_GAPS:
        found = _if_enough_is_left(view, (zeros > 0) & (gap > least))
        if found is not None:
            return found
    return None


def _if_enough_is_left(view: View, filled: Mask) -> Mask | None:
    left = float(view.column("n")[~filled].sum())
    return filled if filled.any() and left >= LEAST_REST else None


def _repeated(view: View) -> Claim | None:
    """One value of any size, exactly the same on one side of most of the worst tokens.

    Two contexts do not give one log-prob to the last bit. One context does, at one position: the
    first, of a group. Half precision repeats too, but on many values; a response that runs in a
    circle on one, but near the truth.
    """
    worst = view.summary.worst
    if not view.whole or len(worst) < REPEATS or view.k3 <= view.floor:
        return None
    claims = []
    for side in ("rollout", "train"):
        mine = [w.q if side == "rollout" else w.p for w in worst]
        value, _ = Counter(mine).most_common(1)[0]
        ahead = _leading(mine, value)
        there = [w for w, own in zip(worst[:ahead], mine, strict=False) if own == value]
        others = {w.p if side == "rollout" else w.q for w in there}
        scattered = min(len(others), len({w.position for w in there})) >= SCATTERED
        if len(there) >= REPEATS and scattered and value != 0.0:  # zeros: `_fill` has looked
            claims.append(_constant(side, value, len(there), ahead))
    return max(claims, key=lambda c: c.strength) if claims else None


def _leading(values: list[float], value: float) -> int:
    """How many of the first `values` can be taken so that REPEATED_SHARE of them are `value`."""
    count, ahead = 0, 0
    for i, own in enumerate(values, 1):
        count += own == value
        if count >= REPEATED_SHARE * i:
            ahead = i
    return ahead


def _constant(side: str, value: float, count: int, looked_at: int) -> Claim:
    return Claim(
        cause="missing_value_sentinel",
        kind="exact",
        strength=min(1.0 + count / 10.0, 3.0),
        evidence=(
            f"{count} of the {looked_at} tokens that differ most have the same {side} log-prob, "
            f"{value:.9g}, to the last bit: a constant, not a log-prob"
        ),
        estimate={"value": value, "side": side, "tokens_at_least": count},
        k3_after=None,
    )


def _not_log_probs(positive: int, unmasked: int) -> Claim:
    """All tokens of a side above 0: a loss or probabilities in the place of log-probs."""
    return Claim(
        cause="missing_value_sentinel",
        kind="exact",
        strength=3.0,
        evidence=(
            f"{positive} of {unmasked} tokens are above 0 on a side, which no log-prob is: that "
            f"side sends a loss (−log p, the wrong sign) or, if all are in [0, 1], probabilities"
        ),
        estimate={"tokens": positive, "share": round(positive / max(unmasked, 1), 6)},
        k3_after=None,
        fix="Send log-probabilities (nats, <= 0): negate a loss, take the log of probabilities.",
    )


def _both_filled(view: View) -> Claim | None:
    """Every token has q = p = 0: nothing was computed on either side."""
    n = view.tokens
    if not view.whole or n < FILLED_TOKENS or min(view.total("zero_q"), view.total("zero_p")) < n:
        return None
    return Claim(
        cause="missing_value_sentinel",
        kind="exact",
        strength=3.0,
        evidence=(
            f"all {int(n)} tokens have q = p = 0 exactly: both sides are filled with zeros, "
            f"nothing was compared"
        ),
        estimate={"value": 0.0, "side": "both", "tokens": int(n), "share": 1.0},
        k3_after=None,
    )


def _fill(view: View, side: str, other: str) -> Claim | None:
    """Whole numbers, all the same, on `side`, where the other side disagrees."""
    everything, zeros = view.total(f"fill_{side}"), view.total(f"zero_{side}")
    # a few exact zeros are natural (a certain token), so another constant is looked at without them
    n = everything - zeros if everything - zeros >= 3 else zeros
    if n < 3:
        return None
    value = view.total(f"fill_{side}_v") / n if n != zeros else 0.0
    spread = view.total(f"fill_{side}_vv") / n - value * value if n != zeros else 0.0
    far = view.total(f"fill_{side}_far") / n
    far_elsewhere = (view.total("big") - view.total(f"fill_{side}_far")) / max(view.tokens - n, 1)
    inside = view.total(f"fill_{side}_{other}") / n
    # 0 is what truncation to one token leaves, and its other side is then near 0 too; and where
    # much disagrees, natural zeros do as well. No other whole number comes up by chance.
    usual = FAR_OF_ZEROS if n < 0.5 * view.tokens else FAR_OF_GREEDY
    natural = far * n < 3 or far < max(usual, 2.0 * far_elsewhere)
    natural = natural and not _few_and_off(view, side, other)
    if spread > 1e-6 or (value == 0.0 and natural):
        return None
    outside = _other_mean(view, side, other, n)
    no_response = side == "q" and nobody_sampled(view) >= 1.0
    name, touched = "rollout" if side == "q" else "train", _with_fill(view, side, value)
    return Claim(
        cause="missing_value_sentinel",
        kind="exact",
        strength=0.6 if no_response or _at_edges(view) else min(1.0 + n / 10.0, 3.0),
        evidence=(
            f"{int(n)} {name} log-probs are exactly {value:g} where the other side has "
            f"{inside:.2f} on average ({outside:.2f} elsewhere)"
            + ("" if touched is not None else "; nothing else can be judged while they count")
        ),
        estimate={
            "value": value,
            "side": name,
            "tokens": int(n),
            "share": round(n / view.tokens, 6),
        },
        k3_after=None if touched is None else view.k3_of(~touched),
        touched=touched,
    )


def _few_and_off(view: View, side: str, other: str) -> bool:
    """A few zeros whose other side is far on average, at least three times as far as others are.

    Natural ones are certain tokens, with no gap; or a truncation's single tokens, of which there
    are many when their gap is large; or of a sample that was paired with other tokens.
    """
    own = ~other_tokens(view)
    tokens, zeros = (float(view.column(name)[own].sum()) for name in ("n", f"zero_{side}"))
    gap = -float(view.column(f"fill_{side}_{other}")[own].sum())
    elsewhere = (float(view.column("abs")[own].sum()) - gap) / max(tokens - zeros, 1.0)
    few = FEWEST_ZEROS <= zeros <= MOST_FEW * tokens
    return few and gap / zeros > max(LEAST_GAP, 3.0 * elsewhere)


def _at_edges(view: View) -> bool:
    """Is nearly all k3 on the samples' first or last token? Then the edge is the cause."""
    if not view.whole:
        return False
    edge = max(float(view.profile(name, "k3")[0]) for name in ("first", "last"))
    return edge > 0.8 * view.total("k3")


def _other_mean(view: View, side: str, other: str, n: float) -> float:
    """Mean of the other side where `side` is no fill."""
    rest = max(view.tokens - n, 1.0)
    return (view.total(other) - view.total(f"fill_{side}_{other}")) / rest


def wrong_token_logprob(view: View) -> Claim | None:
    """One side returns another token's log-prob, mostly the likeliest one's.

    Then that side is never below the other, equal where the sampled token was the likeliest, and
    unrelated to it elsewhere: one-sided like a truncation, but with a poor correlation, and unlike
    a shift it agrees on many tokens.
    """
    if view.tokens < 200 or view.total("fill_q") + view.total("fill_p") > 0.02 * view.tokens:
        return None
    engine = view.total("d") < 0.0
    # Σ|Δ| of the tokens where that side is higher, as a share of all
    one_sided = 0.5 + abs(view.total("d")) / max(2.0 * view.total("abs"), 1e-300)
    agreeing = 1.0 - view.mean("out_09_11")
    strength = min((one_sided - 0.5) / 0.45, (1.0 - view.correlation) / 0.15, agreeing / 0.15, 2.5)
    if strength < 0.8 or view.mean("abs") < 0.2:
        return None
    side = "rollout" if engine else "train"
    return Claim(
        cause="wrong_token_logprob",
        kind="tested",
        strength=strength,
        evidence=(
            f"{one_sided:.0%} of Σ|Δ| is on tokens where the {side} value is the higher one, "
            f"{agreeing:.0%} of the tokens agree within 10 %, and the correlation is "
            f"{view.correlation:.2f}: the {side} side reports the likeliest token, not the sampled"
        ),
        estimate={"side": side, "agreeing": round(agreeing, 4)},
        k3_after=expected_floor(view),
        k3_from="level",
    )


def bf16_logprob_storage(view: View) -> Claim | None:
    """Values on the bfloat16 or float16 grid: log-probs were stored or sent in half precision."""
    n = view.total("grid_n")
    if n < GRID_TOKENS:
        return None
    for grid in ("bf16", "fp16"):
        claims = [c for s in ("q", "p") if (c := _on_grid(view, s, grid)) is not None]
        if claims:
            return max(claims, key=lambda c: c.strength)
    return None


def _on_grid(view: View, side: str, grid: str) -> Claim | None:
    """All samples, or whole samples among others (some workers), on the grid."""
    n, on = view.column("grid_n"), view.column(f"grid_{side}_{grid}")
    share = float(on.sum() / n.sum())
    whole = (n >= GRID_TOKENS) & (on > GRID_SHARE * n)
    touched = share <= GRID_SHARE
    if touched and (whole.sum() < 2 or on[whole].sum() < 100):
        return None
    name = "rollout" if side == "q" else "train"
    return Claim(
        cause="bf16_logprob_storage",
        kind="exact",
        strength=2.5,
        evidence=(
            f"{share:.1%} of the {int(n.sum())} {name} log-probs beyond −0.25 are exact "
            f"{grid} values; chance gives 0.2 % at most"
        ),
        estimate={"side": name, "grid": grid, "share": round(share, 4)},
        k3_after=max(view.k3 - grid_noise(view, grid), 0.0),
        explains=0.0,
        touched=whole if touched else None,
    )


def grid_noise(view: View, grid: str) -> float:
    """k3 that rounding alone adds: half of E[(ulp(p))²/12], with ulp ≈ |p|·2^-7 (bf16), 2^-10."""
    bits = 8 if grid == "bf16" else 11
    return view.mean("pp") * 2.0 ** (-2 * bits) / 6.0


def bypass_mode(view: View) -> Claim | None:
    """Δ is exactly 0: one side's numbers were copied to the other, nothing was compared."""
    n, zero = view.column("n"), view.column("zero_d")
    copied: Mask = (n >= 8) & (zero > 0.99 * n)
    share = float(n[copied].sum() / max(view.tokens, 1.0))
    if copied.sum() < 2 or share < 0.05 or view.mean("q") > -1e-4:
        return None
    declared = _declared_bitwise(view)
    return Claim(
        cause="bypass_mode",
        kind="exact",
        strength=0.5 if declared else 3.0,
        evidence=(
            f"Δ is exactly 0 on every token of {view.told(copied)} ({share:.0%} of the "
            f"tokens); two independent computations do not agree to the last bit"
        ),
        estimate={"share": round(share, 4)},
        k3_after=None,
        explains=0.0,
        group=("bypass_mode", "numerical_noise"),
        separator="a fingerprint that says bitwise-aligned kernels (batch_invariant)",
        touched=None if share > 0.9 else copied,
    )


def _declared_bitwise(view: View) -> bool:
    prints = (view.context.rollout or {}, view.context.train or {})
    return all(p.get("batch_invariant") or p.get("bitwise") for p in prints)


DIAGNOSTICS: tuple[Diagnostic, ...] = (
    side_missing,
    nonfinite_values,
    missing_value_sentinel,
    wrong_token_logprob,
    bf16_logprob_storage,
    bypass_mode,
)
