"""Temperature from pairs, and exactly where the trainer sent log-sum-exp at other temperatures.

q read as p at another temperature: q = βp − Λ(β), Λ the log of Σ p^β, one number per context.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log, sqrt

import numpy as np

from twinscope_service.diagnose.view import View
from twinscope_service.join.gather import train_temperature
from twinscope_service.measure.records import BOUND_TEMPERATURES, F64

Z_EVIDENCE = 5.0
FAR_FROM_ONE = 0.2  # |ln ratio| beyond which the other side's identity must break clearly
MANY_SAMPLES = 25  # from here on
PRIOR_TOKENS = 10.0  # weight of the pooled mean of ρ in a sample's own
TWO_SIDED = 0.25  # least share of tokens with q < p that a temperature above 1 has
NODES = 6  # log-sum-exp nodes used around the smallest k3
LEAST_FREEDOM = 12  # first tokens beyond one per prompt: a third off at most, on lab cases
FIRST_APART = 8.0  # times the k3 of other tokens
LEAST_OFF = 0.05  # of β from 1, there
SURE_OF_ONE = 0.02  # standard error of β there from which "not off" means no temperature
SAME_FACTOR = 0.15  # |ln| by which β of the shared contexts may differ from that of all tokens
WIDEST_STEP = 0.3  # of ln β between nodes: wider, and pairs alone are as good


@dataclass(frozen=True)
class TemperatureFit:
    """`ratio` = T inside the engine's q / T inside the trainer's p."""

    ratio: float
    se: float
    fit: float  # |weighted correlation| of q − p and the midpoint
    honest: str  # the side whose number is the sampled density: "rollout" or "train"
    shared: bool = False  # from contexts that answers share: lost mass does not bias it


@dataclass(frozen=True)
class ExactTemperature:
    """From logsumexp_T: the `ratio` at which p would fit q, and the k3 that would be left."""

    ratio: float
    k3: float


def fit_temperature(view: View) -> TemperatureFit | None:
    """The better of the two readings: tokens drawn from q's law, or from p's; None: neither."""
    # E[ρ] = 1 says that q is honest, E[1/ρ] = 1 that p is; the smaller violation decides.
    q_off, p_off = abs(view.rho_excess.z), abs(view.inverse_excess.z)
    fit = _fit_one(view, "rollout" if q_off <= p_off else "train")
    if view.rho_excess.z < -Z_EVIDENCE:
        return _fit_under_truncation(view)
    if fit is None:
        return None
    violated = view.inverse_excess.z if fit.honest == "rollout" else view.rho_excess.z
    # a temperature far from 1 breaks the other side's identity by many standard errors, but where
    # few tokens carry most of it, not by more than the root of the number of samples
    far = abs(log(fit.ratio)) > FAR_FROM_ONE and view.samples >= MANY_SAMPLES
    least = 5.0 if far else 3.0
    return fit if violated > least else None


def _fit_under_truncation(view: View) -> TemperatureFit | None:
    """A temperature besides lost mass, which alone looks like T > 1 with q >= p throughout.

    Contexts that answers share tell: both are constants there. Without them the sign of the fit
    tells below 1; above 1 it takes tokens on both sides.
    """
    shared = fit_shared_contexts(view, "rollout")
    if shared is not None and shared.beta > 0.0:
        ratio, off = 1.0 / shared.beta, abs(shared.beta - 1.0)
        if off > max(Z_EVIDENCE * shared.se, LEAST_OFF):
            return TemperatureFit(ratio, shared.se * ratio**2, 1.0, "rollout", shared=True)
        if shared.se < SURE_OF_ONE:
            return None
    fit = _fit_one(view, "rollout")
    if fit is None or (fit.ratio > 1.0 and view.mean("q_below") < TWO_SIDED):
        return None
    return fit


def _fit_one(view: View, honest: str) -> TemperatureFit | None:
    """Moment estimator of β with q = βp − Λ, free of Λ at any temperature.

    Under the law that drew the tokens, 1 − ρ (or 1 − 1/ρ) has mean 0 in every context, so the
    context's Λ drops out of Σ(1−ρ)(q−p) = (β−1) Σ(1−ρ)p. ρ is divided by its own mean over the
    sample (1 in expectation): that takes most of the variance out, and the mass that a truncation
    lost with it.
    """
    rho, with_d, with_x, x, sign, weight = (
        ("rho_m1", "rho_d", "rho_p", "p", 1.0, "wp")
        if honest == "rollout"
        else ("inv_rho_m1", "inv_d", "inv_q", "q", -1.0, "wm")
    )
    n, excess = view.column("n"), view.column(rho)
    pooled = excess.sum() / max(n.sum(), 1.0)
    own = 1.0 + (excess + PRIOR_TOKENS * pooled) / (n + PRIOR_TOKENS)
    own = np.maximum(own, 0.05)
    d = sign * view.column("d")
    top = (sign * view.column(with_d) + d) / own - d
    bottom = view.column(x) - (view.column(with_x) + view.column(x)) / own
    slope = view.ratio(top, bottom)
    beta = 1.0 + slope.value
    fit = sign * _midpoint_correlation(view, weight)
    if not 0.3 < beta < 3.3 or not isfinite(slope.se) or (beta > 1.0) != (fit > 0.0):
        return None
    ratio = 1.0 / beta if honest == "rollout" else beta
    se = slope.se / beta**2 if honest == "rollout" else slope.se
    return TemperatureFit(ratio, se, abs(fit), honest)


def _midpoint_correlation(view: View, w: str) -> float:
    """Correlation of q − p and m = (q+p)/2 under weights that move draws to the midpoint law."""
    total = max(view.total(w), 1e-300)
    d, m = view.total(f"{w}_d") / total, view.total(f"{w}_m") / total
    var_d = view.total(f"{w}_dd") / total - d * d
    var_m = view.total(f"{w}_mm") / total - m * m
    covariance = view.total(f"{w}_dm") / total - d * m
    return -covariance / sqrt(var_d * var_m) if var_d * var_m > 1e-18 else 0.0


def bound_kept(view: View, fit: TemperatureFit) -> float:
    """1 if the hard bound holds (T < 1: q >= p/T; T > 1: q <= p/T), towards 0 as tokens break it.

    Counted at the nearest tabulated temperature beyond the estimate; only for an honest q.
    """
    if not view.whole or fit.honest != "rollout" or fit.shared:
        return 1.0  # a mass lost besides lifts q above the bound
    low = fit.ratio < 1.0
    beyond = [
        (abs(t - fit.ratio), count)
        for t, count in zip(BOUND_TEMPERATURES, view.summary.bounds.tolist(), strict=True)
        if (t < 1.0) == low and (t <= fit.ratio * 1.03 if low else t >= fit.ratio * 0.97)
    ]
    if not beyond:
        return 1.0
    broken = min(beyond)[1] / max(view.tokens, 1.0)
    return 1.0 if broken < 0.02 else max(1.0 - 10.0 * (broken - 0.02), 0.2)


def temperature_from_logsumexp(view: View) -> ExactTemperature | None:
    """Where the k3 of q against p(T) is smallest; None without dense enough logsumexp_T.

    k3 is smooth in ln β, β = 1/T: a polynomial through the nodes around the smallest gives T to
    0.1 % and the k3 there; a node within 1 % of it is taken as it stands.
    """
    if not view.whole:
        return None
    rows = view.summary.temperature.items()
    nodes = sorted((1.0 / t, float(row[1] / row[0])) for t, row in rows if row[0] > 0)
    if len(nodes) < 4:
        return None
    best = min(range(len(nodes)), key=lambda i: nodes[i][1])
    start = min(max(best - NODES // 2, 0), max(len(nodes) - NODES, 0))
    near = nodes[start : start + NODES]
    steps = np.diff(np.log([beta for beta, _ in nodes]))
    if steps[max(best - 1, 0) : best + 1].max() > WIDEST_STEP:
        return None
    beta, k3 = _smallest(near)
    closest = min(nodes, key=lambda node: abs(log(node[0] / beta)))
    if abs(log(closest[0] / beta)) < 0.01:
        k3 = closest[1]
    own = train_temperature(view.context.train, view.context.sampling)
    return ExactTemperature(ratio=1.0 / beta / own, k3=k3)


def _smallest(points: list[tuple[float, float]]) -> tuple[float, float]:
    """(β, k3) at the minimum of the polynomial in ln β, a little beyond `points` at most."""
    x = np.log([beta for beta, _ in points])
    y = np.array([k3 for _, k3 in points])
    centre, reach = x.mean(), (x[-1] - x[0]) / 2
    coefficients = np.polyfit((x - centre) / reach, y, len(points) - 1)
    grid = np.linspace(-1.1, 1.1, 4401)
    values = np.polyval(coefficients, grid)
    best = int(values.argmin())
    return float(np.exp(centre + reach * grid[best])), float(max(values[best], 0.0))


@dataclass(frozen=True)
class SharedFit:
    """q = βp + one constant per context, over first tokens of answers to one prompt."""

    beta: float  # of the sampler's log-probs on the other side's
    se: float
    noise: float  # nats², variance of the noise on a token's logit


def fit_shared_contexts(view: View, honest: str) -> SharedFit | None:
    """Regression inside contexts, where Λ and a lost mass are constants; None: too few tokens.

    Between different tokens of one context q − βp differs by noise alone.
    """
    if _first_tokens_are_apart(view):
        return None
    sampler, other = ("q", "p") if honest == "rollout" else ("p", "q")
    x, y, contexts = _shared_contexts(view, other, sampler)
    freedom, square = len(x) - contexts - 1, float((x * x).sum())
    if freedom < LEAST_FREEDOM or square == 0.0:
        return None
    beta = float((x * y).sum()) / square
    left = y - beta * x
    noise = float((left * left).sum()) / freedom
    return SharedFit(beta, sqrt(noise / square), noise)


def _first_tokens_are_apart(view: View) -> bool:
    """Do they disagree far more than the rest? Then something is wrong with them alone."""
    if not view.whole:
        return False
    n, k3 = (float(view.profile("first", name)[0]) for name in ("n", "k3"))
    others = (view.total("k3") - k3) / max(view.tokens - n, 1.0)
    return k3 / max(n, 1.0) > FIRST_APART * others


def k3_in_shared_contexts(view: View, fit: TemperatureFit) -> float | None:
    """k3 that would be left at that temperature, from answers to one prompt; None: too few.

    A token of probability π feels the part 1 − π of the noise on its logit, of variance σ²:
    k3 = σ²/2 · mean (1 − π)².
    """
    shared = fit_shared_contexts(view, fit.honest)
    wanted = 1.0 / fit.ratio if fit.honest == "rollout" else fit.ratio
    if shared is None or shared.beta <= 0.0 or abs(log(shared.beta / wanted)) > SAME_FACTOR:
        return None
    sampler = "q" if fit.honest == "rollout" else "p"
    uncertain = 1.0 - 2.0 * view.mean(f"e{sampler}") + view.mean(f"e{sampler}{sampler}")
    return shared.noise * uncertain / 2.0


def _shared_contexts(view: View, x: str, y: str) -> tuple[F64, F64, int]:
    """Log-probs `x` and `y` of first tokens about their prompt's mean, and the number of prompts.

    Each token counts once per prompt: the same one again has the same noise.
    """
    prompts, known = view.attribute("prompt_hash")
    tokens, has_token = view.attribute("first_hash")
    first, has_first = view.attribute(f"head_{x}0")
    second, _ = view.attribute(f"head_{y}0")
    rows = np.flatnonzero(known & has_token & has_first)
    rows = rows[np.unique(tokens[rows], return_index=True)[1]]
    _, context, count = np.unique(prompts[rows], return_inverse=True, return_counts=True)

    def inside(values: F64) -> F64:
        return values - (np.bincount(context, values) / count)[context]

    return inside(first[rows]), inside(second[rows]), len(count)
