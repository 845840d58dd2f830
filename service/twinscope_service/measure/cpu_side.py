"""Side information, compiled: entropy, kept mass, ranks, token ids, ref, temperatures.

These passes run only over what a block brings. They are plain scalar loops: side columns are rare,
and a formula that reads like reference.py is worth more here than the last nanosecond.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from twinscope_service.measure import formulas
from twinscope_service.measure.cpu_kernel import Pairs, read_only
from twinscope_service.measure.records import (
    F64,
    I64,
    PROFILE_COLUMNS,
    PROFILES,
    SIDE_COLUMN,
    SIDE_COLUMNS,
    PairBlock,
)

SENTINEL = formulas.SENTINEL
NOISE_FLOOR, LOG_EPSILON = formulas.NOISE_FLOOR, formulas.LOG_EPSILON
HASH_MULTIPLIER = 2654435761
EMPTY = -1  # in the id table: no id is negative

ENTROPY = ("h_n", "h", "hh", "ph", "dh", "surprise", "surprise2", "qsurprise", "qsurprise2")
KEPT = ("kept_n", "kept_log", "kept_k3", "kept_abs")
RANK = ("rank_n", "rank", "rank_top1")
REF = ("ref_n", "ref_k1", "ref_k2", "ref_k3", "ref_abs", "ref_qp_pr", "ref_pr2", "ref_abs_q")
IDS = ("ids_n", "ids_d", "ids_rho", "seen_n", "seen_d", "seen_rho", "resp_n", "resp_d", "resp_rho")


def side_sums(block: PairBlock, order: I64, pairs: Pairs, clamp: float) -> F64 | None:
    """SIDE_COLUMNS [S, len(SIDE_COLUMNS)] with rows in `order`; None without side information."""
    found: list[tuple[tuple[str, ...], F64]] = []
    if block.entropy is not None:
        found.append((ENTROPY, entropy_sums(pairs, read_only(block.entropy), clamp)))
    if block.kept_mass is not None:
        found.append((KEPT, kept_sums(pairs, read_only(block.kept_mass), clamp)))
    if block.sampled_rank is not None:
        found.append((RANK, rank_sums(pairs, read_only(block.sampled_rank))[0]))
    if block.ref_logprobs is not None:
        found.append((REF, ref_sums(pairs, read_only(block.ref_logprobs), clamp)))
    if block.token_ids is not None:
        prompts, edges = prompt_edges(block, order)
        ids = read_only(block.token_ids)
        found.append((IDS, seen_sums(pairs, ids, prompts, edges, clamp)))
    if not found:
        return None
    side = np.zeros((block.samples, len(SIDE_COLUMNS)))
    for names, sums in found:
        side[:, [SIDE_COLUMN[name] for name in names]] = sums
    return side


def largest_rank(block: PairBlock, pairs: Pairs) -> float:
    """Largest known rank over counted tokens, −inf without one."""
    if block.sampled_rank is None:
        return -math.inf
    return float(rank_sums(pairs, read_only(block.sampled_rank))[1])


def token_profile(block: PairBlock, pairs: Pairs, clamp: float) -> F64:
    """The profile by hash of the token id, [256, len(PROFILE_COLUMNS)]."""
    profile = np.zeros((PROFILES["token"], len(PROFILE_COLUMNS)))
    if block.token_ids is not None:
        add_token_profile(pairs, read_only(block.token_ids), clamp, profile)
    return profile


def temperature_sums(block: PairBlock, pairs: Pairs, clamp: float) -> dict[float, F64]:
    """T' -> (n, Σk3, Σ|Δ|) with p recomputed at T'; see reference.counterfactual_temperatures."""
    own = block.train_temperature
    if block.logsumexp_T is None or block.temperatures is None or own not in block.temperatures:
        return {}
    lse = [read_only(row) for row in block.logsumexp_T]
    at_own = lse[block.temperatures.index(own)]
    return {
        float(t): counterfactual(pairs, at_own, row, own, float(t), clamp)
        for t, row in zip(block.temperatures, lse, strict=True)
    }


def prompt_edges(block: PairBlock, order: I64) -> tuple[NDArray[np.int32], I64]:
    """Prompt ids [M] and begin, end of every row's prompt [S, 2]; empty where unknown."""
    if block.prompt_ids is None or block.prompt_offsets is None:
        return read_only(np.zeros(0, np.int32)), np.zeros((block.samples, 2), np.int64)
    edges = np.stack([block.prompt_offsets[:-1][order], block.prompt_offsets[1:][order]], axis=1)
    return read_only(block.prompt_ids), edges


@njit(nogil=True, cache=True)
def counts(pairs: Pairs, i: int) -> bool:
    """Token i is a counted one."""
    if pairs.mask.size != 0 and pairs.mask[i] == 0:
        return False
    q, p = pairs.q[i], pairs.p[i]
    # NaN fails every comparison, -inf is below the sentinel, +inf above 0
    return bool(SENTINEL < q <= 0.0 and SENTINEL < p <= 0.0)


@njit(nogil=True, cache=True)
def clamped(value: float, clamp: float) -> float:
    """value within ±clamp."""
    return min(max(value, -clamp), clamp)


@njit(nogil=True, cache=True)
def k3_of(d: float) -> float:
    """e^Δ − 1 − Δ: series for |Δ| <= 0.1, expm1 beyond."""
    if abs(d) > 0.1:
        return math.expm1(d) - d
    tail = 1.0
    for n in range(10, 2, -1):
        tail = 1.0 + d / n * tail
    return d * d / 2 * tail


@njit(nogil=True, cache=True)
def entropy_sums(pairs: Pairs, entropy: NDArray[np.float32], clamp: float) -> F64:
    """ENTROPY [S, 9]."""
    sums = np.zeros((pairs.begin.size, 9))
    for row in range(pairs.begin.size):
        for i in range(pairs.begin[row], pairs.end[row]):
            h = np.float64(entropy[i])
            if not counts(pairs, i) or not math.isfinite(h):
                continue
            q, p = np.float64(pairs.q[i]), np.float64(pairs.p[i])
            surprise, qsurprise = -p - h, -q - h
            out = sums[row]
            out[0] += 1.0
            out[1] += h
            out[2] += h * h
            out[3] += p * h
            out[4] += clamped(p - q, clamp) * h
            out[5] += surprise
            out[6] += surprise * surprise
            out[7] += qsurprise
            out[8] += qsurprise * qsurprise
    return sums


@njit(nogil=True, cache=True)
def kept_sums(pairs: Pairs, kept_mass: NDArray[np.float32], clamp: float) -> F64:
    """KEPT [S, 4]."""
    sums = np.zeros((pairs.begin.size, 4))
    for row in range(pairs.begin.size):
        for i in range(pairs.begin[row], pairs.end[row]):
            kept = np.float64(kept_mass[i])
            if not counts(pairs, i) or not (kept > 0.0 and kept <= 1.001):
                continue
            log_kept = math.log(kept)
            raw = np.float64(pairs.p[i]) - np.float64(pairs.q[i])
            d = clamped(raw - log_kept, clamp)
            out = sums[row]
            out[0] += 1.0
            out[1] += log_kept
            out[2] += k3_of(d)
            out[3] += abs(d)
    return sums


@njit(nogil=True, cache=True)
def rank_sums(pairs: Pairs, rank: NDArray[np.int32]) -> tuple[F64, float]:
    """RANK [S, 3] and the largest rank."""
    sums = np.zeros((pairs.begin.size, 3))
    largest = -math.inf
    for row in range(pairs.begin.size):
        for i in range(pairs.begin[row], pairs.end[row]):
            if rank[i] >= 0 and counts(pairs, i):
                sums[row, 0] += 1.0
                sums[row, 1] += rank[i]
                sums[row, 2] += rank[i] == 0
                largest = max(largest, float(rank[i]))
    return sums, largest


@njit(nogil=True, cache=True)
def ref_sums(pairs: Pairs, ref_logprobs: NDArray[np.float32], clamp: float) -> F64:
    """REF [S, 8]."""
    sums = np.zeros((pairs.begin.size, 8))
    for row in range(pairs.begin.size):
        for i in range(pairs.begin[row], pairs.end[row]):
            ref = np.float64(ref_logprobs[i])
            if not counts(pairs, i) or not (ref > SENTINEL and ref <= 0.0):
                continue
            q, p = np.float64(pairs.q[i]), np.float64(pairs.p[i])
            d = clamped(ref - p, clamp)
            out = sums[row]
            out[0] += 1.0
            out[1] -= d
            out[2] += d * d / 2
            out[3] += k3_of(d)
            out[4] += abs(d)
            out[5] -= clamped(p - q, clamp) * d
            out[6] += d * d
            out[7] += abs(clamped(q - ref, clamp))
    return sums


@njit(nogil=True, cache=True)
def insert_id(table: I64, token: int) -> bool:
    """Put `token` into the hash table [2^k]; True if it was there."""
    last = table.size - 1
    slot = (token * HASH_MULTIPLIER >> 7) & last
    while table[slot] != EMPTY:
        if table[slot] == token:
            return True
        slot = (slot + 1) & last
    table[slot] = token
    return False


@njit(nogil=True, cache=True)
def holds_id(table: I64, token: int) -> bool:
    """Is `token` in the hash table?"""
    last = table.size - 1
    slot = (token * HASH_MULTIPLIER >> 7) & last
    while table[slot] != EMPTY:
        if table[slot] == token:
            return True
        slot = (slot + 1) & last
    return False


@njit(nogil=True, cache=True)
def new_table(entries: int) -> I64:
    """An id table at most half full."""
    size = 16
    while size < 2 * entries:
        size *= 2
    return np.full(size, EMPTY)


@njit(nogil=True, cache=True)
def seen_sums(
    pairs: Pairs, ids: NDArray[np.int32], prompts: NDArray[np.int32], edges: I64, clamp: float
) -> F64:
    """IDS [S, 9]; edges [S, 2] bound each row's prompt."""
    sums = np.zeros((pairs.begin.size, 9))
    for row in range(pairs.begin.size):
        response = new_table(pairs.end[row] - pairs.begin[row])
        prompt = new_table(edges[row, 1] - edges[row, 0])
        for i in range(edges[row, 0], edges[row, 1]):
            if prompts[i] >= 0:
                insert_id(prompt, int(prompts[i]))
        for i in range(pairs.begin[row], pairs.end[row]):
            token = int(ids[i])
            if token < 0:
                continue
            again = insert_id(response, token)
            if not counts(pairs, i):
                continue
            d = clamped(np.float64(pairs.p[i]) - np.float64(pairs.q[i]), clamp)
            rho = math.expm1(d)
            add_id(sums[row], 0, d, rho)
            if again or holds_id(prompt, token):
                add_id(sums[row], 3, d, rho)
            if again:
                add_id(sums[row], 6, d, rho)
    return sums


@njit(nogil=True, cache=True)
def add_id(out: F64, at: int, d: float, rho: float) -> None:
    """n, Δ, expm1(Δ) at out[at:]."""
    out[at] += 1.0
    out[at + 1] += d
    out[at + 2] += rho


@njit(nogil=True, cache=True)
def add_token_profile(pairs: Pairs, ids: NDArray[np.int32], clamp: float, profile: F64) -> None:
    """PROFILE_COLUMNS by a hash of the id."""
    for row in range(pairs.begin.size):
        for i in range(pairs.begin[row], pairs.end[row]):
            token = int(ids[i])
            if token < 0 or not counts(pairs, i):
                continue
            out = profile[((token * HASH_MULTIPLIER) & 0xFFFFFFFF) >> 24]
            q = np.float64(pairs.q[i])
            d = clamped(np.float64(pairs.p[i]) - q, clamp)
            lr = math.log(abs(d) / max(-math.expm1(q), NOISE_FLOOR) + LOG_EPSILON)
            k3 = k3_of(d)
            out[0] += 1.0
            out[1] += d
            out[2] += abs(d)
            out[3] += d * d
            out[4] += k3
            out[5] += k3 + d
            out[6] += lr
            out[7] += lr * lr


@njit(nogil=True, cache=True)
def counterfactual(
    pairs: Pairs,
    lse_own: NDArray[np.float32],
    lse: NDArray[np.float32],
    own: float,
    temperature: float,
    clamp: float,
) -> F64:
    """(n, Σk3, Σ|Δ|) with p at `temperature` instead of `own`."""
    sums = np.zeros(3)
    for row in range(pairs.begin.size):
        for i in range(pairs.begin[row], pairs.end[row]):
            if not counts(pairs, i):
                continue
            logit = own * (np.float64(pairs.p[i]) + np.float64(lse_own[i]))
            d = logit / temperature - np.float64(lse[i]) - np.float64(pairs.q[i])
            if not math.isfinite(d):
                continue
            d = np.float64(clamped(d, clamp))
            sums[0] += 1.0
            sums[1] += k3_of(d)
            sums[2] += abs(d)
    return sums
