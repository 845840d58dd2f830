"""The per-token formulas, in float64: the specification that every engine is held to.

q rollout log-prob, p train log-prob, nats; Δ = p − q (train minus rollout), ρ = e^Δ. Tokens were
drawn from the rollout policy, so k1 = −Δ, k2 = Δ²/2 and k3 = e^Δ − 1 − Δ all estimate
KL(rollout‖train). Everything here maps arrays to arrays of the same shape.
"""

from __future__ import annotations

import math

import numpy as np

from twinscope_service.measure.records import F64

SENTINEL = -1000.0  # nats; at or below: a missing-value marker (-9999.0, -3.4e38), never a log-prob
NOISE_FLOOR = 0.02  # smallest normaliser of |Δ|: a certain token still has rounding noise
LOG_EPSILON = 1e-6  # keeps ln r finite where Δ is 0
GRID_SMALLEST = 0.25  # below, float32 logits minus logsumexp lie on coarse grids by themselves
ONE_SIDED = 0.01  # nats; a difference that counts as "q above p" or "q below p"
DISAGREE = 2.0  # nats; with q > ln 0.5: one side is sure of what the other thinks unlikely
FILL_FAR = 3.0  # nats; a whole-number log-prob this far from the other side is a fill, not a value
LOG_HALF = math.log(0.5)
BOUND_SLACK, BOUND_SLACK_PER_NAT = 0.1, 0.02  # noise allowed beyond the temperature bound
_SERIES_TERMS = 18  # |Δ| <= 0.5: the first term left out is below 1e-22 of the sum


def k3(delta: F64) -> F64:
    """e^Δ − 1 − Δ without cancellation: a series for |Δ| <= 0.5, expm1(Δ) − Δ beyond.

    Both branches are good to a few float64 roundings; e^Δ − 1 − Δ as written is not: in float32 at
    Δ = 1e-4 no digit of it is left (tests/measure/test_kl_accuracy.py shows it).
    """
    small = np.abs(delta) <= 0.5
    near = np.where(small, delta, 0.0)
    series = np.ones_like(near)
    for n in range(_SERIES_TERMS, 2, -1):  # Δ²/2 · (1 + Δ/3 · (1 + Δ/4 · (...)))
        series = 1.0 + near / n * series
    far = np.where(small, 0.0, delta)
    return np.where(small, near * near / 2 * series, np.expm1(far) - far)


def noise_ratio(delta: F64, q: F64) -> F64:
    """r = |Δ| / max(1 − e^q, 0.02): |Δ| in units of how uncertain the token is.

    The same noise on the logits moves a confident token's log-prob less, so anything structural
    (position, group, burst) is judged on r, not on |Δ|.
    """
    return np.abs(delta) / np.maximum(-np.expm1(q), NOISE_FLOOR)


def beyond_bound(q: F64, p: F64, temperature: float) -> np.ndarray:
    """bool: q breaks the bound that `temperature` sets, by more than the slack.

    At T < 1 the softmax of z/T gives q >= p/T for every token (its normaliser is at most 1), at
    T > 1 q <= p/T.
    """
    slack = BOUND_SLACK + BOUND_SLACK_PER_NAT * np.abs(p)
    edge = p * (1.0 / temperature)
    return q < edge - slack if temperature < 1 else q > edge + slack
