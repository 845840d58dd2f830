"""Numeric causes: the same weights and tokens, another arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot, log, log10, sqrt
from typing import Any

import numpy as np

from twinscope_service.diagnose.alignment import spearman
from twinscope_service.diagnose.calibration import EVEN_HINT, HINT_SLOPE
from twinscope_service.diagnose.claim import Claim, Diagnostic
from twinscope_service.diagnose.level import level_strength, model_class, usual_k3
from twinscope_service.diagnose.mixture import loud_samples
from twinscope_service.diagnose.view import Estimate, View

Z_EVIDENCE = 5.0
Z_RAISED = 3.0  # where the level is above what healthy pairs show, however little
RAISED_FROM, RAISED_TO = 0.4, 0.5  # levels between which the one goes over into the other
# Exponents (mean, spread) that rotary faults and wrong weights show on lab cases, and the odds
# before looking: where something is wrong for sure, the question is only which of the two.
ROTARY_SLOPES, WEIGHT_SLOPES = (0.10, 0.035), (-0.03, 0.045)
WEIGHTS_TO_ROTARY = 4.0
# k3 up to which a declared difference of that key is reason enough; other keys: usual_k3
MOST_K3 = {"logits_dtype": 0.03, "head_dtype": 0.03, "rms_norm_eps": 0.05, "quantization": 0.2,
           "kv_cache_dtype": 0.2}  # fmt: skip
BEYOND = 2.3  # strength that a decade of k3 beyond it takes away
LEAST_DECLARED = 0.4
ENOUGH_SAMPLES = 16  # a clustered error over fewer is not to be weighed with
OF_TOKENS = 0.06  # share of Var Δ by token id that only an embedding or head gives
LEAST_USUAL = -0.12  # the lowest exponent of a baseline that is taken off
FALLING = -0.03  # below, nothing grows, whatever it did before
SLOPE = 0.06  # least growth of ln r per unit of ln(1 + t) that a rotary fault shows
NOT_SEPARABLE = (
    "norm_or_precision_mismatch",
    "low_precision_logits",
    "quantized_rollout",
    "moe_router_flips",
)


def rope_mismatch(view: View) -> Claim | None:
    """Disagreement grows with position inside the samples: rotary angles differ."""
    slope, level = view.position_slope, level_strength(view)
    usual = _usual_slope(view)
    excess, se = slope.value - usual.value, hypot(slope.se, usual.se)
    enough = view.samples >= ENOUGH_SAMPLES
    raised = min(max((level - RAISED_FROM) / (RAISED_TO - RAISED_FROM), 0.0), float(enough))
    z_needed = Z_EVIDENCE + raised * (Z_RAISED - Z_EVIDENCE)
    strength = min(excess / SLOPE, excess / max(se, 1e-9) / z_needed, 3.0)
    if level >= 1.0 and enough:
        strength = max(strength, _rotary_rather_than_weights(excess, se))
    if slope.value < FALLING:
        strength = 0.0
    prints = _differences(view, ("rope_theta", "rope_scaling", "rope_parameters"))
    if prints and level > 0.3:
        strength = max(strength, 1.5)
    elif _differences(view, ("quantization", "kv_cache_dtype")):
        strength *= 0.6  # a coarse KV cache grows with position as well, and is declared
    elif (share := view.token_share or 0.0) > OF_TOKENS:
        strength *= 0.6 * OF_TOKENS / share  # angles do not know token ids, embeddings do
    if strength < 0.6 or view.correlation < 0.5 or _quiet(view):
        return None
    return Claim(
        cause="rope_mismatch",
        kind="tested",
        strength=strength,
        evidence=(
            f"normalised disagreement grows as position to the power {slope.value:.3f} ± "
            f"{slope.se:.3f} inside the samples (z {excess / max(se, 1e-9):.1f}"
            + (f" above the {usual.value:.3f} of before)" if usual.se > 0.0 else ")")
            + _stated(prints)
        ),
        estimate={
            "exponent": round(slope.value, 4),
            "standard_error": round(slope.se, 4),
            **prints,
        },
        k3_after=view.floor,
        k3_from="level",
        explains=0.9,
        group=() if prints else ("rope_mismatch", "quantized_rollout"),
        separator="rope parameters and kv_cache_dtype of both fingerprints",
    )


def _rotary_rather_than_weights(slope: float, se: float) -> float:
    """Strength whose vote among rivals is the posterior odds of a rotary fault by its slope."""
    if not np.isfinite(se):
        return 0.0
    log_odds = -log(WEIGHTS_TO_ROTARY)
    for sign, (mean, spread) in ((1.0, ROTARY_SLOPES), (-1.0, WEIGHT_SLOPES)):
        sigma = sqrt(spread**2 + se**2)
        # a steeper growth than any seen is not less of a rotary fault
        away = min(slope - mean, 0.0) if sign > 0.0 else slope - mean
        log_odds += sign * (-((away / sigma) ** 2) / 2.0 - log(sigma))
    return min(EVEN_HINT + log_odds / HINT_SLOPE, 2.0)


def _usual_slope(view: View) -> Estimate:
    """Of the run's healthy baseline; 0 exactly without one.

    What is written moves the exponent: answers that grow surer towards their end pull it down, in
    healthy steps as in faulty ones. But a policy changes, so a steep fall is not taken over whole.
    """
    history = view.history
    if history is None or history.baseline is None:
        return Estimate(0.0, 0.0)
    found = View(history.baseline, view.context).position_slope
    return Estimate(max(found.value, LEAST_USUAL), found.se)


def _quiet(view: View) -> bool:
    """Below any level worth a word, whatever its shape."""
    return view.k3 < 0.5 * view.floor


def train_mode_dropout(view: View) -> Claim | None:
    """Equal context and token, different p: the trainer's forward is not repeatable.

    Samples of one prompt whose first response token is equal were scored in identical contexts;
    the engine's q agrees to the last bit, so p should.
    """
    if loud_samples(view) is not None:
        return None  # two kinds of samples differ without any randomness; each is looked at alone
    spread = first_token_spread(view)
    if spread is None:
        return _dropout_by_shape(view)
    p_spread, q_spread, groups = spread
    if view.correlation < 0.6:
        return None
    level = level_strength(view)
    typical = sqrt(max(view.mean("d2"), 0.0))
    ratio = p_spread / max(typical, 1e-9)
    strength = min(level, ratio / 0.25, 0.7 + 0.2 * groups, 3.0)
    if strength < 0.6 or p_spread < 5 * q_spread or p_spread < 0.02 or _padding_explains(view):
        return None
    return Claim(
        cause="train_mode_dropout",
        kind="tested",
        strength=strength,
        evidence=(
            f"in {groups} groups of samples with equal prompt and equal first token p differs by "
            f"{p_spread:.2f} nats (rms) and q by {q_spread:.2g}: the trainer's pass does not repeat"
        ),
        estimate={"p_spread": round(p_spread, 4), "q_spread": round(q_spread, 5), "groups": groups},
        k3_after=view.floor,
        k3_from="level",
        explains=0.95,
        separator="score 1 000 tokens twice in the trainer",
    )


def _dropout_by_shape(view: View) -> Claim | None:
    """Without equal contexts: loud noise that no token id explains and that fades with position."""
    share, slope = view.token_share, view.position_slope
    loud = view.k3 > 0.05 and view.correlation > 0.6
    if not loud or share is None or share > 0.026 or slope.value > -0.05:
        return None
    return Claim(
        cause="train_mode_dropout",
        kind="tested",
        strength=0.85,
        evidence=(
            f"k3 {view.k3:.2g}, only {max(share, 0.0):.1%} of it goes with the token id, and less "
            f"at later positions (exponent {slope.value:.2f}): random rather than wrong weights"
        ),
        estimate={"token_share": round(share, 4), "exponent": round(slope.value, 4)},
        k3_after=view.floor,
        k3_from="level",
        group=("train_mode_dropout", "partial_weight_sync", "corrupt_weight_layout"),
        separator="score 1 000 tokens twice in the trainer",
    )


def first_token_spread(view: View) -> tuple[float, float, int] | None:
    """(rms spread of p, of q, groups) in groups of equal prompt and first token; None: none.

    None too where many p of one group are equal to the last bit: a pass that repeats for some
    samples and not for others has two kinds of samples, not dropout.
    """
    hashes, known = view.attribute("first_hash")
    q, has = view.attribute("head_q0")
    p, _ = view.attribute("head_p0")
    rows = np.flatnonzero(known & has)
    if len(rows) < 2:
        return None
    _, inverse, counts = np.unique(hashes[rows], return_inverse=True, return_counts=True)
    several = counts[inverse] > 1
    free = int(several.sum() - (counts > 1).sum())
    if free < 1:
        return None

    order = np.lexsort((p[rows], inverse))
    same = np.diff(inverse[order]) == 0
    if np.mean(np.diff(p[rows][order])[same] == 0.0) > 0.2:
        return None  # repeats exactly in part: samples differ, not passes

    def spread(x: Any) -> float:
        means = np.bincount(inverse, x) / counts
        left = (x - means[inverse])[several]
        return sqrt(float((left * left).sum()) / free)

    return spread(p[rows]), spread(q[rows]), int((counts > 1).sum())


def _padding_explains(view: View) -> bool:
    """Is the spread a matter of padding? Then attended pads, not dropout, make p differ."""
    pad, known = view.attribute("pad_left")
    if known.sum() < 8:
        return False
    return spearman(pad[known], view.noise_level[known]) > 0.5


def moe_router_flips(view: View) -> Claim | None:
    """Experts flip between the sides: a few tokens carry the mismatch, most are quiet."""
    if model_class(view) != "moe":
        return None
    tail = sqrt(max(view.mean("d2"), 0.0)) / max(view.mean("abs"), 1e-12)
    strength = min(level_strength(view), max((tail - 1.25) / 0.75, 0.0), 2.0)
    if strength < 0.4:
        return None
    return Claim(
        cause="moe_router_flips",
        kind="declared",
        strength=strength,
        evidence=(
            f"a mixture of experts with rms Δ {tail:.2f} times mean |Δ| (1.25 for Gaussian noise, "
            f"1.5 for dense bf16): few tokens carry the mismatch"
        ),
        estimate={"rms_over_mean_abs": round(tail, 3)},
        k3_after=view.floor,
        k3_from="level",
        explains=0.6,
        separator="overlap of routed experts of both sides (router replay on and off)",
    )


def quantized_rollout(view: View) -> Claim | None:
    """The engine runs quantised weights or KV cache and the trainer does not."""
    prints = _differences(view, ("quantization", "kv_cache_dtype"))
    return _declared(view, "quantized_rollout", prints)


def low_precision_logits(view: View) -> Claim | None:
    """The output head or the log-softmax runs in half precision on one side."""
    prints = _differences(view, ("logits_dtype", "head_dtype"))
    return _declared(view, "low_precision_logits", prints)


def norm_or_precision_mismatch(view: View) -> Claim | None:
    """Precision, norm epsilon or kernels differ: honest q, flat in position, no structure."""
    keys = ("rms_norm_eps", "dtype", "attention_backend", "tp", "pp", "ep")
    declared = _declared(view, "norm_or_precision_mismatch", _differences(view, keys))
    if declared is not None:
        return declared
    level = level_strength(view)
    if level < 0.6 or abs(view.rho_excess.z) > Z_EVIDENCE or view.correlation < 0.9:
        return None
    return Claim(
        cause="norm_or_precision_mismatch",
        kind="set",
        strength=min(level, 1.6 - 0.6 * min(level, 2.6)) if level > 1 else level * 0.9,
        evidence=(
            f"k3 {view.k3:.3g} is {view.k3 / view.floor:.1f} times the healthy floor without any "
            f"structure in position, padding, token or sample"
        ),
        estimate={"k3_over_floor": round(view.k3 / view.floor, 2)},
        k3_after=view.floor,
        k3_from="level",
        group=NOT_SEPARABLE,
        separator="the fingerprints of both sides; scoring the same tokens twice",
    )


def _declared(view: View, cause: str, prints: dict[str, Any]) -> Claim | None:
    """A fingerprint difference explains a raised level; at the floor it is only a note.

    And only as much as such a difference gives: a bfloat16 engine beside a float32 trainer is the
    usual pair, and healthy; it is no reason for ten times the healthy level.
    """
    level = level_strength(view)
    if not prints or level < 0.6:
        return None
    most = max(MOST_K3.get(key, usual_k3(view)) for key in prints)
    strength = min(level, 1.6) - BEYOND * max(log10(view.k3 / most), 0.0)
    if strength < LEAST_DECLARED:
        return None
    return Claim(
        cause=cause,
        kind="declared",
        strength=strength,
        evidence=f"k3 {view.k3:.3g} ({view.k3 / view.floor:.1f} times the floor)" + _stated(prints),
        estimate=prints,
        k3_after=view.floor,
        k3_from="level",
        explains=0.6,
        separator="equal settings on both sides for one step",
    )


def _differences(view: View, keys: tuple[str, ...]) -> dict[str, Any]:
    """Keys on which both fingerprints speak and disagree; or one names a quantisation."""
    rollout, train = view.context.rollout or {}, view.context.train or {}
    found: dict[str, Any] = {}
    for key in keys:
        a, b = rollout.get(key), train.get(key)
        differ = a is not None and b is not None and _plain(a) != _plain(b)
        alone = key == "quantization" and a not in (None, "none", "") and b is None
        if differ or alone:
            found[key] = {"rollout": a, "train": b}
    return found


def _plain(value: Any) -> Any:
    """Spellings of one setting compare equal."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    text = str(value).lower().removeprefix("torch.")
    return {"bf16": "bfloat16", "fp32": "float32", "fp16": "float16", "half": "float16"}.get(
        text, text
    )


def _stated(prints: dict[str, Any]) -> str:
    """The fingerprint differences as words, empty when there are none."""
    said = [
        f"{k} is {v['rollout']} in the engine and {v['train']} in the trainer"
        for k, v in prints.items()
    ]
    return "; " + ", ".join(said) if said else ""


DIAGNOSTICS: tuple[Diagnostic, ...] = (
    rope_mismatch,
    train_mode_dropout,
    moe_router_flips,
    quantized_rollout,
    low_precision_logits,
    norm_or_precision_mismatch,
)
