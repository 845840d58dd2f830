"""Weight causes: the two sides do not hold the same weights."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import numpy as np

from twinscope_service.diagnose.claim import Claim, Diagnostic, explained
from twinscope_service.diagnose.context import StepPoint
from twinscope_service.diagnose.level import level_at, level_strength
from twinscope_service.diagnose.numerics import OF_TOKENS, SLOPE
from twinscope_service.diagnose.view import Mask, View, compare
from twinscope_service.measure.records import F64, PROFILE_COLUMNS

Z_EVIDENCE = 5.0
CORRUPT_K3 = 0.25  # beyond it a wrong layout is likelier than old weights
ADVANCED = 0.5  # of the strength of a frozen engine whose version goes on
CACHE_BLOCK = 16  # tokens; engines cache prompts in blocks and compute the last token always
ALL_CACHED = 0.95  # share of samples whose whole prompt was cached
WHOLE_WAY = 0.8  # λ from which q is the reference itself, not weights on the way to it
RAISED = 0.4  # least level of the loud part: a contrast below the floor is no fault
SPAN_INFLATION = 4.0  # tokens of a sample are not independent; spans have no sample rows
PROFILE = {name: i for i, name in enumerate(PROFILE_COLUMNS)}
SAME_WEIGHTS = ("stale_weights", "partial_weight_sync", "corrupt_weight_layout")
NUMERIC_DOUBLES = ("quantized_rollout", "norm_or_precision_mismatch")  # same moments
ROTARY = ("rope_mismatch",)
SEPARATOR = (
    "log-probs of 1 000 tokens under the previous weights, a checksum per tensor, or the "
    "fingerprints of both sides"
)


def stale_weights(view: View) -> Claim | None:
    """The engine samples with older weights than the trainer scores with."""
    declared = _by_version_lag(view)
    if declared is not None:
        return declared
    by_history = _frozen_engine(view) or _learned_direction(view)
    return by_history or _by_level(view, "stale_weights")


def _by_version_lag(view: View) -> Claim | None:
    """k3 of lagging samples against fresh ones, or a lag that every sample has."""
    rollout, has_rollout = view.attribute("rollout_version")
    train, has_train = view.attribute("train_version")
    known = has_rollout & has_train & (view.column("n") > 0)
    if known.sum() < 4:
        return None
    lag = np.where(known, train - rollout, 0.0)
    late, fresh = known & (lag > 0), known & (lag <= 0)
    level = level_strength(view)
    if late.sum() < 2 or level < 0.5:
        return None
    if fresh.sum() < 2:
        return _lag_claim(view, lag, late, None, min(1.2 * level, 2.0))
    gap, z = compare(view.noise_level, late, fresh)
    if z < Z_EVIDENCE or gap < 0.3:
        return None
    return _lag_claim(view, lag, late, view.k3_of(fresh), min(z / Z_EVIDENCE, 3.0))


def _lag_claim(view: View, lag: F64, late: Mask, k3_fresh: float | None, strength: float) -> Claim:
    against = "" if k3_fresh is None else f", against {k3_fresh:.2g} at equal versions"
    return Claim(
        cause="stale_weights",
        kind="tested" if k3_fresh is not None else "declared",
        strength=strength,
        evidence=(
            f"{view.told(late)} were made by weights {lag[late].mean():.1f} versions old; "
            f"their k3 is {view.k3_of(late) or 0.0:.2g}{against}"
        ),
        estimate={"version_lag": round(float(lag[late].mean()), 3), "samples": int(late.sum())},
        k3_after=view.floor if k3_fresh is None else k3_fresh,
        k3_from="level" if k3_fresh is None else "step",
        explains=0.9 if k3_fresh is None else explained(view, k3_fresh),
        touched=None if late.sum() > 0.9 * view.samples else late,
    )


@dataclass(frozen=True)
class Growth:
    """k3 that rises with every step since the last restart, and what the engine's version did."""

    z: float  # of the slope of ln k3
    per_step: float  # of ln k3
    grown: float  # e-folds since it began
    steps: int  # since it began
    least_k3: float
    stuck: bool  # the engine's weight version stood still
    advanced: bool  # ... went on in most steps
    fell_at: int | None = None  # it rose as before the fall at this step

    @property
    def words(self) -> str:
        """One sentence for the evidence."""
        version = " while the engine's weight version stood still" if self.stuck else ""
        version = " although the engine's weight version advanced" if self.advanced else version
        again = "" if self.fell_at is None else f", as it did until it fell at step {self.fell_at}"
        return (
            f"k3 grew {np.exp(self.grown):.0f}-fold over the last {self.steps} steps "
            f"(z {self.z:.0f}){again}{version}"
        )


def _growth(view: View) -> Growth | None:
    """Healthy at first, then k3 grows with every step; None: it does not, or it jumped once.

    A frozen engine that is restarted now and then gives a sawtooth; its last tooth is judged, by
    itself or as one more of the kind.
    """
    if view.history is None or level_strength(view) < 0.5:
        return None
    teeth = _teeth(view.history.points)
    return _rise(teeth[-1]) or _rise_again(teeth, view)


def _rise(points: list[StepPoint]) -> Growth | None:
    """Growth over the last of the points."""
    if len(points) < 6:
        return None
    steps = np.array([p.step for p in points], np.float64)
    y = np.log([max(p.k3 or 0.0, 1e-12) for p in points])
    last = np.arange(len(y) - 1)  # something rises over four points at least, a jump may be new
    slope, left, start = _best_fit(np.maximum(steps - steps[last[:-2], None], 0.0), y)
    _, left_by_jump, _ = _best_fit(np.greater(steps, steps[last, None]).astype(np.float64), y)
    rise = np.maximum(steps - steps[start], 0.0)
    se = sqrt(left / (len(y) - 3) / float(((rise - rise.mean()) ** 2).sum()))
    grown = float(slope * rise[-1])
    if slope < Z_EVIDENCE * se or grown < 1.0 or left_by_jump < left:
        return None
    stuck, advanced = _versions(points[start + 1 :])  # before, they say nothing of it
    return Growth(
        z=slope / max(se, 1e-12),
        per_step=slope,
        grown=grown,
        steps=int(rise[-1]),
        least_k3=float(np.exp(y.min())),
        stuck=stuck,
        advanced=advanced,
    )


def _versions(grew: list[StepPoint]) -> tuple[bool, bool]:
    """Did the engine's version stand still while k3 grew; did it go on in most steps?"""
    versions = {p.rollout_version for p in grew if p.rollout_version is not None}
    return len(versions) == 1, len(versions) > len(grew) / 2


def _rise_again(teeth: list[list[StepPoint]], view: View) -> Growth | None:
    """One of the teeth before rose, and the present one goes the same way: this step included."""
    before = next((found for tooth in teeth[-4:-1][::-1] if (found := _rise(tooth))), None)
    points = teeth[-1]
    if before is None or not view.whole or len(points) < 3:
        return None
    k3 = np.log([*(p.k3 or 1e-12 for p in points), max(view.k3, 1e-12)])
    steps = points[-1].step + 1 - points[0].step
    grown = float(k3[-1] - k3[0])
    if (
        grown < 1.0
        or not 0.5 < grown / steps / before.per_step < 2.0
        or np.diff(k3).max() > grown / 2
    ):
        return None
    stuck, advanced = _versions(points[1:])
    return Growth(
        z=before.z,
        per_step=grown / steps,
        grown=grown,
        steps=steps,
        least_k3=float(np.exp(k3.min())),
        stuck=stuck,
        advanced=advanced,
        fell_at=points[0].step,
    )


def _best_fit(shapes: F64, y: F64) -> tuple[float, float, int]:
    """(factor, Σ residual², index) of the row of `shapes` [K, N] that fits y [N] best."""
    x = shapes - shapes.mean(axis=1, keepdims=True)
    centred = y - y.mean()
    square, with_y = (x * x).sum(axis=1), (x * centred).sum(axis=1)
    gain = with_y**2 / np.maximum(square, 1e-300)
    best = int(np.argmax(gain))
    left = max(float((centred * centred).sum() - gain[best]), 0.0)
    return float(with_y[best] / square[best]), left, best


def _frozen_engine(view: View) -> Claim | None:
    """The engine no longer takes weights: k3 grows with what the trainer learns."""
    growth = _growth(view)
    if growth is None:
        return None
    most = 3.0 if growth.stuck else 1.5
    return Claim(
        cause="stale_weights",
        kind="tested",
        # versions that advance say that syncs arrive; a label may be wrong
        strength=min(growth.z / Z_EVIDENCE, most) * (ADVANCED if growth.advanced else 1.0),
        evidence=growth.words,
        estimate={"growth_per_step": round(growth.per_step, 4), "version_stuck": growth.stuck},
        k3_after=growth.least_k3,
        k3_from="history",
        group=_group_of(growth),
        separator="a checksum of the engine's weights before and after a sync",
    )


def _group_of(growth: Growth) -> tuple[str, ...]:
    """What else grows so: lost updates; with resets now and then also a cache that is kept."""
    lost = () if growth.stuck else ("update_lost_to_rounding",)
    kept = () if growth.fell_at is None else ("stale_prefix_cache",)
    return ("stale_weights", *lost, *kept) if lost or kept else ()


def _teeth(points: tuple[StepPoint, ...]) -> list[list[StepPoint]]:
    """The points between the steps at which k3 fell to less than half, when something was reset."""
    teeth: list[list[StepPoint]] = [[]]
    for point in points:
        if not point.k3:
            continue
        if teeth[-1] and point.k3 < (teeth[-1][-1].k3 or 0.0) / 2:
            teeth.append([])
        teeth[-1].append(point)
    return teeth


def _learned_direction(view: View) -> Claim | None:
    """p is above q where the advantage is positive: the trainer learned, the engine did not."""
    advantage, known = view.attribute("advantage")
    known = known & (view.column("n") > 0)
    if known.sum() < 16 or float(advantage[known].std()) == 0.0:
        return None
    gap = (view.column("d") / np.maximum(view.column("n"), 1.0))[known]
    x = advantage[known] - advantage[known].mean()
    square = float((x * x).sum())
    slope = float((x * gap).sum()) / square
    left = gap - gap.mean() - slope * x
    se = sqrt(float(((x * left) ** 2).sum())) / square
    z = slope / max(se, 1e-12)
    level = level_strength(view)
    if z < Z_EVIDENCE or level < 0.3:
        return None
    return Claim(
        cause="stale_weights",
        kind="tested",
        strength=min(z / Z_EVIDENCE, 0.7 + level, 3.0),
        evidence=(
            f"mean Δ of a sample rises by {slope:.3f} nats per unit of advantage (z {z:.1f}): the "
            f"trainer has learned what the engine does not know"
        ),
        estimate={"nats_per_advantage": round(slope, 4)},
        k3_after=view.floor,
        k3_from="level",
        separator="weight versions of both sides",
    )


def partial_weight_sync(view: View) -> Claim | None:
    """Some tensors are of another version: above the floor, everywhere, repeatable."""
    return _by_level(view, "partial_weight_sync")


def corrupt_weight_layout(view: View) -> Claim | None:
    """Tensors arrived in the wrong order or shape: nats of disagreement, confident ones too."""
    return _by_level(view, "corrupt_weight_layout")


def _by_level(view: View, cause: str) -> Claim | None:
    """An honest q, no structure, a level that numerics do not reach. The three are one group."""
    level = level_strength(view)
    honest = abs(view.rho_excess.z) < Z_EVIDENCE
    # a dishonest q is not what wrong weights give, but something must answer for a high level
    level *= 1.0 if honest else 0.8
    if level < 0.5:
        return None
    k3 = max(view.k3, 1e-12)
    return Claim(
        cause=cause,
        kind="set",
        strength=level * (1.0 if cause == _likeliest(view) else 0.85),
        evidence=(
            f"k3 {k3:.3g} is {k3 / view.floor:.0f} times the healthy floor, E[ρ] is "
            f"{abs(view.rho_excess.z):.1f} standard errors from 1, and neither position, padding "
            f"nor token history explains it"
        ),
        estimate={"k3_over_floor": round(k3 / view.floor, 2)},
        k3_after=view.floor,
        k3_from="level",
        group=SAME_WEIGHTS + NUMERIC_DOUBLES + (ROTARY if _may_grow(view) else ()),
        separator=SEPARATOR,
    )


def _may_grow(view: View) -> bool:
    """Does the growth with position leave room for a rotary fault?"""
    slope = view.position_slope
    return slope.value + 2.0 * slope.se > SLOPE and (view.token_share or 0.0) < OF_TOKENS


def _likeliest(view: View) -> str:
    """Which of the three, at better than even odds on lab cases; the group stands in any case.

    Nats of disagreement: a wrong layout. Otherwise by how much goes with the token id: much for
    an embedding, a head or late layers, little for one early layer, between for all of them.
    """
    if view.k3 > CORRUPT_K3:
        return "corrupt_weight_layout"
    share = view.token_share
    return "stale_weights" if share is not None and 0.026 < share < 0.055 else "partial_weight_sync"


def lora_not_applied(view: View) -> Claim | None:
    """q lies on the way from p to the reference: λ = 1 not applied, λ < 0 applied twice."""
    # At a healthy level q − p and ref − p may share no more than p's own noise.
    if view.total("ref_n") < 200 or level_strength(view) < RAISED:
        return None
    slope = view.ratio(view.column("ref_qp_pr"), view.column("ref_pr2"))
    d2 = view.total("d2")
    r2 = slope.value**2 * view.total("ref_pr2") / max(d2, 1e-300)
    if abs(slope.z) < 2 * Z_EVIDENCE or abs(slope.value) < 0.3 or r2 < 0.5:
        return None
    left = max(d2 - slope.value**2 * view.total("ref_pr2"), 0.0) / 2 / view.tokens
    how = "the engine runs without the adapter" if slope.value > 0 else "the adapter counts twice"
    # Old weights lie on the way from p to the start, too: part of the way, and known to be old.
    on_the_way = 0.0 < slope.value < WHOLE_WAY and _all_behind(view)
    return Claim(
        cause="lora_not_applied",
        kind="tested",
        strength=min(r2 / 0.5, 3.0) * (0.3 if on_the_way else 1.0),
        evidence=(
            f"q − p is {slope.value:.2f} ± {slope.se:.2f} times ref − p and that is {r2:.0%} of "
            f"Δ²: {how} (or still has the initial weights)"
        ),
        estimate={"lambda": round(slope.value, 3), "standard_error": round(slope.se, 4)},
        k3_after=left,
        explains=explained(view, left),
    )


def stale_prefix_cache(view: View) -> Claim | None:
    """Samples whose prompt came from the prefix cache are worse than those computed afresh."""
    cached, known = view.attribute("cached_tokens")
    known = known & (view.column("n") > 0)
    hit, miss = known & (cached > 0), known & (cached == 0)
    if hit.sum() < 3 or miss.sum() < 3:
        return _cached_across_a_sync(view, cached, known)
    gap, z = compare(view.noise_level, hit, miss)
    k3_miss = view.k3_of(miss)
    if z < 3.0 or gap < 0.2 or level_at(view, view.k3_of(hit)) < RAISED:
        return None
    return Claim(
        cause="stale_prefix_cache",
        kind="tested",
        # Under older weights prompts differ in how far they are off, cached or not.
        strength=min(z / Z_EVIDENCE, gap / 0.3, 3.0) * (0.3 if _all_behind(view) else 1.0),
        evidence=(
            f"{view.told(hit)} have cached prompt tokens and k3 {view.k3_of(hit) or 0:.2g}, the "
            f"{int(miss.sum())} without have {k3_miss or 0.0:.2g} (z {z:.1f})"
        ),
        estimate={"samples": int(hit.sum()), "log_ratio": round(gap, 3)},
        k3_after=k3_miss,
        explains=1.0 if k3_miss is None else explained(view, k3_miss),
        touched=None if hit.sum() > 0.9 * view.samples else hit,
    )


def _cached_across_a_sync(view: View, cached: F64, known: Mask) -> Claim | None:
    """All prompts came whole from the cache although the weights had just changed.

    The first answer to each prompt has to compute it anew after a flush; a system prompt that all
    share is cached soon, but not the rest.
    """
    length, has_length = view.attribute("prompt_length")
    long = known & has_length & (length > 2 * CACHE_BLOCK)
    prompts, _ = view.attribute("prompt_hash")
    different = len(np.unique(prompts[long]))
    whole = float((cached[long] > length[long] - 1 - CACHE_BLOCK).mean()) if long.any() else 0.0
    level = level_strength(view)
    if different < 3 or whole < ALL_CACHED or level < 0.5 or not _synced_without_flush(view):
        return None
    return Claim(
        cause="stale_prefix_cache",
        kind="declared",
        strength=min(level, 1.3),
        evidence=(
            f"the weights changed at this step and no cache was flushed, yet {whole:.0%} of the "
            f"samples over {different} prompts found their whole prompt in the cache"
        ),
        estimate={"samples": int(long.sum()), "cached": round(whole, 4)},
        k3_after=view.floor,
        k3_from="level",
        group=("stale_prefix_cache", *SAME_WEIGHTS),
        separator="one step with the prefix cache reset after the sync",
    )


def _synced_without_flush(view: View) -> bool:
    """Do the events of this step, or the one before, name a weight sync and no flush?"""
    now = view.context.step
    recent = {e.kind for e in view.context.events
              if now is not None and e.step is not None and now - 1 <= e.step <= now}  # fmt: skip
    return "weight_sync" in recent and "cache_flush" not in recent


def _all_behind(view: View) -> bool:
    """Whether every sample is known to be made by older weights than those that score it."""
    rollout, has_rollout = view.attribute("rollout_version")
    train, has_train = view.attribute("train_version")
    return bool((has_rollout & has_train & (train > rollout))[view.column("n") > 0].all())


def mixed_weight_versions(view: View) -> Claim | None:
    """Some engines, replicas or spans are of another version than the rest."""
    best = _by_span(view)
    for group in view.summary.rows.groups:
        claim = _odd_labels(view, group)
        if claim is not None and (best is None or claim.strength > best.strength):
            best = claim
    return best


def _by_span(view: View) -> Claim | None:
    """Tokens of one step were made by several versions inside samples; older ones are louder."""
    lags = view.summary.version_lag
    spans = {lag: row for lag, row in lags.items() if row[PROFILE["n"]] >= 200}
    _, has_version = view.attribute("rollout_version")
    if not view.whole or len(spans) < 2 or _one_version_each(view, len(spans), has_version):
        return None
    newest, oldest = min(spans), max(spans)
    mean = {lag: row[PROFILE["lr"]] / row[PROFILE["n"]] for lag, row in spans.items()}
    spread = {
        lag: (row[PROFILE["lr2"]] / row[PROFILE["n"]] - mean[lag] ** 2) / row[PROFILE["n"]]
        for lag, row in spans.items()
    }
    gap = float(mean[oldest] - mean[newest])
    z = gap / sqrt(SPAN_INFLATION * float(spread[oldest] + spread[newest]))
    if z < Z_EVIDENCE or gap < 0.3:
        return None
    k3 = {lag: float(row[PROFILE["k3"]] / row[PROFILE["n"]]) for lag, row in spans.items()}
    return Claim(
        cause="mixed_weight_versions",
        kind="tested",
        strength=min(z / Z_EVIDENCE, gap / 0.4, 3.0),
        evidence=(
            f"tokens made {oldest} versions ago have k3 {k3[oldest]:.2g}, those made {newest} "
            f"versions ago {k3[newest]:.2g} (z {z:.1f}): the weights changed inside samples"
        ),
        estimate={"k3_by_version_lag": {str(lag): round(k3[lag], 5) for lag in sorted(k3)}},
        k3_after=k3[newest],
        explains=explained(view, k3[newest]),
    )


def _one_version_each(view: View, lags: int, known: Mask) -> bool:
    """Do the samples' own versions give all the lags there are? Then nothing changed inside."""
    rollout, _ = view.attribute("rollout_version")
    train, _ = view.attribute("train_version")
    return bool(known.any()) and len(np.unique((train - rollout)[known])) >= lags


def _odd_labels(view: View, group: str) -> Claim | None:
    """The label whose samples are loudest, against all others."""
    names, codes = view.labels(group)
    known = (view.column("n") > 0) & (codes != (names.index("") if "" in names else -1))
    distinct = sorted(np.flatnonzero(np.bincount(codes[known], minlength=1)), key=names.__getitem__)
    if not 2 <= len(distinct) <= 256:
        return None
    level = view.noise_level
    median = {code: float(np.median(level[known & (codes == code)])) for code in distinct}
    order = sorted(distinct, key=lambda code: -median[code])
    found = _before_widest_gap([median[code] for code in order])
    odd = [names[code] for code in order[:found]]
    rows = known & np.isin(codes, order[:found])
    rest = known & ~rows
    gap, z = max(
        (compare(measure, rows, rest) for measure in (level, view.rms_level)), key=lambda c: c[1]
    )
    least = 0.4 if level_at(view, view.k3_of(rest)) < 1.0 else 0.25  # other faults blur it
    if z < Z_EVIDENCE or gap < least or level_at(view, view.k3_of(rows)) < RAISED:
        return None
    k3_rest = view.k3_of(rest)
    return Claim(
        cause="mixed_weight_versions",
        kind="tested",
        strength=min(z / Z_EVIDENCE, gap / least, 3.0),
        evidence=(
            f"{group} {', '.join(odd)}: k3 {view.k3_of(rows) or 0.0:.2g} against "
            f"{k3_rest or 0.0:.2g} on the other {len(distinct) - len(odd)} (z {z:.1f})"
        ),
        estimate={"group": group, "labels": odd, "samples": int(rows.sum())},
        k3_after=k3_rest,
        explains=1.0 if k3_rest is None else explained(view, k3_rest),
        touched=rows,
    )


def unlabelled_part(view: View, loud: Mask) -> Claim:
    """A clearly louder part of the samples that nothing but other weights explains; no label."""
    rest = ~loud & (view.column("n") > 0)
    gap, z = max((compare(x, loud, rest) for x in (view.noise_level, view.rms_level)),
                 key=lambda found: found[1])  # fmt: skip
    k3_rest = view.k3_of(~loud)
    return Claim(
        cause="mixed_weight_versions",
        kind="tested",
        strength=min(z / Z_EVIDENCE, 1.0),  # padding or a cache may be behind it as well
        evidence=(
            f"{int(loud.sum())} of {view.samples} samples are {np.exp(gap):.1f} times as loud as "
            f"the others (z {z:.1f}), k3 {view.k3_of(loud) or 0.0:.2g} against "
            f"{k3_rest or 0.0:.2g}: two populations, and no label says whose"
        ),
        estimate={"samples": int(loud.sum())},
        k3_after=k3_rest,
        explains=1.0 if k3_rest is None else explained(view, k3_rest),
        group=("mixed_weight_versions", "stale_prefix_cache", *SAME_WEIGHTS),
        separator="an engine or replica label, versions and cached_tokens per sample",
        touched=loud,
    )


def _before_widest_gap(medians: list[float]) -> int:
    """How many of the falling `medians` lie before the widest gap, at most half of them."""
    gaps = [a - b for a, b in pairwise(medians)]
    return int(np.argmax(gaps[: max(len(medians) // 2, 1)])) + 1


def update_lost_to_rounding(view: View) -> Claim | None:
    """An fp32 master moves by less than the engine's bf16 step: updates never arrive."""
    rollout, train = view.context.rollout or {}, view.context.train or {}
    master = str(train.get("master_dtype", train.get("dtype", "")))
    coarse = str(rollout.get("dtype", "")).lower() in ("bfloat16", "bf16")
    growth = _growth(view)
    if growth is None or growth.stuck or not coarse or "32" not in master:
        return None
    return Claim(
        cause="update_lost_to_rounding",
        kind="tested" if growth.advanced else "declared",
        strength=min(growth.z / Z_EVIDENCE, 1.5),
        evidence=(
            f"{growth.words}; the trainer keeps {master} weights and the engine bfloat16, whose "
            f"steps are wider than small updates"
        ),
        k3_after=growth.least_k3,
        k3_from="history",
        group=("update_lost_to_rounding", "stale_weights"),
        separator="count of bf16 weights that changed in the last sync",
    )


DIAGNOSTICS: tuple[Diagnostic, ...] = (
    stale_weights,
    partial_weight_sync,
    corrupt_weight_layout,
    lora_not_applied,
    stale_prefix_cache,
    mixed_weight_versions,
    update_lost_to_rounding,
)
