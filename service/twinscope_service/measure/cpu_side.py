"""Side information, compiled: entropy, kept mass, ranks, token ids, ref, temperatures.

Each pass runs over a block that cpu_blocks.py has transformed, and only if a PairBlock brings its
input. A pass first lays the usable values out in scratch buffers (0 where unknown), then adds up:
two loops that vectorise where one with branches would not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from twinscope_service.measure import cpu_blocks as blocks
from twinscope_service.measure.cpu_blocks import MET, RAW, SENTINEL, SPARE, SUMS, D, P, Q, W
from twinscope_service.measure.cpu_math import ELEMENTWISE, k3_at, log_block
from twinscope_service.measure.layout import PROMPT_WINDOW
from twinscope_service.measure.records import (
    F64,
    I64,
    PROFILES,
    SIDE_COLUMNS,
    PairBlock,
)

HASH_MULTIPLIER = 2654435761
OTHER_TOKEN = np.uint64(2**32 - 1)
FLOAT_MAX = float(np.finfo(np.float32).max)
TOKEN_BUCKETS = PROFILES["token"]
IN_PROMPT, IN_RESPONSE = 0, 1  # where an id is
MET_NOWHERE, MET_IN_PROMPT, MET_IN_RESPONSE = 1.0, 2.0, 3.0  # ... was met before; 0: unknown id

ENTROPY = ("h_n", "h", "hh", "ph", "dh", "surprise", "surprise2", "qsurprise", "qsurprise2")
KEPT = ("kept_n", "kept_log", "kept_k3", "kept_abs")
RANK = ("rank_n", "rank", "rank_top1")
REF = ("ref_n", "ref_k1", "ref_k2", "ref_k3", "ref_abs", "ref_qp_pr", "ref_pr2", "ref_abs_q")
IDS = ("ids_n", "ids_d", "ids_rho", "seen_n", "seen_d", "seen_rho", "resp_n", "resp_d", "resp_rho")
_GROUPS = (ENTROPY, KEPT, RANK, REF, IDS)
KERNEL_SIDE: tuple[str, ...] = sum(_GROUPS, ())
AT_ENTROPY, AT_KEPT, AT_RANK, AT_REF, AT_IDS = (KERNEL_SIDE.index(group[0]) for group in _GROUPS)
_TO_SIDE = [KERNEL_SIDE.index(name) for name in SIDE_COLUMNS]

# scratch: buffers of the block that are done with when these passes run
XW, X, Y = blocks.EQ, blocks.EP, blocks.WP


class Side(NamedTuple):
    """Side inputs, read-only; an array that the PairBlock lacks is empty."""

    entropy: NDArray[np.float32]  # [N]
    kept: NDArray[np.float32]  # [N]
    rank: NDArray[np.int32]  # [N]
    ref: NDArray[np.float32]  # [N]
    ids: NDArray[np.int32]  # [N]
    prompts: NDArray[np.int32]  # [M]
    edges: I64  # [S, 2] begin and end of each row's prompt within `prompts`
    lse: NDArray[np.float32]  # [K, N]
    temperatures: F64  # [K]
    own: int  # index of the trainer's temperature


class SideTotals(NamedTuple):
    """Side output; everything but `table` is added to."""

    rows: F64  # [S, len(KERNEL_SIDE)]
    token: F64  # [TOKEN_BUCKETS + 1, 8] PROFILE sums, the last one collects the unknown
    temperature: F64  # [K, 3] n, Σk3, Σ|Δ|
    largest_rank: I64  # [1], −1: none known
    table: I64  # [2^k] scratch: the ids of one row, see `meet`


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only, aligned, C-contiguous view: one type for the compiler."""
    view = np.require(array, requirements=["C", "A"]).view()
    view.flags.writeable = False
    return view


def to_side(block: PairBlock, order: I64) -> Side:
    """The kernel's view of what a block brings, prompts with rows in `order`."""
    no_f32, no_i32 = np.zeros(0, np.float32), np.zeros(0, np.int32)
    lse, temperatures, own = np.zeros((0, 0), np.float32), np.zeros(0), 0
    if can_restore(block):
        assert block.logsumexp_T is not None
        assert block.temperatures is not None
        lse, temperatures = block.logsumexp_T, np.array(block.temperatures, np.float64)
        own = block.temperatures.index(block.train_temperature)
    prompts, edges = no_i32, np.zeros((block.samples, 2), np.int64)
    if block.prompt_ids is not None and block.prompt_offsets is not None:
        ends = block.prompt_offsets[1:][order]
        begins = np.maximum(block.prompt_offsets[:-1][order], ends - PROMPT_WINDOW)
        prompts, edges = block.prompt_ids, np.stack([begins, ends], axis=1)
    return Side(
        entropy=read_only(no_f32 if block.entropy is None else block.entropy),
        kept=read_only(no_f32 if block.kept_mass is None else block.kept_mass),
        rank=read_only(no_i32 if block.sampled_rank is None else block.sampled_rank),
        ref=read_only(no_f32 if block.ref_logprobs is None else block.ref_logprobs),
        ids=read_only(no_i32 if block.token_ids is None else block.token_ids),
        prompts=read_only(prompts),
        edges=read_only(edges),
        lse=read_only(lse),
        temperatures=temperatures,
        own=own,
    )


def can_restore(block: PairBlock) -> bool:
    """Other temperatures can be computed: `logsumexp_T` has a row at the trainer's own."""
    if block.logsumexp_T is None or block.temperatures is None:
        return False
    return block.train_temperature in block.temperatures


def new_side_totals(block: PairBlock, window: int) -> SideTotals:
    """Zeroed output, and a table at most half full."""
    entries = min(window, int(np.diff(block.offsets).max(initial=0))) + PROMPT_WINDOW
    temperatures = len(block.temperatures or ()) if can_restore(block) else 0
    return SideTotals(
        rows=np.zeros((block.samples, len(KERNEL_SIDE))),
        token=np.zeros((TOKEN_BUCKETS + 1, len(blocks.PROFILE))),
        temperature=np.zeros((temperatures, 3)),
        largest_rank=np.full(1, -1, np.int64),
        table=np.zeros(1 << (2 * entries - 1).bit_length(), np.int64),
    )


def side_columns(block: PairBlock, totals: SideTotals) -> F64 | None:
    """SIDE_COLUMNS [S, len(SIDE_COLUMNS)]; None without side information."""
    given = (
        block.entropy,
        block.kept_mass,
        block.sampled_rank,
        block.ref_logprobs,
        block.token_ids,
    )
    if all(array is None for array in given):
        return None
    return totals.rows[:, _TO_SIDE]


def temperature_sums(block: PairBlock, totals: SideTotals) -> dict[float, F64]:
    """T' -> (n, Σk3, Σ|Δ|) with p recomputed at T'; see reference.counterfactual_temperatures."""
    if not can_restore(block):
        return {}
    assert block.temperatures is not None
    return {float(t): row for t, row in zip(block.temperatures, totals.temperature, strict=True)}


@njit(nogil=True, cache=True)
def add_side(
    side: Side,
    clamp: float,
    b: F64,
    start: int,
    n: int,
    known: int,
    row: int,
    slot: NDArray[np.uint32],
    out: SideTotals,
) -> None:
    """All passes over the block of tokens start..start+n; the first `known` of them went through
    `meet_ids`. Overwrites XW, X, Y."""
    sums, here = out.rows[row], slice(start, start + n)
    if side.ids.size > 0:
        add_met(b, known, sums)
        add_token_profile(side.ids[here], b, slot, out.token)
    if side.entropy.size > 0:
        keep_entropy(side.entropy[here], b)
        add_entropy(b, n, sums)
    if side.kept.size > 0:
        keep_kept(side.kept[here], b)
        add_kept(b, n, clamp, sums)
    if side.rank.size > 0:
        largest = add_rank(side.rank[here], b, sums)
        out.largest_rank[0] = max(out.largest_rank[0], largest)
    if side.ref.size > 0:
        keep_ref(side.ref[here], b, clamp)
        add_ref(b, n, sums)
    for k in range(side.temperatures.size):
        logit = side.temperatures[side.own] / side.temperatures[k]
        keep_temperature(side.lse[side.own, here], side.lse[k, here], b, logit, clamp)
        add_temperature(b, n, out.temperature[k])


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def keep_entropy(entropy: NDArray[np.float32], b: F64) -> None:
    """XW: the entropy is known; X: its value, else 0."""
    for i in range(entropy.size):
        b[X + i] = entropy[i]
    for i in range(entropy.size):
        h = b[X + i]
        known = (b[W + i] > 0.0) & (abs(h) <= FLOAT_MAX)  # fails for NaN too
        b[XW + i] = 1.0 if known else 0.0
        b[X + i] = h if known else 0.0


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_entropy(b: F64, n: int, sums: F64) -> None:
    """ENTROPY."""
    count = total = hh = ph = dh = s = ss = z = zz = 0.0
    for i in range(n):
        w, h = b[XW + i], b[X + i]
        surprise, qsurprise = -w * b[P + i] - h, -w * b[Q + i] - h
        count += w
        total += h
        hh += h * h
        ph += b[P + i] * h
        dh += b[D + i] * h
        s += surprise
        ss += surprise * surprise
        z += qsurprise
        zz += qsurprise * qsurprise
    for c, value in enumerate((count, total, hh, ph, dh, s, ss, z, zz)):
        sums[AT_ENTROPY + c] += value


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def keep_kept(kept_mass: NDArray[np.float32], b: F64) -> None:
    """XW: the kept mass is known; X: its logarithm, else 0."""
    n = kept_mass.size
    for i in range(n):
        b[SPARE + i] = kept_mass[i]
    for i in range(n):
        kept = b[SPARE + i]
        known = (b[W + i] > 0.0) & (kept > 0.0) & (kept <= 1.001)
        b[XW + i] = 1.0 if known else 0.0
        b[SPARE + i] = kept if known else 1.0
    log_block(b[SPARE:], n, b[X:])


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_kept(b: F64, n: int, clamp: float, sums: F64) -> None:
    """KEPT."""
    count = log_kept = k3 = size = 0.0
    for i in range(n):
        w = b[XW + i]
        d = w * min(max(b[RAW + i] - b[X + i], -clamp), clamp)
        count += w
        log_kept += b[X + i]
        k3 += k3_at(d)
        size += abs(d)
    for c, value in enumerate((count, log_kept, k3, size)):
        sums[AT_KEPT + c] += value


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_rank(rank: NDArray[np.int32], b: F64, sums: F64) -> int:
    """RANK; returns the largest, −1 without one."""
    count = total = top = np.int64(0)
    largest = np.int64(-1)
    for i in range(rank.size):
        r = np.int64(rank[i]) if b[W + i] > 0.0 else np.int64(-1)
        count += r >= 0
        total += r if r > 0 else np.int64(0)
        top += r == 0
        largest = max(largest, r)
    sums[AT_RANK + 0] += count
    sums[AT_RANK + 1] += total
    sums[AT_RANK + 2] += top
    return int(largest)


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def keep_ref(ref_logprobs: NDArray[np.float32], b: F64, clamp: float) -> None:
    """XW: ref is known; X: ref − p, Y: q − ref, both clamped, else 0."""
    for i in range(ref_logprobs.size):
        b[X + i] = ref_logprobs[i]
    for i in range(ref_logprobs.size):
        ref, q, p = b[X + i], b[Q + i], b[P + i]
        known = (b[W + i] > 0.0) & (ref > SENTINEL) & (ref <= 0.0)
        b[XW + i] = 1.0 if known else 0.0
        b[X + i] = min(max(ref - p, -clamp), clamp) if known else 0.0
        b[Y + i] = min(max(q - ref, -clamp), clamp) if known else 0.0


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_ref(b: F64, n: int, sums: F64) -> None:
    """REF."""
    count = d_sum = d2 = k3 = size = cross = from_q = 0.0
    for i in range(n):
        d = b[X + i]
        count += b[XW + i]
        d_sum += d
        d2 += d * d
        k3 += k3_at(d)
        size += abs(d)
        cross += b[D + i] * d
        from_q += abs(b[Y + i])
    for c, value in enumerate((count, -d_sum, d2 / 2, k3, size, -cross, d2, from_q)):
        sums[AT_REF + c] += value


@njit(nogil=True, cache=True, error_model="numpy", fastmath=ELEMENTWISE)
def keep_temperature(
    lse_own: NDArray[np.float32], lse: NDArray[np.float32], b: F64, ratio: float, clamp: float
) -> None:
    """XW: p at the other temperature is known; X: its Δ, else 0. `ratio` = own / other."""
    for i in range(lse.size):
        b[X + i] = lse_own[i]
    for i in range(lse.size):
        b[Y + i] = lse[i]
    for i in range(lse.size):
        d = ratio * (b[P + i] + b[X + i]) - b[Y + i] - b[Q + i]
        known = (b[W + i] > 0.0) & (abs(d) <= FLOAT_MAX)  # fails for NaN too
        b[XW + i] = 1.0 if known else 0.0
        b[X + i] = min(max(d, -clamp), clamp) if known else 0.0


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_temperature(b: F64, n: int, sums: F64) -> None:
    """n, Σk3, Σ|Δ|."""
    count = k3 = size = 0.0
    for i in range(n):
        count += b[XW + i]
        k3 += k3_at(b[X + i])
        size += abs(b[X + i])
    for c, value in enumerate((count, k3, size)):
        sums[c] += value


@njit(nogil=True, cache=True)
def add_token_profile(
    ids: NDArray[np.int32], b: F64, slot: NDArray[np.uint32], profile: F64
) -> None:
    """PROFILE by a hash of the id; unknown ids go to the last row."""
    for i in range(ids.size):
        bucket = (np.int64(ids[i]) * HASH_MULTIPLIER & 0xFFFFFFFF) >> 24
        slot[i] = bucket if ids[i] >= 0 else TOKEN_BUCKETS
    for i in range(ids.size):
        blocks.add_token(b, i, profile[slot[i]])


@njit(nogil=True, cache=True)
def meet_ids(side: Side, b: F64, start: int, n: int, row: int, fresh: bool, table: I64) -> None:
    """MET of the n tokens from `start`; `fresh`: they begin the row, whose prompt comes first."""
    stamp = row + 1
    if fresh:
        for i in range(side.edges[row, 0], side.edges[row, 1]):
            if side.prompts[i] >= 0:
                meet(table, stamp, int(side.prompts[i]), IN_PROMPT)
    ids, met = side.ids[start : start + n], b[MET : MET + n]
    for i in range(n):
        met[i] = meet(table, stamp, int(ids[i]), IN_RESPONSE) if ids[i] >= 0 else 0.0


@njit(nogil=True, cache=True)
def meet(table: I64, stamp: int, token: int, where: int) -> float:
    """Note that `token` is at `where`; returns where it was met before.

    An entry is (stamp, token, where) in 30, 32 and 1 bits; with another stamp it counts as empty,
    so that the table serves one row after another without being cleared. Whether an id is new
    cannot be predicted, so nothing branches on it; only ids that share a slot do (same stamp,
    other token: the difference is between 1 and 2^32 - 1, one comparison).
    """
    last = table.size - 1
    key = (stamp << 32) | token
    slot = (token * HASH_MULTIPLIER >> 7) & last
    differs = (table[slot] >> 1) ^ key
    while np.uint64(differs - 1) < OTHER_TOKEN:
        slot = (slot + 1) & last
        differs = (table[slot] >> 1) ^ key
    before = table[slot] & 1
    table[slot] = (key << 1) | where
    return float(MET_NOWHERE + (differs == 0) * (1.0 + before))


@njit(nogil=True, cache=True, error_model="numpy", fastmath=SUMS)
def add_met(b: F64, n: int, sums: F64) -> None:
    """n, Δ and expm1(Δ) of counted tokens with known ids, of those met before, in the response."""
    ids = ids_d = ids_rho = seen = seen_d = seen_rho = resp = resp_d = resp_rho = 0.0
    for i in range(n):
        met, w, d, rho = b[MET + i], b[W + i], b[D + i], b[blocks.RHO + i]
        known = min(met, MET_NOWHERE)
        before = max(min(met, MET_IN_PROMPT) - MET_NOWHERE, 0.0)
        again = max(met - MET_IN_PROMPT, 0.0)
        ids += known * w
        ids_d += known * d
        ids_rho += known * rho
        seen += before * w
        seen_d += before * d
        seen_rho += before * rho
        resp += again * w
        resp_d += again * d
        resp_rho += again * rho
    found = (ids, ids_d, ids_rho, seen, seen_d, seen_rho, resp, resp_d, resp_rho)
    for c, value in enumerate(found):
        sums[AT_IDS + c] += value
