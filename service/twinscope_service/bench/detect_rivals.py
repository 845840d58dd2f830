"""Detectors that others use, each as a score per step: higher means "more surely changed".

Runs as a script in an environment of its own (`.venv-bench`: river, ruptures and the GPL-licensed
changepoint-online never enter the product): reads series from an .npz, writes scores to another.
Each detector sees y[0..t] and nothing later. A detector answers a score per step and, where it
localises, the step at which it would put the change: row 0 and row 1 of its answer. A detector
whose sensitivity is a parameter is run at every setting of a grid; its score at t is the strictest
setting that has alarmed at t. KSWIN needs no grid: until its first alarm it does the same at every
alpha, so -log of its p-value is the score of all of them at once, and first alarms are all we use.

Sources: Page-Hinkley, ADWIN, KSWIN: river; FOCuS, NP-FOCuS: changepoint-online; BOCPD: written here
from Adams & MacKay 2007 (Gaussian, unknown mean and variance); rules: as found in PromQL alerts.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Scores = Any  # float64 array, one per step; or two rows: scores, and estimated onsets
BURN_IN = 20


def three_sigma(y: Scores) -> Scores:
    """abs(x - avg_over_time(x[100])) / stddev_over_time(x[100])."""
    return np.array([_sigmas(y[max(0, t - 100) : t], y[t]) for t in range(len(y))])


def _sigmas(past: Scores, value: float) -> float:
    if len(past) < BURN_IN:
        return 0.0
    return float(abs(value - past.mean()) / max(past.std(), 1e-9))


def ewma(y: Scores) -> Scores:
    """Exponentially weighted mean (weight 0.2) in standard errors from the mean of the last 100."""
    out, smooth = np.zeros(len(y)), float(y[0])
    for t in range(1, len(y)):
        smooth += 0.2 * (float(y[t]) - smooth)
        past = y[max(0, t - 110) : max(0, t - 10)]
        if len(past) >= BURN_IN:
            out[t] = abs(smooth - past.mean()) / max(past.std() / 3.0, 1e-9)
    return out


def bocpd(y: Scores, hazard: float = 1 / 250) -> Scores:
    """-log P(the present run began before the last 10 steps), normal-inverse-gamma model."""
    centre, scale = y[:BURN_IN].mean(), max(y[:BURN_IN].std(), 1e-9)
    z = (y - centre) / scale
    mean, kappa, alpha, beta = np.zeros(1), np.full(1, 1.0), np.full(1, 1.0), np.full(1, 1.0)
    log_run, out, onset = np.zeros(1), np.zeros(len(y)), np.arange(len(y), dtype=float)
    lgamma = np.vectorize(math.lgamma)
    for t, value in enumerate(z):
        width = beta * (kappa + 1) / (alpha * kappa)
        gap = (value - mean) ** 2 / (2 * alpha * width)
        log_density = (
            lgamma(alpha + 0.5) - lgamma(alpha) - 0.5 * np.log(2 * np.pi * alpha * width)
            - (alpha + 0.5) * np.log1p(gap)
        )  # fmt: skip
        joint = log_run + log_density
        fresh = np.logaddexp.reduce(joint) + math.log(hazard)
        log_run = np.concatenate(([fresh], joint + math.log1p(-hazard)))
        log_run -= np.logaddexp.reduce(log_run)
        beta = np.concatenate(([1.0], beta + kappa * (value - mean) ** 2 / (2 * (kappa + 1))))
        mean = np.concatenate(([0.0], (kappa * mean + value) / (kappa + 1)))
        kappa, alpha = np.concatenate(([1.0], kappa + 1)), np.concatenate(([1.0], alpha + 0.5))
        if t >= BURN_IN:
            out[t] = -np.logaddexp.reduce(log_run[10:])
            onset[t] = t + 1 - int(log_run.argmax())
        if len(log_run) > 300:  # the tail holds next to nothing
            keep = slice(0, 300)
            log_run, mean, kappa, alpha, beta = (
                a[keep] for a in (log_run, mean, kappa, alpha, beta)
            )
    return np.stack((out, onset))


def _standard(y: Scores) -> Scores:
    """What a user can do online: z-score by the burn-in."""
    return (y - y[:BURN_IN].mean()) / max(y[:BURN_IN].std(), 1e-9)


def focus(y: Scores) -> Scores:
    """FOCuS, Gaussian, unknown mean before and after, variance from the burn-in."""
    from changepoint_online import Focus, Gaussian  # type: ignore[import-not-found]

    return _run(Focus(Gaussian()), _standard(y), lambda found: float(found.statistic()))


def np_focus(y: Scores) -> Scores:
    """NP-FOCuS on the quartiles of the burn-in, sum of the statistics."""
    from changepoint_online import NPFocus

    detector = NPFocus(np.quantile(y[:BURN_IN], [0.25, 0.5, 0.75]))
    return _run(detector, y, lambda found: float(np.sum(found.statistic())))


def _run(detector: Any, y: Scores, statistic: Callable[[Any], float]) -> Scores:
    """Statistic and estimated onset of a detector of changepoint-online."""
    out, onset = np.zeros(len(y)), np.arange(len(y), dtype=float)
    for t, value in enumerate(y):
        detector.update(value)
        if t >= BURN_IN:
            out[t] = statistic(detector)
            onset[t] = detector.changepoint()["changepoint"]
    return np.stack((out, onset))


def _grid(y: Scores, settings: list[float], build: Callable[[float], Any]) -> Scores:
    """Score = the strictest setting (highest index + 1) that has alarmed at t.

    A detector that keeps an adaptive window puts the change at its beginning.
    """
    out, onset = np.zeros(len(y)), np.arange(len(y), dtype=float)
    standard = _standard(y)
    for index, setting in enumerate(settings):
        detector = build(setting)
        for t, value in enumerate(standard):
            detector.update(float(value))
            if t >= BURN_IN and detector.drift_detected:
                out[t] = max(out[t], index + 1.0)
                onset[t] = t + 1 - getattr(detector, "width", 1)
    return np.stack((out, onset))


def page_hinkley(y: Scores) -> Scores:
    """river's PageHinkley, delta 0.25 (in burn-in sigmas), thresholds on a grid."""
    from river.drift import PageHinkley  # type: ignore[import-not-found]

    settings = np.geomspace(3, 100, 24).tolist()
    return _grid(y, settings, lambda h: PageHinkley(min_instances=BURN_IN, delta=0.25, threshold=h))


def adwin(y: Scores) -> Scores:
    """river's ADWIN, looked at every step; delta on a grid."""
    from river.drift import ADWIN

    settings = np.geomspace(0.9, 1e-12, 24).tolist()
    return _grid(y, settings, lambda d: ADWIN(delta=d, clock=1, grace_period=BURN_IN))


def kswin(y: Scores) -> Scores:
    """river's KSWIN with windows that a burn-in of 20 allows (40, 10); seeded."""
    return _kswin(y, window=40, newest=10)


def kswin_default(y: Scores) -> Scores:
    """river's KSWIN with its own windows (100, 30): blind for the first hundred steps."""
    return _kswin(y, window=100, newest=30)


def _kswin(y: Scores, *, window: int, newest: int) -> Scores:
    """-log of KSWIN's p-value: the score of every alpha until its first alarm."""
    from river.drift import KSWIN

    detector, out = KSWIN(alpha=0.0, window_size=window, stat_size=newest, seed=1), np.zeros(len(y))
    for t, value in enumerate(_standard(y)):
        detector.update(float(value))
        if t >= max(BURN_IN, window - 1):
            out[t] = -math.log(max(detector.p_value, 1e-300))
    return out


def zero(y: Scores) -> Scores:
    """Never says anything: what every detector must beat."""
    return np.zeros(len(y))


RIVALS: dict[str, Callable[[Scores], Scores]] = {
    "three_sigma": three_sigma,
    "ewma": ewma,
    "bocpd": bocpd,
    "focus": focus,
    "np_focus": np_focus,
    "page_hinkley": page_hinkley,
    "adwin": adwin,
    "kswin": kswin,
    "kswin_default": kswin_default,
    "zero": zero,
}
SLOW = ("kswin", "kswin_default")  # not run on event series, nor on those beyond the first few
SPARED = ("e", "m")  # how the names of those series begin
OFFLINE = ("pelt", "kernel")


def offline(y: Scores, name: str) -> list[int]:
    """ruptures on the whole series: change points of PELT (l2, BIC) or KernelCPD (rbf)."""
    import ruptures  # type: ignore[import-not-found]

    z = ((y - y.mean()) / max(y.std(), 1e-9)).reshape(-1, 1)
    search = ruptures.Pelt("l2") if name == "pelt" else ruptures.KernelCPD("rbf")
    return [int(p) for p in search.fit(z).predict(pen=3 * math.log(len(y)))[:-1]]


def main(source: str, target: str, only: list[str]) -> None:
    """Score every series of `source` (.npz of 1-D arrays) with the rivals that import.

    `only`: their names; empty: all.
    """
    series = dict(np.load(source))
    out: dict[str, Scores] = {"digest": series.pop("digest")}
    for name, detector in RIVALS.items():
        if only and name not in only:
            continue
        began, steps = time.process_time(), 0
        try:
            for key, y in series.items():
                if name in SLOW and key.startswith(SPARED):
                    continue
                out[f"{name}|{key}"] = detector(y)
                steps += len(y)
        except ImportError as error:
            print(f"{name}: not installed ({error})", file=sys.stderr)
            continue
        out[f"{name}|cost"] = np.array([(time.process_time() - began) / max(steps, 1)])
        print(f"{name}: {1e6 * out[f'{name}|cost'][0]:.0f} us per step", file=sys.stderr)
    for name in OFFLINE:
        try:
            for key, y in series.items():
                if not key.startswith("t"):
                    continue  # a reference for onsets only
                out[f"{name}|{key}"] = np.array(offline(y, name), dtype=np.float64)
        except ImportError as error:
            print(f"{name}: not installed ({error})", file=sys.stderr)
    np.savez_compressed(target, **out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
