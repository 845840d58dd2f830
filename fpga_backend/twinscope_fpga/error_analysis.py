"""How far the engine's numbers are from float64, by decade of |Δ|: the tables of docs/fpga.md.

    python -m twinscope_fpga.error_analysis

Reference: float64 on the same float32 difference, by the series of e^Δ - 1 - Δ below 1/2 and by
expm1 above. Compared with Q8.8 as published and with what float32 code does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinscope_fpga import golden

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
BANDS = (
    (1e-6, 1e-5),
    (1e-5, 1e-4),
    (1e-4, 1e-3),
    (1e-3, 1e-2),
    (1e-2, 0.1),
    (0.1, 1.0),
    (1.0, 20.0),
)
SIGMAS = (1e-5, 1e-4, 1e-3, 5e-3, 5e-2, 0.5)


@dataclass(frozen=True)
class Band:
    """Relative errors of k3 for low <= |Δ| < high."""

    low: float
    high: float
    largest: float
    mean: float  # of the absolute relative error
    bias: float  # of the signed relative error


def exact_k3(difference: F64) -> F64:
    """e^Δ - 1 - Δ in float64 without cancellation. [N] -> [N]"""
    terms, total = np.full_like(difference, 0.5), np.zeros_like(difference)
    for k in range(3, 26):
        total += terms
        terms = terms * difference / k
    return np.where(
        np.abs(difference) < 0.5, difference**2 * total, np.expm1(difference) - difference
    )


def engine_k3(difference: F32) -> F64:
    """The golden model's k3 of given float32 differences, via pairs with one side zero."""
    zero = np.zeros_like(difference)
    q = np.where(difference > 0, -difference, zero).astype(np.float32)
    p = np.where(difference > 0, zero, difference).astype(np.float32)
    results = golden.compute(q.view(np.uint32), p.view(np.uint32))
    return value_of(results)


def value_of(results: golden.TokenResults) -> F64:
    """k3 (or e^q) of every token in float64."""
    value: F64 = results.value_high * 2.0 ** (44 - 58) + results.value_low * 2.0**-58
    return value


def q8_8(x: F64) -> F64:
    """Nearest Q8.8 number, saturated."""
    rounded: F64 = np.clip(np.round(x * 256), -32768, 32767) / 256
    return rounded


def q8_8_k3(difference: F32) -> F64:
    """e^Δ - 1 - Δ with a perfect exponential look-up and Q8.8 everywhere."""
    wide = difference.astype(np.float64)
    return q8_8(q8_8(np.exp(np.minimum(wide, 6.0))) - 1.0 - q8_8(wide))


def q8_8_row_kl(rollout: F64, train: F64) -> F64:
    """Σ e^q (q - p) over the last axis as published: Q8.8, probabilities saturated at 1/256."""
    weight = np.maximum(q8_8(np.exp(rollout)), 1 / 256)
    total: F64 = q8_8(weight * q8_8(q8_8(rollout) - q8_8(train))).sum(axis=-1)
    return total


def float32_k3(difference: F32) -> F64:
    """expm1(Δ) - Δ, all in float32: what trainers compute."""
    return (np.expm1(difference) - difference).astype(np.float64)


def log_uniform(count: int, low: float, high: float, seed: int = 1) -> F32:
    """Differences of both signs, |Δ| log-uniform."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.uniform(np.log(low), np.log(high), count))
    signed: F32 = (size * rng.choice([-1.0, 1.0], count)).astype(np.float32)
    return signed


def band_errors(
    model: Callable[[F32], F64],
    count: int = 400_000,
    bands: tuple[tuple[float, float], ...] = BANDS,
) -> list[Band]:
    """Errors of a model of k3, per band of |Δ|."""
    difference = log_uniform(count, bands[0][0], bands[-1][1])
    exact = exact_k3(difference.astype(np.float64))
    relative = (model(difference) - exact) / exact
    size = np.abs(difference)
    found = []
    for low, high in bands:
        inside = relative[(size >= low) & (size < high)]
        found.append(
            Band(low, high, float(np.abs(inside).max()), float(np.abs(inside).mean()),
                 float(inside.mean()))
        )  # fmt: skip
    return found


def sum_error(
    model: Callable[[F32], F64], sigma: float, *, tokens: int = 2000, trials: int = 40
) -> float:
    """Largest relative error of Σ k3 over sequences with Δ ~ N(0, sigma)."""
    rng = np.random.default_rng(2)
    difference = rng.normal(0, sigma, (trials, tokens)).astype(np.float32)
    exact = exact_k3(difference.astype(np.float64)).sum(axis=1)
    found = model(difference.reshape(-1)).reshape(trials, tokens).sum(axis=1)
    return float(np.abs(found / exact - 1).max())


def render_tables() -> str:
    """Both tables as Markdown."""
    models: dict[str, Callable[[F32], F64]] = {
        "engine": engine_k3, "Q8.8": q8_8_k3, "float32 expm1(Δ) - Δ": float32_k3,
    }  # fmt: skip
    bands = {name: band_errors(model) for name, model in models.items()}
    lines = [
        "| \\|Δ\\| | engine max | engine mean | engine bias | Q8.8 max | Q8.8 mean | float32 max |",
        "|---|---|---|---|---|---|---|",
    ]
    for ours, theirs, single in zip(*bands.values(), strict=True):
        lines.append(
            f"| {ours.low:g} to {ours.high:g} | {ours.largest:.1e} | {ours.mean:.1e} "
            f"| {ours.bias:+.0e} | {theirs.largest:.1e} | {theirs.mean:.1e} "
            f"| {single.largest:.1e} |"
        )
    lines += ["", "| σ(Δ) | engine | Q8.8 | float32 |", "|---|---|---|---|"]
    for sigma in SIGMAS:
        errors = [sum_error(model, sigma) for model in models.values()]
        lines.append(f"| {sigma:g} | " + " | ".join(f"{error:.1e}" for error in errors) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render_tables())
