"""The records of the measure stage: what goes in (PairBlock) and what comes out (Summary).

Direction everywhere: q = rollout log-prob (engine), p = train log-prob (trainer), nats;
Δ = p − q, ρ = e^Δ. "Counted" tokens are those with mask 1 and both sides finite and possible
(q ≤ 0, p ≤ 0, no missing-value sentinel); every mean runs over counted tokens only.

A Summary is a commutative monoid: `merge(a, b)` is what one pass over both inputs would give.
Everything additive is float64 or int64; per-sample rows are keyed by a 16-byte sample key and kept
sorted by it, so merging is a sorted union and does not depend on order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from twinscope.errors import ConfigError

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class MeasureOptions:
    """Settings of the measure stage. `clamp`: |Δ| bound for aggregates, nats. `clip`: PPO ratio range."""

    clamp: float = 20.0
    clip_low: float = 0.8
    clip_high: float = 1.2
    worst_tokens: int = 64
    worst_samples: int = 16
    random_samples: int = 8
    lag_window: int = 512  # lags are measured on the first `lag_window` tokens of each sample

    def __post_init__(self) -> None:
        if not 0 < self.clamp <= 300:
            raise ConfigError(f"clamp: got {self.clamp}; use more than 0, at most 300 nats")
        if not 0 < self.clip_low <= 1 <= self.clip_high:
            raise ConfigError(
                f"clip_low, clip_high: got {self.clip_low}, {self.clip_high}; use 0 < clip_low <= 1 <= clip_high"
            )
        for name in ("worst_tokens", "worst_samples", "random_samples", "lag_window"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: got {getattr(self, name)}; use 0 or more")


@dataclass(frozen=True)
class PairBlock:
    """Joined tokens, ragged, both sides present. Axis N tokens, S samples, M prompt tokens, K temperatures.

    None means unknown, never zero. Where an array is known for some samples only, the others hold a
    negative integer (int arrays), a NaN (float arrays) or "" (labels): unknown, and left out of sums.
    Arrays are C-contiguous, native-endian, and never written to.
    """

    offsets: I64  # [S+1]
    rollout_logprobs: NDArray[np.float32]  # [N] q, nats
    train_logprobs: NDArray[np.float32]  # [N] p, nats
    sample_keys: NDArray[np.uint8]  # [S,16] the join key, also the order of rows in a Summary
    sample_ids: tuple[str, ...] | None = None
    mask: NDArray[np.uint8] | None = None  # [N] None: every token counts
    token_ids: NDArray[np.int32] | None = None  # [N]
    ref_logprobs: NDArray[np.float32] | None = None  # [N]
    entropy: NDArray[np.float32] | None = None  # [N] nats
    logsumexp_T: NDArray[np.float32] | None = None  # [K,N]
    temperatures: tuple[float, ...] | None = None  # [K]
    kept_mass: NDArray[np.float32] | None = None  # [N]
    sampled_rank: NDArray[np.int32] | None = None  # [N]
    prompt_ids: NDArray[np.int32] | None = None  # [M]
    prompt_offsets: I64 | None = None  # [S+1]
    pad_left: NDArray[np.int32] | None = None  # [S]
    cached_tokens: NDArray[np.int32] | None = None  # [S]
    turn: NDArray[np.int32] | None = None  # [S]
    pack_slot: NDArray[np.int32] | None = None  # [S]
    rollout_version: I64 | None = None  # [S]
    train_version: I64 | None = None  # [S]
    advantage: NDArray[np.float32] | None = None  # [S]
    reward: NDArray[np.float32] | None = None  # [S]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name -> S labels
    version_spans: tuple[tuple[int, int, int], ...] | None = (
        None  # (sample, first token, rollout version)
    )
    train_temperature: float = 1.0  # temperature already inside p; `logsumexp_T` needs a row for it

    @property
    def samples(self) -> int:
        """S."""
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """N."""
        return int(self.offsets[-1])


# ---- coverage: what became of every received token (the block of counts that goes with any result)
# received = counted + masked_out + nonfinite + sentinel + positive   (each token in exactly one)
# the rest are properties of counted tokens and may overlap.
COVERAGE: tuple[str, ...] = (
    "received",
    "counted",
    "masked_out",
    "nonfinite",  # NaN or ±inf on either side
    "sentinel",  # a missing-value marker: <= -1000 nats (-9999.0, -3.4e38 ...)
    "positive",  # q > 0 or p > 0: impossible as a log-prob
    "zero_rollout",  # q exactly 0 (a certain token, or a zero fill)
    "zero_train",
    "delta_zero",  # Δ exactly 0
    "clamped",  # |Δ| beyond the clamp
)

# ---- additive per-sample columns; Summary.sums is their sum over counted tokens of all samples.
# r = |Δ| / max(1 - e^q, 0.02) (noise normalised by how uncertain the token is)
# x = ln(1 + t), t the position in the sample's live span;  m = (q + p) / 2;  w+ = e^{Δ/2}, w- = e^{-Δ/2}
# Δ is clamped to ±clamp in every column of this table but d_raw and abs_raw: linear means need no clamp.
# The live span of a sample runs from its first to its last token with mask 1: masked ends are padding
# and change nothing, masked tokens inside (tool output) keep their place. `length` is the span's length.
COLUMNS: tuple[str, ...] = (
    "n",
    "length",  # counted tokens; length of the live span
    "q",
    "p",
    "qq",
    "pp",
    "qp",
    "d_raw",
    "abs_raw",
    "d",
    "abs",
    "d2",
    "d3",
    "d4",
    "k3",
    "k3_2",
    "rho_m1",
    "rho2_m1",
    "inv_rho_m1",
    "mult_m1",  # expm1(Δ), expm1(2Δ), expm1(-Δ), expm1(|Δ|)
    "prob_abs",
    "eq",
    "ep",
    "eqq",
    "epp",
    "eqp",  # |e^p-e^q|, e^q, e^p, e^2q, e^2p, e^{q+p}
    "one_minus_eq",  # Σ max(1 - e^q, 0): normaliser of the drift-free series
    "out_08_12",
    "out_09_11",
    "out_clip",  # counts of ρ outside [0.8,1.2], [0.9,1.1], [clip_low,clip_high]
    "q_above",
    "q_below",  # counts of q - p > 0.01 and q - p < -0.01 (one-sidedness)
    "confident_disagreement",  # count of |Δ| > 2 and q > ln 0.5
    "zero_q",
    "zero_p",
    "zero_d",  # counts among counted tokens
    "grid_n",
    "grid_q_bf16",
    "grid_p_bf16",
    "grid_q_fp16",
    "grid_p_fp16",  # |x| >= 0.25 for both; on-grid counts
    "wp",
    "wp_d",
    "wp_m",
    "wp_dd",
    "wp_dm",
    "wp_mm",  # midpoint temperature sums, weight w+ (q is the sampler)
    "wm",
    "wm_d",
    "wm_m",
    "wm_dd",
    "wm_dm",
    "wm_mm",  # the same with w- (p is the sampler)
    "r",
    "r2",
    "lr",
    "lr2",
    "x",
    "xx",
    "xlr",  # lr = ln(r + 1e-6)
    "lr_lag1_n",
    "lr_lag1",  # neighbours t-1, t both counted: count, Σ lr[t-1] lr[t]
    "rho_d",
    "rho_p",
    "inv_d",
    "inv_q",  # Σ expm1(Δ)Δ, Σ expm1(Δ)p, Σ expm1(-Δ)Δ, Σ expm1(-Δ)q: exact temperature, see diagnose
    "big",
    "big_pair",  # count |Δ| > 2; of those, the token before it (t-1, counted) is big too
    # fills: tokens whose q (p) is a whole number, 0 included: count, Σ value, Σ value², Σ other side,
    # count |Δ| > 3, count with the token before it (t-1, counted) a fill of the same side too
    "fill_q",
    "fill_q_v",
    "fill_q_vv",
    "fill_q_p",
    "fill_q_far",
    "fill_q_pair",
    "fill_p",
    "fill_p_v",
    "fill_p_vv",
    "fill_p_q",
    "fill_p_far",
    "fill_p_pair",
)
COLUMN: dict[str, int] = {name: i for i, name in enumerate(COLUMNS)}

# ---- columns that exist only when the block brings the side information (0 and `*_n` = 0 otherwise)
SIDE_COLUMNS: tuple[str, ...] = (
    "h_n",
    "h",
    "hh",
    "ph",
    "dh",
    "surprise",
    "surprise2",  # H entropy; surprise = -p - H (sampled surprise minus entropy)
    "qsurprise",
    "qsurprise2",  # -q - H
    "kept_n",
    "kept_log",
    "kept_k3",
    "kept_abs",  # ln kept mass; k3 and |Δ| after p' = p - ln kept
    "rank_n",
    "rank",
    "rank_top1",  # Σ rank, count rank == 0
    "ref_n",
    "ref_k1",
    "ref_k2",
    "ref_k3",
    "ref_abs",  # policy(train p) against ref: Δref = ref - p; k1 = p - ref
    "ref_qp_pr",
    "ref_pr2",
    "ref_abs_q",  # Σ (q-p)(ref-p), Σ (ref-p)^2, Σ |q - ref|: λ of q on the way to ref
    # token ids: seen = the id occurs earlier in the response or in the prompt, resp = earlier in the response;
    # Σ over counted tokens with known ids: n, Δ, expm1(Δ) for all, for seen, for resp
    "ids_n",
    "ids_d",
    "ids_rho",
    "seen_n",
    "seen_d",
    "seen_rho",
    "resp_n",
    "resp_d",
    "resp_rho",
)
SIDE_COLUMN: dict[str, int] = {name: i for i, name in enumerate(SIDE_COLUMNS)}

# ---- extremes over counted tokens, merged by max (min stored negated); unclamped Δ
EXTREMES: tuple[str, ...] = ("abs", "d", "minus_d", "minus_q", "minus_p", "prob_abs", "rank")
EXTREME: dict[str, int] = {name: i for i, name in enumerate(EXTREMES)}

# ---- profiles: [buckets, len(PROFILE_COLUMNS)] additive sums
PROFILE_COLUMNS: tuple[str, ...] = ("n", "d", "abs", "d2", "k3", "rho_m1", "lr", "lr2")
# name -> number of buckets. position: bit length of t, the index in the live span; from_end: distance
# to its last token, same buckets; first/last: exact positions 0..7 / distance 0..7; q: floor(-q*2)
# capped; length: bit length of the span's length; relative: 16 t // length.
# token: (token id * 2654435761 mod 2^32) >> 24, only where ids are known (all 0 otherwise).
PROFILES: dict[str, int] = {
    "position": 24,
    "from_end": 24,
    "first": 8,
    "last": 8,
    "q": 32,
    "length": 24,
    "relative": 16,
    "token": 256,
}

# lags: q[t] against p[t + lag], both counted, both among the span's first `lag_window` tokens
LAGS: tuple[int, ...] = tuple(range(-8, 9))
LAG_MIN_TOKENS = 8  # pairs that a sample needs at a lag before that lag may be its best one
LAG_COLUMNS: tuple[str, ...] = ("n", "abs", "k3", "q", "p", "qq", "pp", "qp")

# ---- histogram of |Δ|: 64 linear sub-buckets per octave of the float32 bits, two rows by sign of Δ.
# bucket = (float32 bits of |Δ| >> 17) - HIST_BASE, clipped to [0, HIST_BUCKETS); mid-bucket error < 0.8 %.
HIST_OCTAVE_LOW, HIST_OCTAVE_HIGH = -40, 10  # up to 1024 nats: no |Δ| of possible values is larger
HIST_BUCKETS = (HIST_OCTAVE_HIGH - HIST_OCTAVE_LOW) * 64
HIST_BASE = (127 + HIST_OCTAVE_LOW) * 64

# ---- the hard bound of a temperature: if q is p at temperature T < 1 then q >= p/T for every token, if
# T > 1 then q <= p/T. Summary.bounds counts the tokens beyond it by more than 0.1 + 0.02 |p| nats, per T.
BOUND_TEMPERATURES: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.5, 2.0)

# ---- per-sample attributes carried beside the rows; `known` has bit i set where attribute i is known
ATTRIBUTES: tuple[str, ...] = (
    "pad_left",
    "cached_tokens",
    "turn",
    "pack_slot",
    "rollout_version",
    "train_version",
    "advantage",
    "reward",
    "prompt_length",
    "best_lag",
    "best_lag_abs",
    "lag0_abs",
    "first_big",  # t of the first counted token with |Δ| > 2; unknown: none
    "first_hash",  # 52-bit hash of (prompt ids, first response id) as float: equal = same context and token
    *(f"head_q{i}" for i in range(8)),
    *(f"head_p{i}" for i in range(8)),  # the first 8 counted tokens, as far as there
    "prompt_hash",  # 52-bit hash of the prompt ids as float: equal = the first token's context
)
# best_lag: smallest mean |q[t] - p[t + lag]| over LAGS and, where pad_left is known, also +pad_left and -pad_left
ATTRIBUTE: dict[str, int] = {name: i for i, name in enumerate(ATTRIBUTES)}


# Rows are kept for at most this many samples of a Summary (about 1 kB each), those with the smallest
# keys; totals are of all samples.
ROW_LIMIT = 16_384


@dataclass(frozen=True)
class SampleRows:
    """One row per sample, sorted by key; the exchangeable unit of every test of significance.

    Of more than ROW_LIMIT samples, those with the smallest keys: a uniform sample.
    """

    keys: NDArray[np.uint8]  # [S,16] sorted
    sums: F64  # [S, len(COLUMNS)]
    side: F64 | None  # [S, len(SIDE_COLUMNS)]; None when no sample brought side information
    max_abs: F64  # [S] largest unclamped |Δ|
    attributes: F64  # [S, len(ATTRIBUTES)]; 0 where unknown
    known: I64  # [S] bit mask over ATTRIBUTES
    groups: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # name -> S labels ("" unknown)


@dataclass(frozen=True, order=True)
class WorstToken:
    """One of the largest |Δ| > 0 (unclamped). Ordered so that sorting puts the worst first."""

    minus_abs: float
    sample_key: str  # hex
    position: int  # index in the sample as received
    q: float
    p: float
    token_id: int  # -1: unknown
    sample_id: str  # "": unknown


@dataclass(frozen=True)
class Summary:
    """Everything measured about a set of pairs. See `merge` for the monoid and `derive` for the metrics."""

    coverage: I64  # [len(COVERAGE)]
    samples: int
    sums: F64  # [len(COLUMNS)]
    side: F64  # [len(SIDE_COLUMNS)]
    extremes: F64  # [len(EXTREMES)] -inf when nothing was counted
    bounds: I64  # [len(BOUND_TEMPERATURES)]
    histogram: I64  # [2, HIST_BUCKETS]: Δ >= 0, Δ < 0 (Δ == 0 is coverage.delta_zero, not here)
    profiles: Mapping[str, F64]  # [buckets, len(PROFILE_COLUMNS)]
    lags: F64  # [len(LAGS), len(LAG_COLUMNS)]
    version_lag: Mapping[int, F64]  # train_version - rollout_version -> [len(PROFILE_COLUMNS)]
    groups: Mapping[tuple[str, str], F64]  # (name, label) -> [len(PROFILE_COLUMNS)]
    temperature: Mapping[float, F64]  # T' -> (n, k3, abs) with p(T') from logsumexp_T
    rows: SampleRows
    worst: tuple[WorstToken, ...]
