"""The arithmetic of one watched series, in the subset that both plain Python and numba can run.

The service calls these functions on lists; the simulations compile the very same source with numba
(`bench.arl.compiled`) and call it on float64 arrays. So a simulated false-alarm rate is the rate of
the code that runs, not of a copy of it.

Notation: y = watched value (a log level, or a plain level), s2 = sampling variance of y that is
known beforehand from the batch size (0: unknown). One series owns four rings of RING values indexed
by tick modulo RING, one sorted window, and one vector of scalars `x` whose slots are named below.
Ticks count observations, never trainer steps: a step counter may jump back, a tick cannot.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence

Floats = MutableSequence[float]

RING = 256  # ring length; at least REFERENCE + EXCURSION, and WINDOW
WINDOW = 200  # raw values behind the median and the MAD of the spike test
REFERENCE = 100  # accepted values behind the mean and variance of the scores
EXCURSION = 60  # longest excursion: older points are learnt even while one lasts
BLOCK = 100  # the certified detector remembers between BLOCK and 2 BLOCK values
BURN_IN = 20  # values before the first verdict
RESETTLE = 10  # values of a new level before it is watched
CLIP = 2.4  # a score counts at most this much, so one wild batch can never be a level shift
ALLOWANCE = 0.45  # of the CUSUMs that delimit an excursion, in score units
DRIFT_ALLOWANCE = 0.0015  # n of these are taken off every one of n scores: budget for slow drift
LEAVE_ONE_OUT = 1.3  # a shift must keep all but this much of its statistic without its top score
AR_MEMORY = 300.0  # memory of the autocorrelation estimate, ticks
AR_DOUBT = 15.0  # ticks after which an estimate of autocorrelation is half believed
SKEW_DOUBT = 50.0  # accepted values after which an estimate of skewness is half believed
MOST_SKEW = 0.8  # a skewness counts at most this much: beyond, the correction would turn round
BENT = 3.0  # and is corrected for up to this score
MAD_TO_SCALE = 1.0 / 0.7266868438004225  # 0.75-quantile of Student's t with 5 degrees of freedom
TINY = 1e-9  # smallest scale of y: a relative change of 1e-9 is the float noise of a constant
LEHMER, MERSENNE = 48271, 2147483647  # x <- 48271 x mod 2^31-1: exact in Python and in numba

# ---- slots of the scalar vector `x`
COUNT = 0  # values ever seen = the tick of the next one
HELD = 1  # newest values that belong to the present level (reset by `rebase`)
READY = 2  # 1 after the burn-in
PENDING = 3  # newest values not yet learnt
REF_N, REF_SUM, REF_SQ, REF_S2, CENTER = 4, 5, 6, 7, 8  # accepted values, sums about CENTER
CUSUM_UP, CUSUM_DOWN, SINCE_UP, SINCE_DOWN = 9, 10, 11, 12  # excursions, and ticks since each began
AR_NUM, AR_DEN, AR_N, AR_LAST = 13, 14, 15, 16  # lag-1 products of accepted deviations
SEED = 17  # Lehmer stream for ties between ranks
BLOCK_A, BLOCK_B = 18, 19  # how many newest values each certified history holds
BETS = 20  # .. BETS + 8: one Shiryaev-Roberts statistic per history and bet
SORTED_N = 28
# ---- results of the newest tick
Z, SCALE, MEDIAN = 29, 30, 31  # spike score, its scale, the median before this value
Z_LAST = 32  # spike score of the value before
GLR_UP, GLR_UP_N, GLR_DOWN, GLR_DOWN_N = 33, 34, 35, 36  # shift statistics and points since onset
SR, PHI = 37, 38
EVENNESS = 39  # variance of a reference batch over that of this one, at most 1
GROWTH_T, GROWTH_SLOPE = 40, 41  # t statistic and slope per tick of the steepest recent trend
SPIKE_P, SPIKE_P_LAST = 42, 43  # probability of a value this high, now and one tick ago
TAILS = 44  # .. TAILS + 3: log posterior weight of each tail law (survives `rebase`)
TWO_SIDED = 47  # 1: a value far below the median is a spike too
NEEDED = 48  # values of the present level to collect before watching it
REF_CU = 49  # sum of cubes of the accepted values about CENTER
SLOTS = 50

# ---- limits of `alarms`, and the bits of its answer
LIMIT_UP, LIMIT_DOWN, LIMIT_CERTIFIED, LIMIT_SPIKE, LIMIT_PAIR, LIMIT_GROWTH = range(6)
SPIKE, PAIR, UP, DOWN, CERTIFIED, GROWTH = 1, 2, 4, 8, 16, 32

# How heavy the tail of healthy values is, the run says: Student laws with these degrees of freedom,
# weighted by how well they predicted so far. 0.75-quantiles and log densities at 0 beside them.
TAIL_1, TAIL_2, TAIL_3 = 4, 8, 30
QUARTILE_1, QUARTILE_2, QUARTILE_3 = 0.7406970841126824, 0.7063866126448385, 0.6827556933212923
PEAK_1, PEAK_2, PEAK_3 = -0.9808292530117257, -0.9501086121502307, -0.9272703253788515
PRIOR_1, PRIOR_2, PRIOR_3 = -1.8, -0.7, 0.0  # log weights before any evidence
TAIL_MEMORY = 1000.0  # ticks
SURELY_WILD = 5e-6
WEIGHT_FLOOR = -9.0  # log weights never fall below: a run may become heavy-tailed later

BET_1, BET_2, BET_3, BET_4 = 0.15, 0.3, 0.5, 0.75  # exponents of the conformal bets


def update(y: float, s2: float, x: Floats, rings: Sequence[Floats], ordered: Floats) -> None:
    """Take one value in. Results are in the slots from Z on; thresholds are the caller's business.

    rings: raw values, winsorised values, sampling variances, scores (each RING floats);
    ordered: the newest SORTED_N <= WINDOW raw values in ascending order.
    """
    raw, learnt, variances, scores = rings
    slot = int(x[COUNT]) % RING
    if x[COUNT] == 0.0:
        x[NEEDED] = BURN_IN
        x[TAILS], x[TAILS + 1], x[TAILS + 2] = PRIOR_1, PRIOR_2, PRIOR_3
    raw[slot] = y
    variances[slot] = s2
    learnt[slot] = y
    scores[slot] = 0.0
    if x[READY] == 0.0:
        x[COUNT] += 1.0
        x[HELD] += 1.0
        _insert(y, x, raw, ordered)
        if x[HELD] >= x[NEEDED]:
            rebase(int(x[NEEDED]), x, rings, ordered)
        return
    _spike(y, s2, x, ordered)
    _score(slot, x, rings)
    _certify(y, x, raw)
    x[COUNT] += 1.0
    x[HELD] = min(x[HELD] + 1.0, float(RING))
    x[PENDING] += 1.0
    _insert(y, x, raw, ordered)
    _excursion(scores[slot] * math.sqrt((1.0 - x[PHI]) / (1.0 + x[PHI])), x)
    _likelihood(x, scores)
    _learn(x, rings)
    _trend(x, raw)


def rebase(keep: int, x: Floats, rings: Sequence[Floats], ordered: Floats) -> None:
    """Start afresh at a new level: the newest `keep` values become the reference.

    They enter winsorised at 3 robust standard deviations, so that one wild value of the burn-in
    cannot blunt the detector for the next REFERENCE ticks.
    """
    raw, learnt, variances = rings[0], rings[1], rings[2]
    count = int(x[COUNT])
    x[SORTED_N] = 0.0
    x[HELD] = 0.0
    for tick in range(count - keep, count):
        x[HELD] += 1.0
        _place(raw[tick % RING], x, ordered)
    median = _middle(x, ordered)
    spread = 3.0 * MAD_TO_SCALE * _mad(median, x, ordered)
    for slot in range(PENDING, SEED):
        x[slot] = 0.0
    x[REF_CU] = 0.0
    x[CENTER] = median
    for slot in range(BLOCK_A, SORTED_N):
        x[slot] = 0.0
    x[BLOCK_A] = float(keep)
    for slot in range(Z, TAILS):
        x[slot] = 0.0
    x[SPIKE_P] = 1.0
    x[READY] = 1.0
    for tick in range(count - keep, count):
        value = raw[tick % RING]
        if spread > 0.0:
            value = min(max(value, median - spread), median + spread)
        learnt[tick % RING] = value
        _accept(value, variances[tick % RING], x)


def alarms(x: Floats, limits: Sequence[float]) -> int:
    """Which detectors alarm on the newest value, as bits. `limits`: see `thresholds.limits`."""
    if x[READY] == 0.0:
        return 0
    bits = 0
    if x[SPIKE_P] < limits[LIMIT_SPIKE]:
        bits |= SPIKE
    # Two in a row, each improbable, on the same side: a shift in the making.
    if max(x[SPIKE_P], x[SPIKE_P_LAST]) < limits[LIMIT_PAIR] and x[Z] * x[Z_LAST] > 0.0:
        bits |= PAIR
    if x[GLR_UP] >= limits[LIMIT_UP]:
        bits |= UP
    if x[GLR_DOWN] >= limits[LIMIT_DOWN]:
        bits |= DOWN
    if x[SR] >= limits[LIMIT_CERTIFIED]:
        bits |= CERTIFIED
    if x[GROWTH_T] >= limits[LIMIT_GROWTH]:
        bits |= GROWTH
    return bits


def settle(n: int, x: Floats, rings: Sequence[Floats], ordered: Floats) -> None:
    """A change was reported and the newest n values are the new level: learn it afresh.

    Ten values are enough: the scores know how uncertain a reference of ten is.
    """
    x[READY] = 0.0
    x[HELD] = float(min(n, REFERENCE))
    x[NEEDED] = max(x[HELD], float(RESETTLE))
    if n >= RESETTLE:
        rebase(int(x[HELD]), x, rings, ordered)


# ---- the spike: one value against the median and MAD of the last WINDOW raw values


def _spike(y: float, s2: float, x: Floats, ordered: Floats) -> None:
    """Z = (y - median) / scale, scale = MAD in t5 units, never under the known sampling error."""
    x[Z_LAST] = x[Z]
    median = _middle(x, ordered)
    scale = MAD_TO_SCALE * _mad(median, x, ordered)
    scale *= math.sqrt(1.0 + 1.57 / x[SORTED_N])  # variance of a median, in units of scale^2 / n
    # A batch smaller than the reference batches is noisier by the difference of sampling variances.
    extra = max(0.0, s2 - x[REF_S2] / max(x[REF_N], 1.0))
    scale = math.sqrt(max(scale * scale + extra, s2, TINY * TINY))
    x[MEDIAN] = median
    x[SCALE] = scale
    x[Z] = (y - median) / scale
    x[SPIKE_P_LAST] = x[SPIKE_P]
    if x[TWO_SIDED] == 1.0:
        x[SPIKE_P] = min(2.0 * _tail(abs(x[Z]) * MAD_TO_SCALE, x), 1.0)
    else:
        x[SPIKE_P] = _tail(x[Z] * MAD_TO_SCALE, x)
    _weigh(x[Z] * MAD_TO_SCALE, x)


def _tail(r: float, x: Floats) -> float:
    """P(value this far above the median), r in units of the MAD, mixed over the tail laws."""
    if r < 1.0:
        return 0.25 if r >= 0.0 else 0.5  # only small probabilities are ever looked at
    w_1, w_2, w_3 = math.exp(x[TAILS]), math.exp(x[TAILS + 1]), math.exp(x[TAILS + 2])
    mixed = w_1 * student_tail(r * QUARTILE_1, TAIL_1) + w_2 * student_tail(r * QUARTILE_2, TAIL_2)
    mixed += w_3 * student_tail(r * QUARTILE_3, TAIL_3)
    return mixed / (w_1 + w_2 + w_3)


def _weigh(r: float, x: Floats) -> None:
    """Bayes' rule with a memory: how well did each tail law predict this value?

    A value beyond 12 MADs counts as 12, and one that is sure to be an alarm does not count: one
    faulty batch must not teach that healthy values are wild.
    """
    if x[SPIKE_P] < SURELY_WILD:
        return
    r = min(max(r, -12.0), 12.0)
    keep = 1.0 - 1.0 / TAIL_MEMORY
    l_1 = keep * x[TAILS] + _log_density(r, TAIL_1, QUARTILE_1, PEAK_1)
    l_2 = keep * x[TAILS + 1] + _log_density(r, TAIL_2, QUARTILE_2, PEAK_2)
    l_3 = keep * x[TAILS + 2] + _log_density(r, TAIL_3, QUARTILE_3, PEAK_3)
    best = max(l_1, max(l_2, l_3))
    x[TAILS] = max(l_1 - best, WEIGHT_FLOOR)
    x[TAILS + 1] = max(l_2 - best, WEIGHT_FLOOR)
    x[TAILS + 2] = max(l_3 - best, WEIGHT_FLOOR)


def _log_density(r: float, nu: int, quartile: float, peak: float) -> float:
    """log density of r = t / quartile, t a Student with nu degrees of freedom."""
    t = r * quartile
    return peak + math.log(quartile) - 0.5 * (nu + 1) * math.log1p(t * t / nu)


def student_tail(t: float, nu: int) -> float:
    """P(T > t) for t >= 0 and whole nu: the finite series of Abramowitz and Stegun 26.7.3-4."""
    theta = math.atan(t / math.sqrt(nu))
    cosine = math.cos(theta)
    term = cosine if nu % 2 == 1 else 1.0
    total = term if nu > 1 else 0.0
    for k in range(3 if nu % 2 == 1 else 2, nu - 1, 2):
        term *= cosine * cosine * (k - 1.0) / k
        total += term
    within = math.sin(theta) * total
    if nu % 2 == 1:
        within = 2.0 / math.pi * (theta + within)
    return max(0.5 * (1.0 - within), 0.0)


def _middle(x: Floats, ordered: Floats) -> float:
    """Median of the sorted window."""
    n = int(x[SORTED_N])
    return 0.5 * (ordered[(n - 1) // 2] + ordered[n // 2])


def _mad(median: float, x: Floats, ordered: Floats) -> float:
    """Median of |value - median|. Deviations to the left and to the right are two sorted lists."""
    n = int(x[SORTED_N])
    high = _deviation(n // 2 + 1, median, n, ordered)
    if n % 2 == 1:
        return high
    return 0.5 * (_deviation(n // 2, median, n, ordered) + high)


def _deviation(rank: int, median: float, n: int, ordered: Floats) -> float:
    """The rank-th smallest |value - median| (from 1) of n sorted values, by bisection.

    If `left` of the `rank` smallest deviations are left of the middle, they are the nearest ones
    there; the right `left` is the first at which no left one is nearer than a right one taken.
    """
    middle = n // 2
    low, high = max(0, rank - (n - middle)), min(rank, middle)
    while low < high:
        left = (low + high) // 2
        # Is the next one on the left nearer than the last one taken on the right? Take more left.
        if median - ordered[middle - 1 - left] < ordered[middle + rank - left - 1] - median:
            low = left + 1
        else:
            high = left
    worst = median - ordered[middle - low] if low > 0 else 0.0
    if rank - low > 0:
        worst = max(worst, ordered[middle + rank - low - 1] - median)
    return worst


def _insert(y: float, x: Floats, raw: Floats, ordered: Floats) -> None:
    """Slide the sorted window by one value. `x[HELD]` already counts y."""
    n = int(x[SORTED_N])
    if n == WINDOW:
        oldest = raw[(int(x[COUNT]) - 1 - WINDOW) % RING]
        low, high = 0, n
        while low < high:
            middle = (low + high) // 2
            if ordered[middle] < oldest:
                low = middle + 1
            else:
                high = middle
        for i in range(low, n - 1):
            ordered[i] = ordered[i + 1]
        x[SORTED_N] = n - 1.0
    _place(y, x, ordered)


def _place(y: float, x: Floats, ordered: Floats) -> None:
    """Insert y in order."""
    i = int(x[SORTED_N])
    while i > 0 and ordered[i - 1] > y:
        ordered[i] = ordered[i - 1]
        i -= 1
    ordered[i] = y
    x[SORTED_N] += 1.0


# ---- the score: standard normal while nothing changes, corrected for skewness, clipped


def _score(slot: int, x: Floats, rings: Sequence[Floats]) -> None:
    """Turn the newest value into a score u, and winsorise what will be learnt from it."""
    raw, learnt, variances, scores = rings
    n = x[REF_N]
    mean = x[REF_SUM] / n
    spread = (x[REF_SQ] - n * mean * mean) / (n - 1.0)
    # A batch smaller than the reference batches is noisier by the difference of the sampling
    # variances. A larger one gets no credit: the difference would rest on two noisy estimates.
    s2 = variances[slot]
    wanted = max(spread + max(0.0, s2 - x[REF_S2] / n), s2, TINY * TINY)
    x[EVENNESS] = min(max(spread, TINY * TINY) / wanted, 1.0)
    spread = wanted
    residual = raw[slot] - x[CENTER] - mean
    wide = CLIP * math.sqrt(spread)
    learnt[slot] = x[CENTER] + mean + min(max(residual, -wide), wide)
    u = _normal(residual / math.sqrt(spread * (1.0 + 1.0 / n)), n - 1.0)
    x[PHI] = _phi(x)
    scores[slot] = min(max(_straighten(u, spread, x), -CLIP), CLIP)


def _normal(t: float, nu: float) -> float:
    """A Student t with nu degrees of freedom made standard normal (Wallace 1959)."""
    u = math.sqrt(nu * math.log1p(t * t / nu)) * (8.0 * nu + 1.0) / (8.0 * nu + 3.0)
    return u if t >= 0.0 else -u


def _straighten(u: float, spread: float, x: Floats) -> float:
    """Take the reference's skewness out of a score: Cornish-Fisher, first term, doubted while few.

    A law with a long tail upwards would raise false alarms upwards, and hide falls.
    """
    n = x[REF_N]
    mean = x[REF_SUM] / n
    third = x[REF_CU] / n - 3.0 * mean * x[REF_SQ] / n + 2.0 * mean * mean * mean
    skew = third / (spread * math.sqrt(spread)) * n / (n + SKEW_DOUBT)
    skew = min(max(skew, -MOST_SKEW), MOST_SKEW)
    u = min(max(u, -BENT), BENT)
    return u - skew / 6.0 * (u * u - 1.0)


def _phi(x: Floats) -> float:
    """Lag-1 autocorrelation of accepted values, never negative, shrunk while data are few.

    1/n repays the bias of an autocorrelation about an estimated mean.
    """
    if x[AR_DEN] <= 0.0:
        return 0.0
    phi = max(0.0, x[AR_NUM] / x[AR_DEN] + 1.0 / x[AR_N])
    return min(phi * x[AR_N] / (x[AR_N] + AR_DOUBT), 0.7)


# ---- learning: a value joins the reference only when the excursion it may belong to is over


def _excursion(u: float, x: Floats) -> None:
    """Two CUSUMs with a small allowance say since when something may be going on."""
    x[CUSUM_UP] = max(0.0, x[CUSUM_UP] + u - ALLOWANCE)
    x[SINCE_UP] = 0.0 if x[CUSUM_UP] == 0.0 else x[SINCE_UP] + 1.0
    x[CUSUM_DOWN] = max(0.0, x[CUSUM_DOWN] - u - ALLOWANCE)
    x[SINCE_DOWN] = 0.0 if x[CUSUM_DOWN] == 0.0 else x[SINCE_DOWN] + 1.0


def _learn(x: Floats, rings: Sequence[Floats]) -> None:
    """Accept every pending value older than the present excursion, or than EXCURSION ticks."""
    learnt, variances = rings[1], rings[2]
    hold = min(max(x[SINCE_UP], x[SINCE_DOWN]), float(EXCURSION))
    while x[PENDING] > hold:
        tick = int(x[COUNT] - x[PENDING])
        x[PENDING] -= 1.0
        _accept(learnt[tick % RING], variances[tick % RING], x)
        if x[REF_N] > REFERENCE:
            oldest = (tick - REFERENCE) % RING
            value = learnt[oldest] - x[CENTER]
            x[REF_N] -= 1.0
            x[REF_SUM] -= value
            x[REF_SQ] -= value * value
            x[REF_CU] -= value * value * value
            x[REF_S2] -= variances[oldest]


def _accept(value: float, s2: float, x: Floats) -> None:
    """Add one value to the reference sums and to the autocorrelation estimate."""
    value -= x[CENTER]
    deviation = value - (x[REF_SUM] / x[REF_N] if x[REF_N] > 0.0 else 0.0)
    keep = 1.0 - 1.0 / AR_MEMORY
    x[AR_NUM] = keep * x[AR_NUM] + deviation * x[AR_LAST]
    x[AR_DEN] = keep * x[AR_DEN] + deviation * deviation
    x[AR_N] = keep * x[AR_N] + 1.0
    x[AR_LAST] = deviation
    x[REF_N] += 1.0
    x[REF_SUM] += value
    x[REF_SQ] += value * value
    x[REF_CU] += value * value * value
    x[REF_S2] += s2


# ---- the fast level-shift statistic: generalised likelihood ratio over every possible onset


def _likelihood(x: Floats, scores: Floats) -> None:
    """GLR = max over n of sum(last n scores) / its standard deviation, n >= 2.

    Variance of a sum of n values of an AR(1) process, and of n times the mean of the reference
    (their shared error). Each n is judged by the smaller of the statistic and (the statistic
    without its most extreme score) + LEAVE_ONE_OUT. Slow drift moves a sum the more, the longer it
    is: n values give up n DRIFT_ALLOWANCE each.
    """
    newest, phi = int(x[COUNT]) - 1, x[PHI]
    shared = (1.0 + phi) / (1.0 - phi) / x[REF_N]
    total = top = bottom = variance = less = give_less = 0.0
    power = 1.0  # phi^(n - 1)
    x[GLR_UP] = x[GLR_DOWN] = x[GLR_UP_N] = x[GLR_DOWN_N] = 0.0
    for n in range(1, int(min(x[PENDING], float(EXCURSION))) + 1):
        u = scores[(newest - n + 1) % RING]
        total += u
        top = max(top, u)
        bottom = min(bottom, u)
        variance += 1.0 + 2.0 * phi * (1.0 - power) / (1.0 - phi)
        power *= phi
        whole = 1.0 / math.sqrt(variance + n * n * shared)
        give = n * n * DRIFT_ALLOWANCE
        if n > 1:
            up = min((total - give) * whole, (total - top - give_less) * less + LEAVE_ONE_OUT)
            down = min((-total - give) * whole, (bottom - total - give_less) * less + LEAVE_ONE_OUT)
            if up > x[GLR_UP]:
                x[GLR_UP] = up
                x[GLR_UP_N] = float(n)
            if down > x[GLR_DOWN]:
                x[GLR_DOWN] = down
                x[GLR_DOWN_N] = float(n)
        less, give_less = whole, give


# ---- the certified level-shift statistic: conformal Shiryaev-Roberts


def _certify(y: float, x: Floats, raw: Floats) -> None:
    """Mean of eight Shiryaev-Roberts statistics, each a sum of conformal e-processes.

    p is the rank of y among the values before it (ties broken at random), so for exchangeable
    values it is uniform and independent of the past; a bet e = b p^(b-1) then has mean 1, and so
    has 1 + w (e - 1) for any w that the past decides. Hence R - ticks is a martingale and the mean
    time to R >= A is at least A, whatever the law. Two histories, restarted in turn every 2 BLOCK
    values, keep the ranks of each independent and let slow drift be forgotten.
    """
    tick, history_a, history_b = int(x[COUNT]), int(x[BLOCK_A]), int(x[BLOCK_B])
    above_a = above_b = ties_a = ties_b = 0
    for age in range(1, max(history_a, history_b) + 1):
        other = raw[(tick - age) % RING]
        if other >= y:
            tie = 1 if other == y else 0
            if age <= history_a:
                above_a += 1 - tie
                ties_a += tie
            if age <= history_b:
                above_b += 1 - tie
                ties_b += tie
    # Autocorrelation and an unusually small batch lower the stake. Both are known before y, so the
    # guarantee stands.
    stake = max(0.0, 1.0 - 2.0 * x[PHI]) * max(0.0, 2.0 * x[EVENNESS] - 1.0)
    _bet(above_a, ties_a, history_a, BETS, stake, x)
    _bet(above_b, ties_b, history_b, BETS + 4, stake, x)
    x[BLOCK_A] = (history_a + 1.0) % (2 * BLOCK)
    x[BLOCK_B] = history_b + 1.0
    # History B starts empty when A is half full.
    if x[BLOCK_A] == float(BLOCK):
        x[BLOCK_B] = 0.0
    total = 0.0
    for i in range(8):
        total += x[BETS + i]
    x[SR] = total / 8.0


def _bet(above: int, ties: int, history: int, first: int, stake: float, x: Floats) -> None:
    """Multiply four statistics by their bets on one p-value; hold them while history is short."""
    x[SEED] = float((int(x[SEED]) * LEHMER) % MERSENNE)
    if history < 8:
        return
    p = (above + (ties + 1) * (x[SEED] / MERSENNE)) / (history + 1.0)
    log_p = math.log(max(p, 1e-12))
    for i in range(4):
        exponent = (BET_1, BET_2, BET_3, BET_4)[i]
        bet = exponent * math.exp((exponent - 1.0) * log_p)
        x[first + i] = (1.0 + stake * (bet - 1.0)) * (1.0 + x[first + i])


# ---- growth: the slope of ten block medians


def _trend(x: Floats, raw: Floats) -> None:
    """Every 6 ticks look at the last 60, every 20 at the last 200 (independent of `rebase`).

    A straight line through ten block medians, with Student's t of its slope (8 degrees of freedom):
    a step in the middle cannot exceed t = 5, autocorrelation shorter than a block averages out.
    """
    x[GROWTH_T] = x[GROWTH_SLOPE] = 0.0
    count = int(x[COUNT])
    if count % 6 == 0 and count >= 60:
        _slope(6, x, raw)
    if count % 20 == 0 and count >= 200:
        _slope(20, x, raw)


def _slope(block: int, x: Floats, raw: Floats) -> None:
    """t of the slope through ten medians of `block` values; kept if steeper than what is there."""
    start = int(x[COUNT]) - 10 * block
    sum_y = sum_yy = sum_xy = 0.0
    for i in range(10):
        middle = _block_median(start + i * block, block, raw) - raw[start % RING]
        sum_y += middle
        sum_yy += middle * middle
        sum_xy += (i - 4.5) * middle
    slope = sum_xy / 82.5  # sum of (i - 4.5)^2
    rest = max(sum_yy - sum_y * sum_y / 10.0 - slope * sum_xy, 0.0)
    t = slope / math.sqrt(max(rest / 8.0 / 82.5, TINY * TINY))
    if t > x[GROWTH_T]:
        x[GROWTH_T] = t
        x[GROWTH_SLOPE] = slope / block


def _block_median(start: int, block: int, raw: Floats) -> float:
    """Median of `block` raw values from tick `start`."""
    values = [raw[(start + i) % RING] for i in range(block)]
    values.sort()
    return 0.5 * (values[(block - 1) // 2] + values[block // 2])


# ---- localising a shift after it has been reported


def onset(direction: float, x: Floats, rings: Sequence[Floats]) -> int:
    """How many of the newest values lie after the change: the best of every split.

    Cost of a split = sum of Huber losses to the reference mean before it and to the median of the
    values after it. Unlike the clipped scores, it places a large jump exactly; unlike a likelihood
    it is not drawn away by one wild value.
    """
    raw = rings[0]
    count = int(x[COUNT])
    span = int(min(x[PENDING] + 10.0, x[HELD], float(EXCURSION) + 10.0))
    n = x[REF_N]
    mean = x[REF_SUM] / n
    scale = math.sqrt(max((x[REF_SQ] - n * mean * mean) / (n - 1.0), x[REF_S2] / n, TINY * TINY))
    base = x[CENTER] + mean
    before = 0.0
    for age in range(1, span + 1):
        before += _huber((raw[(count - age) % RING] - base) / scale)
    best, best_n = 1e300, 1
    for after in range(1, span + 1):
        before -= _huber((raw[(count - after) % RING] - base) / scale)
        level = newest_median(after, count, raw)
        if (level - base) * direction <= 0.0:
            continue
        cost = before
        for age in range(1, after + 1):
            cost += _huber((raw[(count - age) % RING] - level) / scale)
        if cost < best:
            best, best_n = cost, after
    return best_n


def newest_median(n: int, count: int, raw: Floats) -> float:
    """Median of the newest n raw values."""
    return _block_median(count - n, n, raw)


def _huber(z: float) -> float:
    """Quadratic to 2, then linear."""
    size = abs(z)
    return 0.5 * size * size if size <= 2.0 else 2.0 * size - 2.0


# Every function above, callees first: what `bench.arl.compiled` hands to numba.
# fmt: off
COMPILED = (
    "student_tail", "_tail", "_log_density", "_weigh", "_middle", "_deviation", "_mad",
    "_place", "_insert", "_spike", "_normal", "_straighten", "_phi", "_score", "_excursion",
    "_accept", "_learn", "_likelihood", "_bet", "_certify", "_block_median", "_slope", "_trend",
    "rebase", "update", "alarms", "settle", "_huber", "newest_median", "onset",
)
# fmt: on
