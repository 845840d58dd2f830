"""False-alarm rates of the detectors by simulation: `twinscope bench arl`.

The kernels that the service runs are compiled with numba from the same source (`compiled`) and run
over millions of steps of healthy noise of several laws. `docs/detectors.md` has the figures.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinscope_service.detect import kernels
from twinscope_service.detect.thresholds import limits

F64 = NDArray[np.float64]

LAWS = ("normal", "t4", "gamma4", "ar03", "outliers", "drift", "batch_size")
NORMAL, T4, GAMMA4, AR03, OUTLIERS, DRIFT, BATCH_SIZE = range(7)


@cache
def compiled() -> ModuleType:
    """A second copy of `detect.kernels` whose functions are compiled by numba."""
    import numba

    path = kernels.__file__
    assert path is not None
    spec = importlib.util.spec_from_file_location("twinscope_compiled_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in kernels.COMPILED:
        setattr(module, name, numba.njit(getattr(module, name)))
    return module


def noise(law: int, steps: int, *, seed: int) -> tuple[F64, F64]:
    """Healthy values y with unit variance (drift apart) and their known sampling variance s2.

    s2 is 0 (unknown) except for `batch_size`, where batches change between 1, 4 and 1/4 of the
    usual size every 50 steps and half of the variance at usual size is sampling.
    """
    rng = np.random.default_rng([seed, law])
    unit = rng.standard_normal(steps)
    s2 = np.zeros(steps)
    if law == T4:
        return rng.standard_t(4, steps) / np.sqrt(2.0), s2
    if law == GAMMA4:
        return (rng.gamma(4.0, size=steps) - 4.0) / 2.0, s2
    if law == AR03:
        return autoregressive(unit, 0.3), s2
    if law == OUTLIERS:
        hit = rng.random(steps) < 0.01
        size = rng.uniform(5.0, 15.0, steps) * rng.choice([-1.0, 1.0], steps)
        return np.where(hit, size, unit), s2
    if law == DRIFT:
        return unit + 0.001 * np.arange(steps), s2
    if law == BATCH_SIZE:
        s2 = 0.5 / np.array([1.0, 4.0, 0.25])[(np.arange(steps) // 50) % 3]
        return unit * np.sqrt(0.5 + s2), s2
    return unit, s2


def autoregressive(unit: F64, phi: float) -> F64:
    """Stationary AR(1) of unit variance from unit normals."""
    out = np.empty_like(unit)
    last = unit[0]
    scale = np.sqrt(1.0 - phi * phi)
    for i, value in enumerate(unit.tolist()):
        last = value if i == 0 else phi * last + scale * value
        out[i] = last
    return out


@cache
def watcher() -> Any:
    """Compiled: watch(y, s2, seed, limits, restart) -> alarm bits of every step.

    With `restart` a run begins afresh after every alarm of a level-shift detector, as a run-length
    experiment wants; otherwise the first alarm is followed by more of the same.
    """
    import numba

    code = compiled()
    update, alarms, slots, seed_slot = code.update, code.alarms, code.SLOTS, code.SEED
    ring, window = code.RING, code.WINDOW
    shift = code.PAIR | code.UP | code.DOWN | code.CERTIFIED | code.GROWTH

    @numba.njit(nogil=True)
    def watch(y: F64, s2: F64, seed: int, limits: F64, restart: bool) -> NDArray[np.int64]:
        x = np.zeros(slots)
        x[seed_slot] = seed
        rings = (np.zeros(ring), np.zeros(ring), np.zeros(ring), np.zeros(ring))
        ordered = np.zeros(window)
        bits = np.zeros(len(y), np.int64)
        for i in range(len(y)):
            update(y[i], s2[i], x, rings, ordered)
            bits[i] = alarms(x, limits)
            if restart and bits[i] & shift:
                lehmer = x[seed_slot]
                x[:] = 0.0
                x[seed_slot] = lehmer
        return bits

    return watch


@cache
def tracer() -> Any:
    """Compiled: trace(y, s2, seed, slots) -> the named slots of every step, [steps, len(slots)]."""
    import numba

    code = compiled()
    update, total, seed_slot = code.update, code.SLOTS, code.SEED
    ring, window = code.RING, code.WINDOW

    @numba.njit(nogil=True)
    def trace(y: F64, s2: F64, seed: int, slots: NDArray[np.int64]) -> F64:
        x = np.zeros(total)
        x[seed_slot] = seed
        rings = (np.zeros(ring), np.zeros(ring), np.zeros(ring), np.zeros(ring))
        ordered = np.zeros(window)
        out = np.zeros((len(y), len(slots)))
        for i in range(len(y)):
            update(y[i], s2[i], x, rings, ordered)
            for j in range(len(slots)):
                out[i, j] = x[slots[j]]
        return out

    return trace


@cache
def localiser() -> Any:
    """Compiled: localise(y, s2, seed) -> how many of the newest values lie after a change."""
    import numba

    code = compiled()
    update, onset, total, seed_slot = code.update, code.onset, code.SLOTS, code.SEED
    ring, window, ready = code.RING, code.WINDOW, code.READY
    up, down = code.GLR_UP, code.GLR_DOWN

    @numba.njit(nogil=True)
    def localise(y: F64, s2: F64, seed: int) -> F64:
        x = np.zeros(total)
        x[seed_slot] = seed
        rings = (np.zeros(ring), np.zeros(ring), np.zeros(ring), np.zeros(ring))
        ordered = np.zeros(window)
        out = np.ones(len(y))
        for i in range(len(y)):
            update(y[i], s2[i], x, rings, ordered)
            if x[ready] == 1.0:
                out[i] = onset(1.0 if x[up] >= x[down] else -1.0, x, rings)
        return out

    return localise


@dataclass(frozen=True)
class Rates:
    """Alarms per 10 000 steps by detector, and of all together (distinct steps)."""

    law: str
    steps: int
    by_detector: dict[str, float]
    total: float
    certified_alone: float  # alarms per target ARL of the certified detector at the whole target


def rates(law: int, *, arl: float, steps: int, seed: int, path: int = 20_000) -> Rates:
    """Realised false-alarm rates per `arl` steps on healthy noise of one law.

    On `outliers` a spike on a step that is an outlier is right, not false, and is not counted.
    """
    counts = dict.fromkeys(BITS, 0)
    total = certified = 0
    every = np.array(limits(arl))
    alone = np.array([1e300, 1e300, arl, 0.0, 0.0, 1e300])
    paths = max(1, steps // path)
    for k in range(paths):
        y, s2 = noise(law, path, seed=seed * 1_000_003 + k)
        bits = watcher()(y, s2, k + 1, every, True)
        if law == OUTLIERS:
            bits = np.where(np.abs(y) >= 4.9, bits & ~kernels.SPIKE, bits)
        for name, bit in BITS.items():
            counts[name] += int(np.count_nonzero(bits & bit))
        total += int(np.count_nonzero(bits))
        certified += int(np.count_nonzero(watcher()(y, s2, k + 1, alone, True)))
    scale = arl / (paths * path)
    by_detector = {name: count * scale for name, count in counts.items()}
    return Rates(LAWS[law], paths * path, by_detector, total * scale, certified * scale)


BITS = {
    "up": kernels.UP,
    "down": kernels.DOWN,
    "certified": kernels.CERTIFIED,
    "spike": kernels.SPIKE,
    "pair": kernels.PAIR,
    "growth": kernels.GROWTH,
}


def likelihood_table(*, paths: int, seed: int, steps: int = 2_500) -> list[tuple[float, float]]:
    """(ARL, limit) of the likelihood-ratio statistic on normal noise, from first passages.

    Each path starts afresh; both sides count, since normal noise is symmetric. The ARL of a limit
    is the exposure until the first passage (or the end of the path) per passage.
    """
    grid = np.arange(2.0, 6.0, 0.01)
    exposure, passages = np.zeros(len(grid)), np.zeros(len(grid))
    slots = np.array([kernels.GLR_UP, kernels.GLR_DOWN])
    for path in range(paths):
        y, s2 = noise(NORMAL, steps, seed=seed * 1_000_003 + path)
        for side in tracer()(y, s2, path + 1, slots).T:
            first = np.searchsorted(np.maximum.accumulate(side), grid)
            passages += first < steps
            exposure += np.clip(first - kernels.BURN_IN, 0, None)
    run_length = exposure / np.maximum(passages, 0.5)
    wanted = (300.0, 1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6)
    return [(arl, round(float(grid[np.argmax(run_length >= arl)]), 2)) for arl in wanted]


def delays(size: float, at: int, *, arl: float, paths: int, seed: int) -> tuple[float, float]:
    """Mean delay to the first alarm, and to the first confirmed shift, in normal noise.

    `size` in standard deviations, `at`: first shifted step. The step of the change counts 1.
    Paths with an alarm before the change are left out; without one within 200 steps they count 200.
    """
    limit = np.array(limits(arl))
    first: list[int] = []
    confirmed: list[int] = []
    for path in range(paths):
        y, s2 = noise(NORMAL, at + 200, seed=seed * 1_000_003 + path)
        y[at:] += size
        bits = watcher()(y, s2, path + 1, limit, False)
        if bits[:at].any():
            continue
        for found, wanted in ((first, ~0), (confirmed, SHIFT)):
            hits = np.flatnonzero(bits[at:] & wanted)
            found.append(int(hits[0]) + 1 if len(hits) else 200)
    return float(np.mean(first)), float(np.mean(confirmed))


SHIFT = kernels.UP | kernels.DOWN | kernels.CERTIFIED


def lorden(size: float, arl: float) -> float:
    """Lorden's asymptotic lower bound of the delay of any detector: ln ARL / (size^2 / 2)."""
    return float(np.log(arl) / (0.5 * size * size))


def print_delays(*, arl: float, paths: int) -> None:
    """The table of delays."""
    print(
        "\n| shift | at step | first alarm | confirmed shift | Lorden's bound | confirmed / bound |"
    )
    print("|" + " --- |" * 6)
    for size in (1.0, 1.75, 2.6, 7.5, 30.0):
        for at in (60, 220):
            first, sure = delays(size, at, arl=arl, paths=paths, seed=5)
            bound = lorden(size, arl)
            ratio = f"{sure / bound:.2f}" if bound > 4.0 else "–"
            cells = f"{first:.1f} | {sure:.1f} | {bound:.1f} | {ratio}"
            print(f"| {size:g}σ | {at} | {cells} |", flush=True)


def run(*, steps: int, target: float) -> int:
    """Print the realised rates of every law: `twinscope bench arl`."""
    names = list(BITS)
    print(f"alarms per {target:.0f} healthy steps, target 1, {steps} steps per law")
    print("| law | all | " + " | ".join(names) + " | certified alone at the full target |")
    print("|" + " --- |" * (len(names) + 3))
    for law in range(len(LAWS)):
        found = rates(law, arl=target, steps=steps, seed=3)
        cells = " | ".join(f"{found.by_detector[name]:.2f}" for name in names)
        row = f"| {found.law} | **{found.total:.2f}** | {cells} | {found.certified_alone:.2f} |"
        print(row, flush=True)
    print_delays(arl=target, paths=2000)
    return 0
