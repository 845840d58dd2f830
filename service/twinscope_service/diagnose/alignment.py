"""Alignment causes: the two numbers belong to different tokens, positions or contexts."""

from __future__ import annotations

from math import atanh, sqrt
from typing import Any

import numpy as np

from twinscope_service.diagnose.claim import Claim, Diagnostic, explained
from twinscope_service.diagnose.level import expected_floor, level_at
from twinscope_service.diagnose.padding import padded_ends
from twinscope_service.diagnose.view import Mask, View, compare
from twinscope_service.measure import formulas
from twinscope_service.measure.records import F64, I64, LAG_COLUMNS, LAGS

FEW_TOKENS = 100  # a level needs more than these
Z_EVIDENCE = 5.0
RAISED = 0.4  # least level of the loud part: a contrast below the floor is no fault
LAG_GAIN = 0.35  # a better lag leaves at most this share of mean |q − p|
LOOKED_UP = 24  # suspects of a permutation whose partner is searched
LEAST_FIT = 0.7  # of the rank correlation (in units of 0.5) or the contrast (of PADDED_GAP)
PADDED_GAP = 0.7  # nats of ln r between padded samples and those that are not
APART = 0.4  # nats, mean |q − p| over a sample's head that belongs to another sample
HEAD = 8  # tokens at a sample's head that are carried for matching


# ---- shifts


def token_shift(view: View) -> Claim | None:
    """p belongs to a neighbouring token: a shifted array, or a label gathered off by one."""
    shifted = _array_shift(view)
    return shifted if shifted is not None else _label_shift(view)


def _array_shift(view: View) -> Claim | None:
    """Samples whose q fits p at another lag far better than at 0."""
    best, known = view.attribute("best_lag")
    at_best, _ = view.attribute("best_lag_abs")
    at_zero, has_zero = view.attribute("lag0_abs")
    usable = known & has_zero
    moved = usable & fits_elsewhere(best, at_best, at_zero)
    if moved.sum() < max(2, 0.02 * usable.sum()):
        return None
    lag, votes = _mode(best[moved])
    moved_share = float(moved.sum() / usable.sum())
    k3_after = _k3_at_lag(view, int(lag)) if moved_share > 0.9 else None
    pad, pad_known = view.attribute("pad_left")
    follows_pad = bool(
        (moved & pad_known).sum() >= 2
        and np.ptp(best[moved]) > 0
        and np.all(np.abs(best) == np.abs(pad), where=moved & pad_known)
    )
    estimate: dict[str, Any] = {"samples": int(moved.sum()), "share": round(moved_share, 4)}
    estimate["lag"] = "pad_left" if follows_pad else int(lag)
    return Claim(
        cause="token_shift",
        kind="exact",
        strength=min(1.0 + votes * moved.sum() / 4.0, 3.0),
        evidence=(
            f"in {int(moved.sum())} of {int(usable.sum())} samples q[t] fits p[t"
            f"{'±pad_left' if follows_pad else f'{int(lag):+d}'}]: mean |q − p| falls from "
            f"{at_zero[moved].mean():.2f} to {at_best[moved].mean():.3f}"
        ),
        estimate=estimate,
        k3_after=k3_after,
        touched=None if moved_share > 0.9 else moved,
    )


def fits_elsewhere(best: F64, at_best: F64, at_zero: F64) -> Mask:
    """[S] does q[t] fit p[t + best] far better than p[t]? Mean |q − p| at both lags, nats."""
    moved: Mask = (best != 0) & (at_best < LAG_GAIN * at_zero) & (at_zero > 0.5)
    return moved


def _mode(values: F64) -> tuple[float, float]:
    """Most frequent value and its share."""
    found, counts = np.unique(values, return_counts=True)
    return float(found[counts.argmax()]), float(counts.max() / len(values))


def _k3_at_lag(view: View, lag: int) -> float | None:
    """k3 of q[t] against p[t + lag], from the lag table of the whole summary."""
    if not view.whole or lag not in LAGS:
        return None
    row = view.summary.lags[LAGS.index(lag)]
    n = row[LAG_COLUMNS.index("n")]
    return float(row[LAG_COLUMNS.index("k3")] / n) if n > 0 else None


def _label_shift(view: View) -> Claim | None:
    """p far below q and unrelated to it at every lag: a neighbour's logits scored this token."""
    unrelated = _unrelated(view)
    if unrelated is None:
        return None
    offset, r = _label_offset(view)
    share = float(unrelated.sum() / max(view.samples, 1))
    return Claim(
        cause="token_shift",
        kind="tested",
        strength=min(1.0 + share, 2.0),
        evidence=(
            f"p is {-view.mean('d'):.1f} nats below q and unrelated to it (r = "
            f"{view.correlation:.2f}) in {share:.0%} of the samples; no lag of the array repairs "
            f"it, so the label (or the logits row) is off by one position"
        ),
        estimate={"lag": offset, "kind": "label", "correlation_at_lag": round(r, 3)},
        group=() if offset == 1 else ("token_shift", "wrong_token_logprob"),
        separator="top-k log-probs of one position: which of them is the trainer's number",
        k3_after=expected_floor(view) if share > 0.9 else None,
        k3_from="level",
        touched=None if share > 0.9 else unrelated,
    )


def _unrelated(view: View) -> Mask | None:
    """Samples with r < 0.4 and mean Δ < −3, when there are enough of them; else None."""
    n = np.maximum(view.column("n"), 1.0)
    off = (view.sample_correlation < 0.4) & (view.column("d") / n < -3.0) & (n >= 8)
    return off if off.sum() >= max(3, 0.05 * view.samples) else None


def _label_offset(view: View) -> tuple[int, float]:
    """+1 or −1: which neighbour's label was gathered.

    log π(x[t+1] | x[<t]) still resembles q[t+1] (one token of context less), so a correlation at
    lag −1 says +1. log π(x[t−1] | x[<t]), a token just seen, resembles nothing: −1.
    """
    if not view.whole:
        return 1, 0.0
    r = {lag: _lag_correlation(view, lag) for lag in (-1, 1)}
    if r[-1] > 0.1 and r[-1] >= r[1]:
        return 1, r[-1]
    return -1, r[-1]


def _lag_correlation(view: View, lag: int) -> float:
    row = dict(zip(LAG_COLUMNS, view.summary.lags[LAGS.index(lag)], strict=True))
    n = max(row["n"], 1.0)
    q, p = row["q"] / n, row["p"] / n
    var = (row["qq"] / n - q * q) * (row["pp"] / n - p * p)
    return float((row["qp"] / n - q * p) / sqrt(var)) if var > 1e-18 else 0.0


def sample_permutation(view: View) -> Claim | None:
    """p of one sample was paired with q of another.

    The two are unrelated inside such a sample, yet p looks like the log-probs of sampled tokens
    (as high as q on the whole), and another sample's p fits its q.
    """
    q, p, known = _heads(view)
    own = np.abs(q - p).mean(axis=1)
    suspects = known & (own > APART) & (view.sample_correlation < 0.7)
    if suspects.sum() < max(2, 0.04 * known.sum()):
        suspects = _lone(view, suspects)
        if not suspects.any():
            return None
    asked, partner = _partners(q, p, own, known, suspects)
    repaired = partner >= 0
    share_matched = float(repaired.mean()) if len(asked) else 0.0
    found = repaired.sum() >= 2 and share_matched >= 0.1
    if not found and not _levels_alike(view, suspects):
        return None
    share = float(suspects.sum() / known.sum())
    return Claim(
        cause="sample_permutation",
        kind="exact" if found else "tested",
        strength=min(1.0 + suspects.sum() / 6.0, 3.0) if found else 1.3,
        evidence=(
            f"in {int(suspects.sum())} of {int(known.sum())} samples q and p are unrelated from "
            f"the first tokens on; of {len(asked)} looked up, {int(repaired.sum())} have a q that "
            f"another sample's p fits"
        ),
        estimate={
            "samples": int(suspects.sum()),
            "share": round(share, 4),
            "matched": round(share_matched, 4),
        },
        k3_after=_k3_repaired(q[asked[repaired]], p[partner[repaired]]) if found else None,
        touched=None if share > 0.9 else suspects,
        group=() if found else ("sample_permutation", "retokenized", "wrong_token_logprob"),
        separator="token ids, or a digest of them, from both sides",
    )


def _lone(view: View, suspects: Mask) -> Mask:
    """Few samples that are unrelated beyond doubt, all others quiet; none without a suspect.

    One of two exchanged samples may begin like its own, when both answer one prompt.
    """
    size = view.column("abs") / np.maximum(view.column("n"), 1.0)
    unrelated: Mask = (view.sample_correlation < 0.4) & (size > 1.0)
    quiet = level_at(view, view.k3_of(~unrelated)) < RAISED
    certain = quiet and bool((suspects & unrelated).any())
    return unrelated if certain else np.zeros_like(unrelated)


def _levels_alike(view: View, rows: Mask) -> bool:
    """Is p on these samples no further below q than another sampled token's would be?

    A neighbour's logits put p many nats below q; and where a lag repairs it, it is a shift.
    """
    n = max(float(view.column("n")[rows].sum()), 1.0)
    gap = float(view.column("d")[rows].sum()) / n
    size = float(view.column("abs")[rows].sum()) / n
    at_best, known = view.attribute("best_lag_abs")
    at_zero, _ = view.attribute("lag0_abs")
    repaired = (known & (at_best < LAG_GAIN * at_zero))[rows].mean() > 0.5
    # one-sided: the same tokens after all, with another token's value on one side
    return gap > -3.0 and abs(gap) < 0.8 * size and not repaired


def _heads(view: View) -> tuple[F64, F64, Mask]:
    """[S, HEAD] q and p of the first counted tokens, and the samples that have all of them."""
    q = np.stack([view.attribute(f"head_q{i}")[0] for i in range(HEAD)], axis=1)
    p = np.stack([view.attribute(f"head_p{i}")[0] for i in range(HEAD)], axis=1)
    return q, p, view.attribute(f"head_q{HEAD - 1}")[1]


def _partners(q: F64, p: F64, own: F64, known: Mask, suspects: Mask) -> tuple[I64, I64]:
    """Suspects that were looked up (at most LOOKED_UP), and the sample whose p fits; −1: none."""
    telling = suspects & (np.abs(q).mean(axis=1) > 0.4)  # heads of certain tokens fit anything
    asked = np.flatnonzero(telling)[:LOOKED_UP]
    candidates = np.flatnonzero(known)
    partner = np.full(len(asked), -1)
    for i, s in enumerate(asked):
        distance = np.abs(p[candidates] - q[s]).mean(axis=1)
        distance[candidates == s] = np.inf
        if distance.min() < min(0.15, 0.15 * own[s]):
            partner[i] = candidates[distance.argmin()]
    return asked, partner


def _k3_repaired(q: F64, p: F64) -> float:
    """k3 of heads [K, HEAD] after each q has met the p that fits it."""
    return float(formulas.k3(p - q).mean())


# ---- padding and positions


def padding_attended(view: View) -> Claim | None:
    """Samples with more left padding are worse, from their first token on: pads are attended.

    Or those further back in a packed row: the neighbours in the pack are attended.
    """
    return _by_padding(view, "padding_attended") or _by_pack_slot(view)


def _by_pack_slot(view: View) -> Claim | None:
    slot, known = view.attribute("pack_slot")
    known = known & (view.column("n") > 0)
    first, later = known & (slot == 0), known & (slot > 0)
    if first.sum() < 3 or later.sum() < 3:
        return None
    gap, z = compare(view.noise_level, later, first)
    k3_first = view.k3_of(first, beyond=FEW_TOKENS)
    if z < 3.0 or gap < 0.3 or level_at(view, view.k3_of(later, beyond=FEW_TOKENS)) < RAISED:
        return None
    return Claim(
        cause="padding_attended",
        kind="tested",
        strength=min(z / Z_EVIDENCE, gap / 0.4, 3.0),
        evidence=(
            f"samples behind others in a packed row are {np.exp(gap):.1f} times as loud as those "
            f"in front (z {z:.1f}): attention crosses the borders inside the pack"
        ),
        estimate={"by": "pack_slot", "log_ratio": round(gap, 3)},
        k3_after=k3_first,
        explains=1.0 if k3_first is None else explained(view, k3_first),
    )


def position_offset(view: View) -> Claim | None:
    """Samples with more left padding are worse after a clean first token: a position gap."""
    return _by_padding(view, "position_offset")


def _by_padding(view: View, cause: str) -> Claim | None:
    pad, known = view.attribute("pad_left")
    known = known & (view.column("n") > 0)
    if known.sum() < 8 or np.ptp(pad[known]) == 0:
        return None
    some = known & (pad > 0)
    none = known & (pad == 0)
    if level_at(view, view.k3_of(some, beyond=FEW_TOKENS)) < RAISED:
        return None
    level = view.noise_level
    rho = spearman(pad[known], level[known])
    z = atanh(min(rho, 0.99)) * sqrt(known.sum() - 3)  # Fisher's transform
    fit = rho / 0.5
    enough = min(some.sum(), none.sum()) >= 3
    gap, contrast = compare(level, some, none) if enough else (0.0, 0.0)
    if gap > PADDED_GAP and contrast > z:  # padding acts, but not by how much there is
        z, fit = contrast, max(fit, gap / PADDED_GAP)
    if z < 3.0 or fit < LEAST_FIT:
        return None
    first_clean = _first_token_is_clean(view, some)
    mine = first_clean == (cause == "position_offset")
    k3_none = view.k3_of(none, beyond=FEW_TOKENS)
    words = "its first token is clean" if first_clean else "its first token is off as well"
    without = "" if k3_none is None else f"; k3 {k3_none:.2g} without padding"
    return Claim(
        cause=cause,
        kind="tested",
        strength=min(z / Z_EVIDENCE, 3.0, fit) * (1.0 if mine else 0.4),
        evidence=(
            f"disagreement follows the sample's left padding (rank correlation {rho:.2f}, z "
            f"{z:.1f}{without}); {words}"
        ),
        estimate={"rank_correlation": round(rho, 3), "first_token_clean": first_clean},
        k3_after=k3_none,
        explains=1.0 if k3_none is None else explained(view, k3_none),
    )


def _first_token_is_clean(view: View, some: Mask) -> bool:
    """Is Δ at t = 0 much smaller than at t = 1..7, in padded samples?

    The last prompt position predicts the first token: a gap between prompt and response starts
    after it, attended padding before it.
    """
    q, p, known = _heads(view)
    rows = some & known
    if rows.sum() < 4:
        return False
    pad, _ = view.attribute("pad_left")
    rows &= pad >= np.median(pad[rows])  # the effect is largest there
    r = formulas.noise_ratio(p[rows] - q[rows], q[rows])
    return bool(np.median(r[:, 0]) < 0.5 * np.median(r[:, 1:]))


def spearman(x: F64, y: F64) -> float:
    """Rank correlation, average ranks for ties."""
    a, b = _ranks(x), _ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = sqrt(float((a * a).sum()) * float((b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def _ranks(x: F64) -> F64:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: F64 = ((ends - counts + ends - 1) / 2.0)[inverse]
    return ranks


# ---- tokens that do not belong, and edges


def mask_includes_non_response(view: View) -> Claim | None:
    """Runs of tokens that nobody sampled (tool output, prompt, padding) are counted."""
    filled = padded_ends(view) or _filled_runs(view)
    return filled if filled is not None else _burst_runs(view)


def _filled_runs(view: View) -> Claim | None:
    """Runs with one constant q of tokens that the engine did not sample."""
    n = view.total("fill_q")
    strength = nobody_sampled(view)
    if strength < 1.0:
        return None
    inside, outside = fill_surprise(view)
    return Claim(
        cause="mask_includes_non_response",
        kind="exact",
        strength=strength,
        evidence=(
            f"{int(n)} tokens in runs inside the samples carry a constant q; the trainer finds "
            f"them {inside / max(outside, 1e-6):.1f} times as surprising ({inside:.1f} nats) as "
            f"the sampled ones"
        ),
        estimate={"tokens": int(n), "share": round(n / view.tokens, 4)},
        k3_after=None,
    )


def nobody_sampled(view: View) -> float:
    """Strength of "these constant q mark tokens that were not sampled", 0 to 3.

    Either the trainer finds them far less likely than sampled tokens, or they are long runs
    inside the samples after which everything agrees again (a lost tail does not recover), more or
    less likely than the rest. Sampled tokens whose value is missing are as likely as any.
    """
    n = view.total("fill_q")
    if n < 8 or view.total("fill_q_far") < 0.05 * n:
        return 0.0
    inside, outside = fill_surprise(view)
    runs = view.total("fill_q_pair") / n
    unlikely = inside / max(outside, 1e-6)
    clean_end = view.whole and _last_tokens_clean(view)
    inside_run = clean_end and runs > 0.75 and not 0.88 < unlikely < 1.12
    far_off = unlikely / (1.5 if clean_end else 3.0)
    return min(runs / 0.5, max(far_off, 1.2 if inside_run else 0.0), 3.0)


def fill_surprise(view: View) -> tuple[float, float]:
    """Mean −p where q is a whole number, and elsewhere, nats."""
    n = view.total("fill_q")
    rest = max(view.tokens - n, 1.0)
    return -view.total("fill_q_p") / max(n, 1.0), -(view.total("p") - view.total("fill_q_p")) / rest


def _burst_runs(view: View) -> Claim | None:
    """Large disagreements in runs inside otherwise healthy samples that recover afterwards."""
    big = view.total("big")
    if big < 16 or view.correlation > 0.999:
        return None
    together = view.total("big_pair") / big
    share = big / view.tokens
    # whole samples of other tokens are no runs inside samples that agree elsewhere
    inside = (view.column("big") > 0) & ~other_tokens(view)
    ends_clean = _last_tokens_clean(view)
    if together < 0.5 or share > 0.4 or inside.sum() < 2 or not ends_clean:
        return None
    return Claim(
        cause="mask_includes_non_response",
        kind="tested",
        strength=min(together / 0.5, 2.0),
        evidence=(
            f"{int(big)} tokens ({share:.1%}) differ by more than 2 nats, {together:.0%} of them "
            f"next to another such token, in {view.told(inside)}, which agree elsewhere"
        ),
        estimate={"tokens": int(big), "share": round(share, 4)},
        k3_after=None,
    )


def other_tokens(view: View) -> Mask:
    """[S] is p of this sample that of a neighbouring token, or of another sample, throughout?"""
    best, known = view.attribute("best_lag")
    moved = known & fits_elsewhere(
        best, view.attribute("best_lag_abs")[0], view.attribute("lag0_abs")[0]
    )
    q, p, has_head = _heads(view)
    unrelated = has_head & (np.abs(q - p).mean(axis=1) > APART) & (view.sample_correlation < 0.7)
    found: Mask = moved | unrelated
    return found


def _last_tokens_clean(view: View) -> bool:
    """The last 4 tokens of samples are much quieter than all tokens; False in a part: not known."""
    if not view.whole:
        return False
    n, d2 = view.profile("last", "n")[:4].sum(), view.profile("last", "d2")[:4].sum()
    return bool(n > 0 and d2 / n < 0.3 * view.mean("d2"))


def boundary_token(view: View) -> Claim | None:
    """Only the first or the last token of the samples disagrees (BOS, EOS, prompt boundary)."""
    if not view.whole or view.tokens < 200:
        return None
    found = [c for c in (_edge(view, "first"), _edge(view, "last")) if c is not None]
    return max(found, key=lambda c: c.strength) if found else None


def _edge(view: View, name: str) -> Claim | None:
    """k3 and level of the outermost token against the rest of the samples."""
    n, k3 = view.profile(name, "n"), view.profile(name, "k3")
    lr, lr2 = view.profile(name, "lr"), view.profile(name, "lr2")
    if n[0] < 8:
        return None
    others_n = view.tokens - n[0]
    others_k3 = (view.total("k3") - k3[0]) / max(others_n, 1.0)
    k3_share = k3[0] / max(view.total("k3"), 1e-300)
    spread = max(lr2[0] / n[0] - (lr[0] / n[0]) ** 2, 0.05)
    typical = (view.total("lr") - lr[0]) / max(others_n, 1.0)
    z = (lr[0] / n[0] - typical) / sqrt(spread / n[0])
    next_k3 = k3[1:4].sum() / max(n[1:4].sum(), 1.0)
    alone = next_k3 < 0.25 * k3[0] / n[0]
    token_share = n[0] / view.tokens
    strength = min(z / Z_EVIDENCE, k3_share / max(0.25, 8 * token_share), 3.0)
    if strength < 0.8 or not alone or k3[0] / n[0] < 0.02:
        return None
    return Claim(
        cause="boundary_token",
        kind="tested",
        strength=strength,
        evidence=(
            f"the {name} token of the samples carries {k3_share:.0%} of the k3 with "
            f"{token_share:.1%} of the tokens (z {z:.1f}); its neighbours are as quiet as the rest"
        ),
        estimate={"position": name, "k3_at_position": round(float(k3[0] / n[0]), 4)},
        k3_after=float(others_k3),
        explains=explained(view, float(others_k3)),
        hides=level_at(view, float(others_k3)) < 1.0,  # else the others have a fault of their own
    )


def retokenized(view: View) -> Claim | None:
    """The two sides scored different token ids: seen by the join, or a tail that never recovers."""
    join = view.context.join
    if join.retokenized > 0:
        total = max(join.joined + join.retokenized, 1)
        where = "" if join.first_difference is None else f", first at token {join.first_difference}"
        return Claim(
            cause="retokenized",
            kind="exact",
            strength=3.0,
            evidence=f"token ids differ in {join.retokenized} of {total} samples{where}",
            estimate={
                "samples": join.retokenized,
                "share": round(join.retokenized / total, 4),
                "first_difference": join.first_difference,
            },
            k3_after=view.k3 if view.tokens > 0 else None,
        )
    return _later_turns(view) or _bad_tails(view)


def _later_turns(view: View) -> Claim | None:
    """First turns agree, later ones do not: the history was encoded again."""
    turn, known = view.attribute("turn")
    known = known & (view.column("n") > 0)
    first, later = known & (turn == 0), known & (turn > 0)
    if first.sum() < 3 or later.sum() < 3:
        return None
    gap, z = compare(view.noise_level, later, first)
    quiet_all = level_at(view, view.k3_of(later, beyond=FEW_TOKENS)) < RAISED
    if gap < 0.5 or z < Z_EVIDENCE or quiet_all:
        return None
    return Claim(
        cause="retokenized",
        kind="tested",
        strength=min(z / Z_EVIDENCE, gap / 0.6, 2.0),
        evidence=(
            f"turns after the first are {np.exp(gap):.1f} times as loud as first turns (z {z:.1f})"
        ),
        estimate={"by": "turn", "log_ratio": round(gap, 3)},
        k3_after=view.k3_of(first, beyond=FEW_TOKENS),
        touched=later,
        group=("retokenized", "mask_includes_non_response"),
        separator="token ids of both sides",
    )


def _bad_tails(view: View) -> Claim | None:
    """Without ids: some samples disagree from some token to their end, the others not at all."""
    first, some = view.attribute("first_big")
    length = view.column("length")
    after = np.maximum(length - first, 1.0)
    density = np.where(some, view.column("big") / after, 0.0)
    tails = some & (density > 0.2) & (after >= 8) & (first >= 4) & (view.column("big") >= 5)
    quiet = ~some
    if tails.sum() < 2 or quiet.sum() < 0.2 * view.samples:
        return None
    r = view.sample_correlation
    strength = min(float(tails.sum()) / 3.0, 2.0) * (0.6 if r[tails].mean() > 0.95 else 1.0)
    return Claim(
        cause="retokenized",
        kind="tested",
        strength=strength,
        evidence=(
            f"{view.told(tails)} agree up to a token (median position "
            f"{np.median(first[tails]):.0f}) and disagree from there to their end"
        ),
        estimate={
            "samples": int(tails.sum()),
            "share": round(float(tails.sum() / max(view.samples, 1)), 4),
        },
        k3_after=view.k3_of(~tails),
        touched=tails,
        group=("retokenized", "mixed_weight_versions"),
        separator="token ids of both sides",
    )


DIAGNOSTICS: tuple[Diagnostic, ...] = (
    token_shift,
    sample_permutation,
    padding_attended,
    position_offset,
    mask_includes_non_response,
    boundary_token,
    retokenized,
)
