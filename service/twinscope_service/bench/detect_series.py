"""The series of the detector benchmark: synthetic, resampled from recorded traces, public.

Every case is a series y (a log level, or z-scored), where the change is, and which family it is of.
Healthy series of the same noise, for setting false-alarm rates, come beside them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from twinscope_service.bench import arl
from twinscope_service.measure import formulas

F64 = NDArray[np.float64]

SIZES = (1.0, 1.75, 3.0, 7.5, 30.0)  # in standard deviations; with 10 % noise 30 is a factor of 20
SYNTHETIC = ("normal", "t4", "gamma4", "ar03", "outliers", "drift")
FRACTIONS = (0.05, 0.2, 1.0)  # of the samples of a step that are faulty
AFTER = 60  # steps after the change
HEALTHY_STEPS = 280  # of a healthy series: about as long as the longest one with a change
OUTLIER = 4.9  # of the outlier law: a step this far off is an event itself
FEW, FEW_HEALTHY = 20, 80  # series per family and healthy ones that the slowest detectors see
EVENT_STEPS = 600  # of each event series: the slowest rival takes milliseconds per step
MARGIN = 5  # TCPDBench: a reported change this near a labelled one is right


@dataclass(frozen=True)
class Case:
    """One series with one change at `change` (None: healthy)."""

    noise: str  # healthy cases of the same noise set the false-alarm rate
    family: str
    y: F64
    change: int | None
    events: NDArray[np.bool_] | None = None  # steps that are wild themselves: any alarm is right
    extra: bool = False  # not shown to the slowest detectors


def synthetic(*, paths: int, healthy_paths: int, seed: int) -> Iterator[Case]:
    """Six laws of noise, five sizes, changes at steps 60 and about 220."""
    for name in SYNTHETIC:
        law = arl.LAWS.index(name)
        for path in range(healthy_paths):
            y, _ = arl.noise(law, HEALTHY_STEPS, seed=seed + 7919 * path)
            yield Case(name, f"{name} healthy", y, None, _events(law, y), path >= FEW_HEALTHY)
        for path in range(paths):
            for at in (60, 200 + path % 40):
                y, _ = arl.noise(law, at + AFTER, seed=seed + 104_729 + 31 * path + at)
                for size in SIZES:
                    shifted = y + np.where(np.arange(len(y)) >= at, size, 0.0)
                    when = "@60" if at == 60 else "@220"
                    family = f"{name} {size:g}σ {when}"
                    yield Case(name, family, shifted, at, _events(law, y), path >= FEW)


def _events(law: int, y: F64) -> NDArray[np.bool_] | None:
    """Steps of healthy noise y that are outliers: whoever alarms there is right, not early."""
    return np.abs(y) >= OUTLIER if law == arl.OUTLIERS else None


def traces(folder: Path, *, paths: int, healthy_paths: int, seed: int) -> Iterator[Case]:
    """log k3 of steps resampled from recorded runs: healthy samples, then some faulty ones.

    A step is 48 samples drawn with replacement; from the change on, a fraction is drawn from the
    faulty recording.
    """
    healthy = sample_sums(folder / "healthy_bf16.safetensors")
    rng = np.random.default_rng(seed)
    for path in range(healthy_paths):
        y = _resampled(rng, healthy, healthy, HEALTHY_STEPS, None)
        yield Case("traces", "traces healthy", y, None, extra=path >= FEW_HEALTHY)
    for name in ("temperature_0.7_unrestored", "stale_one_layer", "top_p_0.9", "rope_bf16"):
        faulty = sample_sums(folder / f"{name}.safetensors")
        for fraction in FRACTIONS:
            for path in range(paths):
                at = 100 + path % 40
                y = _resampled(rng, healthy, faulty, at + AFTER, (at, fraction))
                yield Case("traces", f"{name} {fraction:.0%}", y, at, extra=path >= FEW)


def _resampled(
    rng: np.random.Generator, healthy: F64, faulty: F64, steps: int, mix: tuple[int, float] | None
) -> F64:
    """log of the token-mean k3 of every step. `mix`: (first faulty step, fraction of samples)."""
    out = np.empty(steps)
    for step in range(steps):
        count = 0 if mix is None or step < mix[0] else max(1, round(48 * mix[1]))
        rows = np.concatenate(
            (healthy[rng.integers(len(healthy), size=48 - count)],
             faulty[rng.integers(len(faulty), size=count)])
        )  # fmt: skip
        out[step] = np.log(max(rows[:, 0].sum() / rows[:, 1].sum(), 1e-12))
    return out


def sample_sums(path: Path) -> F64:
    """[samples, 2]: Σ k3 and number of counted tokens of every sample of a recorded trace."""
    from twinscope.wire.codec import read_trace

    batch = read_trace(path)
    tensors = batch.tensors
    q, p = (np.asarray(tensors[f"{side}_logprobs"], np.float64) for side in ("rollout", "train"))
    keep = np.isfinite(q) & np.isfinite(p) & (q <= 0) & (p <= 0) & (q > -1000) & (p > -1000)
    if "mask" in tensors:
        keep &= np.asarray(tensors["mask"]) == 1
    delta = np.clip(np.where(keep, p - q, 0.0), -20, 20)
    offsets = np.asarray(tensors["offsets"])
    total, n = (np.add.reduceat(x, offsets[:-1]) for x in (formulas.k3(delta), keep.astype(float)))
    return np.stack((total, n), axis=1)[n > 0]


# ---- public labelled series, from a folder that the user names (none are shipped)


@dataclass(frozen=True)
class Annotated:
    """One TCPD series and the change points of each of its annotators."""

    name: str
    y: F64
    annotations: dict[str, list[int]]


def tcpd(folder: Path) -> list[Annotated]:
    """The univariate series of the Turing Change Point Dataset, z-scored, gaps carried forward."""
    labels = json.loads((folder / "tcpd" / "annotations.json").read_text(encoding="utf-8"))
    found = []
    for path in sorted((folder / "tcpd").glob("*.json")):
        if path.name == "annotations.json":
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["n_dim"] != 1 or document["name"] not in labels:
            continue
        y = np.array([np.nan if v is None else v for v in document["series"][0]["raw"]], float)
        last = np.maximum.accumulate(np.where(np.isnan(y), 0, np.arange(len(y))))
        y = y[last]
        y = (y - y.mean()) / y.std()
        found.append(Annotated(document["name"], y, labels[document["name"]]))
    return found


def cloud_monitoring(folder: Path) -> list[tuple[str, F64, NDArray[np.int64]]]:
    """(name, z-scored values, labels) of the Microsoft cloud-monitoring series."""
    found = []
    for path in sorted((folder / "cloud-monitoring").glob("*.csv")):
        with path.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        y = np.array([float(row["Value"] or "nan") for row in rows])
        y = np.where(np.isnan(y), np.nanmedian(y), y)
        labels = np.array([int(row["Label"]) for row in rows], np.int64)
        y, labels = y[:EVENT_STEPS], labels[:EVENT_STEPS]
        found.append((path.stem, (y - y.mean()) / max(float(y.std()), 1e-12), labels))
    return found


def f_measure(annotations: dict[str, list[int]], found: list[int]) -> float:
    """TCPDBench's F1: precision against the union of annotators, recall averaged over them.

    Step 0 counts as a change point on both sides, so that "no change" can be right.
    """
    predicted = {0, *found}
    truth = [{0, *points} for points in annotations.values()]
    union = set().union(*truth)
    precision = len(_matched(union, predicted)) / len(predicted)
    recall = float(np.mean([len(_matched(points, predicted)) / len(points) for points in truth]))
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _matched(truth: set[int], predicted: set[int]) -> set[int]:
    """True points with a predicted one within MARGIN; a predicted point serves one true point."""
    free, matched = set(predicted), set()
    for point in sorted(truth):
        near = [p for p in free if abs(p - point) <= MARGIN]
        if near:
            free.discard(min(near, key=lambda p: abs(p - point)))
            matched.add(point)
    return matched


def covering(annotations: dict[str, list[int]], found: list[int], steps: int) -> float:
    """Mean over annotators of the covering of their segmentation by the predicted one."""
    ours = _segments(found, steps)
    scores = []
    for points in annotations.values():
        parts = _segments(points, steps)
        best = (len(p) * max(len(p & q) / len(p | q) for q in ours) for p in parts)
        scores.append(sum(best) / steps)
    return float(np.mean(scores))


def _segments(points: list[int], steps: int) -> list[set[int]]:
    edges = sorted({0, *points, steps})
    return [set(range(a, b)) for a, b in pairwise(edges) if b > a]
