"""From a target average run length (ARL) to the limits of every detector.

The user says how many healthy steps may pass between two false alarms of one series; nothing else
is set by hand. Hazards (1/ARL) of detectors in OR add, so the target is divided by fixed shares,
and each detector gets the limit of its own share. Shares are chosen, by simulation, so that the
realised rate is right for normal noise and within its promise for every law of `bench.arl.LAWS`.
"""

from __future__ import annotations

import math
from functools import cache

from twinscope.errors import ConfigError
from twinscope_service.detect.kernels import student_tail

# Share of the target hazard per detector. The certified detector's realised rate is less than half
# its nominal one and the spike test hardly ever fires on normal noise, so they sum to more than 1.
SHARES = {"up": 0.7, "down": 0.21, "certified": 0.03, "spike": 0.2, "pair": 0.06, "growth": 0.02}

# One-sided ARL of the likelihood-ratio statistic on independent standard normal noise, by
# simulation of 15 million steps from fresh starts (`bench.arl.likelihood_table`, seed 1).
LIKELIHOOD_TABLE: tuple[tuple[float, float], ...] = (
    (300.0, 2.92),
    (1_000.0, 3.30),
    (3_000.0, 3.60),
    (10_000.0, 3.92),
    (30_000.0, 4.18),
    (100_000.0, 4.47),
    (300_000.0, 4.70),
    (1_000_000.0, 4.95),
)
SMALLEST_ARL = 100.0
LARGEST_ARL = 1e12


def check_arl(arl: float, *, name: str = "target_arl") -> float:
    """Refuse a target that no threshold can meet; return it otherwise."""
    if not (isinstance(arl, (int, float)) and SMALLEST_ARL <= arl <= LARGEST_ARL):
        raise ConfigError(
            f"{name}: got {arl!r}; give the mean number of healthy steps between two false alarms "
            f"of one series, from {SMALLEST_ARL:.0f} to {LARGEST_ARL:.0e} (default 10000)"
        )
    return float(arl)


@cache
def limits(arl: float) -> tuple[float, ...]:
    """Limits in the order of `kernels.LIMIT_*` for one series with this target ARL.

    up, down: the likelihood-ratio statistic; certified: the ARL itself (a theorem, no calibration);
    spike, pair: probabilities; growth: Student's t (8 degrees of freedom), looked at every 6 ticks.
    """
    check_arl(arl)
    growth = min(6.0 * SHARES["growth"] / arl, 0.01)
    return (
        likelihood_limit(arl / SHARES["up"]),
        likelihood_limit(arl / SHARES["down"]),
        arl / SHARES["certified"],
        SHARES["spike"] / arl,
        math.sqrt(SHARES["pair"] / arl),
        student_quantile(growth, 8),
    )


def likelihood_limit(arl: float) -> float:
    """Limit of the likelihood-ratio statistic with this one-sided ARL: the table, in log ARL.

    Beyond the table the last slope goes on, which errs to the safe side (the limit grows ever more
    slowly with log ARL).
    """
    wanted = math.log(arl)
    rows = [(math.log(run), limit) for run, limit in LIKELIHOOD_TABLE]
    last = len(rows) - 2
    i = next((i for i in range(last) if wanted <= rows[i + 1][0]), last)
    (low_run, low), (high_run, high) = rows[i], rows[i + 1]
    return low + (high - low) * (wanted - low_run) / (high_run - low_run)


def likelihood_arl(statistic: float) -> float:
    """One-sided ARL at which this statistic would just be the limit (inverse of the above)."""
    low, high = math.log(10.0), math.log(1e30)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high) if likelihood_limit(math.exp(middle)) < statistic else (low, middle)
        )
    return math.exp(low)


def student_quantile(p: float, nu: int) -> float:
    """t with P(T > t) = p, by bisection."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if student_tail(middle, nu) > p else (low, middle)
    return high
