"""`twinscope bench detect`: our detectors beside others' on the same series.

Fair by construction: every detector is reduced to one score per step, and its limit is set on
healthy series of the same noise, so that all have the same false-alarm rate there. Then delays,
misses and onset errors are those of the same cases. Public labelled series are scored with their
own measures. docs/detectors.md holds the last run; `--series` names the folder of public series.
"""

from __future__ import annotations

import hashlib
import math
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from twinscope_service.bench import arl
from twinscope_service.bench import detect_series as data
from twinscope_service.bench.detect_series import F64, Case
from twinscope_service.detect import kernels as k
from twinscope_service.detect import level
from twinscope_service.detect.findings import DetectOptions, Observation
from twinscope_service.detect.thresholds import LIKELIHOOD_TABLE, SHARES

OURS = "twinscope"
RUN_LENGTH = 500.0  # healthy steps between two false alarms, for every detector
EVENT_RATE = 1 / 200.0  # alarms per normal point on the event series


@dataclass(frozen=True)
class Row:
    """One detector on one family, at the common false-alarm rate."""

    family: str
    detector: str
    median_delay: float  # steps from the change, the step of the change counting 1; AFTER if missed
    mean_delay: float
    missed: float  # share of cases
    early: int  # cases with an alarm before the change
    exposure: int  # healthy steps looked at before the change
    onset_error: float  # median distance of estimated and true onset, steps; nan: never detected
    delays: Mapping[int, int] = field(default_factory=dict)  # number of the case -> steps


def score(y: F64, seed: int = 1) -> F64:
    """Our score: log of the longest target run length at which this step still alarms."""
    slots = np.array([k.GLR_UP, k.GLR_DOWN, k.SR, k.SPIKE_P, k.SPIKE_P_LAST, k.Z, k.Z_LAST])
    up, down, certified, p, p_last, z, z_last = arl.tracer()(y, np.zeros(len(y)), seed, slots).T
    worst = np.where(z * z_last > 0.0, np.maximum(p, p_last), 1.0)
    logs = np.stack(
        (
            _log_run_length(up) + np.log(SHARES["up"]),
            _log_run_length(down) + np.log(SHARES["down"]),
            np.log(np.maximum(certified, 1e-300) * SHARES["certified"]),
            np.log(SHARES["spike"] / np.maximum(p, 1e-300)),
            np.log(SHARES["pair"]) - 2.0 * np.log(np.maximum(worst, 1e-300)),
        )
    )
    best: F64 = np.maximum(logs.max(axis=0), 0.0)
    best[: k.BURN_IN] = 0.0  # not judged
    return best


def onsets(y: F64, seed: int = 1) -> F64:
    """Where our detector would put the change, were it to alarm at this step."""
    found: F64 = np.arange(len(y)) + 1.0 - arl.localiser()(y, np.zeros(len(y)), seed)
    return found


def own_cost(steps: int = 2000) -> float:
    """Seconds of one core per value of one series, as the service runs it: plain Python."""
    y, _ = arl.noise(arl.NORMAL, steps, seed=1)
    state, options = level.fresh("bench"), DetectOptions()
    began = time.process_time()
    for step, value in enumerate(np.exp(0.1 * y).tolist()):
        seen = Observation("bench", step, value, 0, 0)
        state, _ = level.update(state, seen, options=options)
    return (time.process_time() - began) / steps


def spike_score(y: F64, seed: int = 1) -> F64:
    """The spike detector alone: distance from the median in scales. For events, not shifts."""
    found: F64 = np.abs(arl.tracer()(y, np.zeros(len(y)), seed, np.array([k.Z]))[:, 0])
    found[: k.BURN_IN] = 0.0
    return found


def _log_run_length(statistic: F64) -> F64:
    """log of `thresholds.likelihood_arl`, on arrays: the same straight lines."""
    runs, limits = (np.array(column) for column in zip(*LIKELIHOOD_TABLE, strict=True))
    runs = np.log(runs)
    piece = np.clip(np.searchsorted(limits, statistic) - 1, 0, len(limits) - 2)
    slope = (runs[piece + 1] - runs[piece]) / (limits[piece + 1] - limits[piece])
    found: F64 = runs[piece] + slope * (statistic - limits[piece])
    return found


def limit_at(healthy: Sequence[F64], run_length: float) -> float:
    """The lowest limit with at least this run length to the first alarm after the burn-in."""
    top = [np.maximum.accumulate(scores[k.BURN_IN :]) for scores in healthy]
    candidates = np.unique(np.concatenate([np.unique(t) for t in top]))
    low, high = 0, len(candidates)
    while low < high:
        middle = (low + high) // 2
        limit = candidates[middle]
        firsts = [int(np.searchsorted(t, limit, side="left")) for t in top]
        alarms = sum(first < len(t) for first, t in zip(firsts, top, strict=True))
        if sum(firsts) / max(alarms, 0.5) >= run_length:
            high = middle
        else:
            low = middle + 1
    return float(candidates[low]) if low < len(candidates) else float(candidates[-1]) + 1e-9


@dataclass(frozen=True)
class Detections:
    """What one detector did on the cases of one family at one limit."""

    delays: dict[int, int]  # of detected and missed (AFTER) cases without an earlier alarm
    errors: list[float]  # onset errors of the detected ones, steps
    missed: int
    early: int  # cases with an alarm before the change
    exposure: int  # healthy steps looked at


def detections(cases: Sequence[tuple[Case, F64, F64 | None]], limit: float) -> Detections:
    """(case, its scores, its estimated onsets or None) to delays; None: the alarm is the onset.

    Cases are numbered as they come.
    """
    found: dict[int, int] = {}
    errors: list[float] = []
    missed = early = exposure = 0
    for number, (case, scores, placed) in enumerate(cases):
        assert case.change is not None
        hits = np.nonzero(scores >= limit)[0]
        first = int(hits[0]) if len(hits) else len(scores)
        exposure += min(first, case.change) - k.BURN_IN
        if first < case.change:
            early += 1
        elif first < len(scores):
            found[number] = first - case.change + 1
            errors.append(abs((first if placed is None else placed[first]) - case.change))
        else:
            missed += 1
            found[number] = data.AFTER
    return Detections(found, errors, missed, early, exposure)


def compare(
    cases: Sequence[Case],
    scores: Mapping[str, Sequence[F64 | None]],
    placed: Mapping[str, Sequence[F64 | None]] | None = None,
) -> list[Row]:
    """Every detector on every family. `scores`, `placed`: detector -> one array per case.

    None among the scores: that detector did not look at this case.
    """
    rows = []
    families = list(dict.fromkeys(c.family for c in cases if c.change is not None))
    for detector, found in scores.items():
        where = (placed or {}).get(detector) or [None] * len(cases)
        seen = [
            (case, judged(case, one), place)
            for case, one, place in zip(cases, found, where, strict=True)
            if one is not None
        ]
        limits: dict[str, float] = {}
        for noise in {case.noise for case in cases}:
            healthy = [s for c, s, _ in seen if c.noise == noise and c.change is None]
            limits[noise] = limit_at(healthy, RUN_LENGTH)
        for family in families:
            members = [one for one in seen if one[0].family == family]
            rows.append(_row(family, detector, detections(members, limits[members[0][0].noise])))
    return rows


def judged(case: Case, scores: F64) -> F64:
    """Without the steps that are wild themselves: whoever alarms there is right, and not early.

    Such an alarm finds no shift either, so both before and after the change it does not count.
    """
    return scores if case.events is None else np.where(case.events, 0.0, scores)


def by_chance(mine: Row, other: Row) -> tuple[int, int, float]:
    """Series in which `mine` is later, and earlier, than `other`; probability of a split as uneven.

    A two-sided sign test on the series that neither alarmed in before the change.
    """
    both = mine.delays.keys() & other.delays.keys()
    later = sum(mine.delays[case] > other.delays[case] for case in both)
    earlier = sum(mine.delays[case] < other.delays[case] for case in both)
    n = later + earlier
    tail = sum(math.comb(n, i) for i in range(max(later, earlier), n + 1)) / 2**n
    return later, earlier, min(1.0, 2.0 * tail)


def _row(family: str, detector: str, got: Detections) -> Row:
    delays = list(got.delays.values()) or [data.AFTER]
    return Row(
        family,
        detector,
        median_delay=float(np.median(delays)),
        mean_delay=float(np.mean(delays)),
        missed=got.missed / len(delays),
        early=got.early,
        exposure=got.exposure,
        onset_error=float(np.median(got.errors)) if got.errors else float("nan"),
        delays=got.delays,
    )


@dataclass(frozen=True)
class Rivals:
    """What the others answered: detector -> series -> array."""

    scores: dict[str, dict[str, F64]]
    onsets: dict[str, dict[str, F64]]
    costs: dict[str, float]  # seconds per step


def ask_rivals(
    series: dict[str, F64], python: Path, *, only: Sequence[str] = (), kept: Path | None = None
) -> Rivals:
    """Run the rivals in their own environment. `kept`: a file of their answers, made if absent.

    Answers to other series than these are not used but made again.
    """
    script = Path(__file__).with_name("detect_rivals.py")
    digest = _digest(series, script)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "series.npz"), kept or Path(folder, "answers.npz")
        if not (target.exists() and _is_of(target, digest)):
            np.savez(source, digest=np.array(digest), **series)  # type: ignore[arg-type]
            subprocess.run([str(python), str(script), str(source), str(target), *only], check=True)
        return _read_rivals(target)


def _digest(series: dict[str, F64], script: Path) -> str:
    found = hashlib.blake2b(script.read_bytes(), digest_size=16)
    for key, y in series.items():
        found.update(key.encode() + y.tobytes())
    return found.hexdigest()


def _is_of(answers: Path, digest: str) -> bool:
    with np.load(answers) as stored:
        return "digest" in stored.files and str(stored["digest"]) == digest


def _read_rivals(answers: Path) -> Rivals:
    found = Rivals({}, {}, {})
    with np.load(answers) as stored:
        for key in stored.files:
            name, _, of = key.partition("|")
            value = stored[key]
            if of == "cost":
                found.costs[name] = float(value[0])
            elif of and value.ndim == 2:
                found.scores.setdefault(name, {})[of] = value[0]
                found.onsets.setdefault(name, {})[of] = value[1]
            elif of:
                found.scores.setdefault(name, {})[of] = value
    return found


def changes_of(y: F64, *, target_arl: float) -> list[int]:
    """Onsets that our online detector reports on a plain series (any unit, any size)."""
    options = DetectOptions(target_arl=target_arl, min_change=0.0)
    state, found = level.fresh("bench", two_sided=True), []
    for step, value in enumerate(y.tolist()):
        seen = Observation("bench", step, value, 0, 0, scale="linear")
        state, findings = level.update(state, seen, options=options)
        found += [
            f.onset_step if f.state == "firing" and f.onset_step is not None else f.step
            for f in findings
            if f.kind == "level_shift" and f.state in ("firing", "resolved")
        ]
    return sorted(set(found))
