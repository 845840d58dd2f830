"""From a Summary to named metrics: `derive(summary, options)`.

Every metric is a float, or None where it is unknown: no counted token, a missing side, a variance
of zero. Never NaN, never 0 for "nothing seen". Names are those of `twinscope analyze --json`; the
names that frameworks log are in aliases.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from twinscope_service.measure.aliases import ALIASES
from twinscope_service.measure.records import (
    ATTRIBUTE,
    COLUMN,
    COVERAGE,
    EXTREME,
    F64,
    HIST_BASE,
    HIST_BUCKETS,
    SIDE_COLUMN,
    MeasureOptions,
    SampleRows,
    Summary,
)

Metrics = dict[str, float | None]
_FLAT = 1e-14  # a variance below this share of the mean square is rounding, not variance


def derive(summary: Summary, options: MeasureOptions) -> Metrics:
    """Every metric of `summary`, the frameworks' names included; `options` as it was measured."""
    found: Metrics = {
        **token_metrics(summary),
        **quantile_metrics(summary),
        **probability_metrics(summary),
        **sequence_metrics(summary.rows, clamp=options.clamp),
        **error_metrics(summary.rows),
        **entropy_metrics(summary),
        **policy_ref_metrics(summary),
        **sample_metrics(summary.rows),
    }
    found |= {alias.name: found[alias.metric] for alias in ALIASES}
    return {name: _finite(value) for name, value in found.items()}


def coverage_block(summary: Summary) -> dict[str, int]:
    """What became of every received token, by name."""
    return {name: int(summary.coverage[i]) for i, name in enumerate(COVERAGE)}


def token_metrics(summary: Summary) -> Metrics:
    """Means over counted tokens. k1, |Δ| and the extremes are unclamped, the others clamped.

    Identity, over the clamped Δ: k3_mean + delta_clamped_mean = rho_mean − 1.
    """
    mean = _Means(summary.sums, COLUMN, "n")
    k1 = _times(mean("d_raw"), -1.0)
    rho, rho2 = _plus(mean("rho_m1"), 1.0), _plus(mean("rho2_m1"), 1.0)
    return {
        "k1_mean": k1,
        "k2_mean": _times(mean("d2"), 0.5),
        "k3_mean": mean("k3"),
        "rollout_train_kl": mean("k3"),
        "k3_reverse_mean": _plus(mean("inv_rho_m1"), mean("d")),
        "abs_mean": mean("abs_raw"),
        "abs_std": _sample_std(mean.count, mean("abs"), mean("d2")),
        "abs_max": _extreme(summary, "abs"),
        "delta_mean": mean("d_raw"),
        "delta_clamped_mean": mean("d"),
        "delta_max": _extreme(summary, "d"),
        "delta_min": _times(_extreme(summary, "minus_d"), -1.0),
        "rho_mean": rho,
        "inv_rho_mean": _plus(mean("inv_rho_m1"), 1.0),
        "mult_prob_error": _plus(mean("mult_m1"), 1.0),
        "chi2": mean("rho2_m1"),
        "ess_ratio": None if rho is None or not rho2 else rho * rho / rho2,
        "clip_fraction": mean("out_clip"),
        "outside_08_12": mean("out_08_12"),
        "outside_09_11": mean("out_09_11"),
        "confident_disagreement_fraction": mean("confident_disagreement"),
        "delta_zero_fraction": mean("zero_d"),
        "rollout_logprob_mean": mean("q"),
        "train_logprob_mean": mean("p"),
    }


def quantile_metrics(summary: Summary) -> Metrics:
    """Quantiles of |Δ|, unclamped, each within 1 % of the true one (above 1e-12 nats)."""
    levels = {"abs_p50": 0.5, "abs_p90": 0.9, "abs_p99": 0.99, "abs_p999": 0.999}
    return {name: abs_quantile(summary, level) for name, level in levels.items()}


def abs_quantile(summary: Summary, level: float) -> float | None:
    """The smallest |Δ| that at least a share `level` of the counted tokens does not exceed.

    Read from the histogram: the middle of the bucket, so the relative error is below 0.8 %.
    """
    count = int(summary.coverage[COVERAGE.index("counted")])
    if not count:
        return None
    zeros = int(summary.coverage[COVERAGE.index("delta_zero")])
    rank = max(math.ceil(level * count), 1)
    if rank <= zeros:
        return 0.0
    reached = zeros + np.cumsum(summary.histogram.sum(axis=0))
    middle = bucket_middles()[int(np.searchsorted(reached, rank))]
    return float(min(middle, summary.extremes[EXTREME["abs"]]))


def bucket_middles() -> F64:
    """The |Δ| in the middle of every histogram bucket, [HIST_BUCKETS], nats."""
    edges = (np.arange(HIST_BUCKETS + 1, dtype=np.uint32) + HIST_BASE) << 17
    values = edges.astype(np.uint32).view(np.float32).astype(np.float64)
    return (values[:-1] + values[1:]) / 2


def probability_metrics(summary: Summary) -> Metrics:
    """|e^p − e^q| and how p and q go together, as probabilities and as log-probs."""
    mean = _Means(summary.sums, COLUMN, "n")
    eq, ep, cross = mean("eq"), mean("ep"), mean("eqp")
    eqq, epp = mean("eqq"), mean("epp")
    square = None if eqq is None or epp is None or cross is None else max(eqq + epp - 2 * cross, 0)
    slope = _slope(mean("q"), mean("p"), mean("qq"), mean("qp"))
    return {
        "prob_diff_mean": mean("prob_abs"),
        "prob_diff_max": _extreme(summary, "prob_abs"),
        "prob_diff_std": _sample_std(mean.count, mean("prob_abs"), square),
        "pearson_prob": _pearson(eq, ep, eqq, epp, cross),
        "pearson_logprob": _pearson(mean("q"), mean("p"), mean("qq"), mean("pp"), mean("qp")),
        "slope_p_on_q": slope,
        "intercept_p_on_q": _minus(mean("p"), None if slope is None else slope * (mean("q") or 0)),
    }


def sequence_metrics(rows: SampleRows, *, clamp: float) -> Metrics:
    """Per sample first, then the plain mean over the samples that have a counted token.

    A sequence's ρ is e^{ΣΔ} (its sum clamped like a token's Δ), its perplexity e^{−mean log-prob}.
    """
    sums = rows.sums[rows.sums[:, COLUMN["n"]] > 0]
    if not len(sums):
        return dict.fromkeys(SEQUENCE_METRICS)
    n, q, p = (sums[:, COLUMN[name]] for name in ("n", "q", "p"))
    gap = (q - p) / n
    total = np.clip(p - q, -clamp, clamp)
    rho, rho2 = float(np.exp(total).mean()), float(np.exp(2 * total).mean())
    with np.errstate(over="ignore"):  # a perplexity of e^1000 is reported as unknown
        train_ppl, rollout_ppl, ratio = (np.exp(x).mean() for x in (-p / n, -q / n, gap))
    values = (
        float((-p / n).mean()),
        float((-q / n).mean()),
        float(train_ppl),
        float(rollout_ppl),
        float(gap.mean()),
        float(np.abs(gap).mean()),
        float(gap.max()),
        float(gap.min()),
        float(ratio),
        rho,
        float(np.exp(total.max())),
        float(np.exp(total.min())),
        rho * rho / rho2,
        rho2 - 1.0,
        float((q - p).mean()),
        float(sums[:, COLUMN["k3"]].mean()),
        float((sums[:, COLUMN["abs_raw"]] / n).mean()),
    )
    return dict(zip(SEQUENCE_METRICS, values, strict=True))


SEQUENCE_METRICS: tuple[str, ...] = (
    "train_log_ppl",
    "rollout_log_ppl",
    "train_ppl",
    "rollout_ppl",
    "log_ppl_diff",
    "log_ppl_abs_diff",
    "log_ppl_diff_max",
    "log_ppl_diff_min",
    "ppl_ratio",
    "seq_rho_mean",
    "seq_rho_max",
    "seq_rho_min",
    "seq_ess_ratio",
    "chi2_seq",
    "k1_seq_mean",
    "k3_seq_mean",
    "abs_sample_mean",
)


def error_metrics(rows: SampleRows) -> Metrics:
    """Standard errors of token means, clustered by sample (tokens of a sample are not independent).

    None below two samples.
    """
    names = {
        "k3_mean_se": "k3",
        "rho_mean_se": "rho_m1",
        "delta_mean_se": "d",
        "abs_mean_se": "abs",
    }
    n = rows.sums[:, COLUMN["n"]]
    return {name: clustered_error(rows.sums[:, COLUMN[c]], n) for name, c in names.items()}


def clustered_error(x: F64, n: F64) -> float | None:
    """Standard error of Σx / Σn over clusters with sums x [S] and counts n [S]."""
    some = n > 0
    x, n, clusters = x[some], n[some], int(some.sum())
    if clusters < 2:
        return None
    residual = x - x.sum() / n.sum() * n
    return float(math.sqrt(clusters / (clusters - 1) * (residual**2).sum()) / n.sum())


def entropy_metrics(summary: Summary) -> Metrics:
    """Against the trainer's entropy H over the vocabulary: E[−p − H] is 0 if p was sampled."""
    mean = _Means(summary.side, SIDE_COLUMN, "h_n")
    entropy, kl = mean("h"), _Means(summary.sums, COLUMN, "n")("k3")
    return {
        "entropy_mean": entropy,
        "surprise_mean": mean("surprise"),
        "rollout_surprise_mean": mean("qsurprise"),
        "kl_ent_ratio": None if kl is None or not entropy else kl / entropy,
    }


def policy_ref_metrics(summary: Summary) -> Metrics:
    """The second measurement with the same ruler: the policy (train p) against ref.

    `policy_ref_kl` is the token mean of k3 with Δref = ref − p; `_seq_` the mean over samples of
    the sum over the sample's tokens.
    """
    mean = _Means(summary.side, SIDE_COLUMN, "ref_n")
    rows = summary.rows.side
    per_sample: Metrics = {"policy_ref_k1_seq_mean": None, "policy_ref_kl_seq_mean": None}
    if rows is not None and (some := rows[:, SIDE_COLUMN["ref_n"]] > 0).any():
        per_sample = {
            "policy_ref_k1_seq_mean": float(rows[some, SIDE_COLUMN["ref_k1"]].mean()),
            "policy_ref_kl_seq_mean": float(rows[some, SIDE_COLUMN["ref_k3"]].mean()),
        }
    return {
        "policy_ref_kl": mean("ref_k3"),
        "policy_ref_k1": mean("ref_k1"),
        "policy_ref_k2": mean("ref_k2"),
        "policy_ref_k3": mean("ref_k3"),
        "policy_ref_abs": mean("ref_abs"),
        **per_sample,
    }


def policy_ref_by_length(rows: SampleRows) -> dict[int, tuple[int, float]]:
    """Policy against ref by length bucket b (2^(b−1) <= length < 2^b): tokens and mean k3."""
    if rows.side is None:
        return {}
    n, k3 = rows.side[:, SIDE_COLUMN["ref_n"]], rows.side[:, SIDE_COLUMN["ref_k3"]]
    bucket = np.frexp(rows.sums[:, COLUMN["length"]])[1]
    found = {}
    for b in np.unique(bucket[n > 0]):
        here = bucket == b
        found[int(b)] = (int(n[here].sum()), float(k3[here].sum() / n[here].sum()))
    return found


def kl_reward_ratio(
    kl_mean: float | None, reward: float | None, *, baseline_reward: float | None
) -> float | None:
    """kl_mean / (reward − baseline_reward): nats paid per unit of reward; None without a gain."""
    if kl_mean is None or reward is None or baseline_reward is None or reward == baseline_reward:
        return None
    return kl_mean / (reward - baseline_reward)


def sample_metrics(rows: SampleRows) -> Metrics:
    """What the per-sample attributes say, over the samples where they are known."""
    return {
        "reward_mean": _known_mean(rows, "reward"),
        "advantage_mean": _known_mean(rows, "advantage"),
        "length_mean": float(rows.sums[:, COLUMN["length"]].mean()) if len(rows.keys) else None,
    }


def _known_mean(rows: SampleRows, attribute: str) -> float | None:
    index = ATTRIBUTE[attribute]
    known = (rows.known >> index) & 1 == 1
    return float(rows.attributes[known, index].mean()) if known.any() else None


class _Means:
    """Means of additive columns: `mean(name)` is Σ / count, None where nothing was counted."""

    def __init__(self, sums: F64, columns: Mapping[str, int], count: str) -> None:
        self._sums, self._columns = sums, columns
        self.count = float(sums[columns[count]])

    def __call__(self, name: str) -> float | None:
        return float(self._sums[self._columns[name]]) / self.count if self.count else None


def _plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _times(a: float | None, b: float) -> float | None:
    return None if a is None else a * b


def _extreme(summary: Summary, name: str) -> float | None:
    value = float(summary.extremes[EXTREME[name]])
    return None if value == -math.inf else value


def _finite(value: float | None) -> float | None:
    """What lies beyond float64 is unknown, not infinite."""
    return value if value is not None and math.isfinite(value) else None


def _sample_std(n: float, mean: float | None, mean_square: float | None) -> float | None:
    """Standard deviation with n − 1, as frameworks log it; None below two tokens."""
    if n < 2 or mean is None or mean_square is None:
        return None
    return math.sqrt(max(mean_square - mean * mean, 0.0) * n / (n - 1))


def _pearson(
    x: float | None, y: float | None, xx: float | None, yy: float | None, xy: float | None
) -> float | None:
    """Correlation from means and mean products; None where a side does not vary."""
    if x is None or y is None or xx is None or yy is None or xy is None:
        return None
    vx, vy = xx - x * x, yy - y * y
    if vx <= _FLAT * xx or vy <= _FLAT * yy:
        return None
    return max(-1.0, min(1.0, (xy - x * y) / math.sqrt(vx * vy)))


def _slope(x: float | None, y: float | None, xx: float | None, xy: float | None) -> float | None:
    """Least-squares slope of y on x."""
    if x is None or y is None or xx is None or xy is None or xx - x * x <= _FLAT * xx:
        return None
    return (xy - x * y) / (xx - x * x)
