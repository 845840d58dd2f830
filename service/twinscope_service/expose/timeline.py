"""A whole run as columns, with its own healthy band: what the page's timeline is drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinscope_service.expose.kl_advice import advise
from twinscope_service.views import AlertView, TimelineRow

# Metrics of `analyze --json` that a timeline carries; those that no step knows are left out.
METRICS: tuple[str, ...] = (
    "k3_mean",
    "k1_mean",
    "abs_mean",
    "abs_p99",
    "abs_max",
    "rho_mean",
    "ess_ratio",
    "clip_fraction",
    "entropy_mean",
    "policy_ref_kl",
    "policy_ref_kl_seq_mean",
    "reward_mean",
    "length_mean",
)
WINDOW = 50  # healthy steps that the band at a step looks back on
LEAST = 5  # fewer healthy steps make no band
QUANTILES = (0.05, 0.5, 0.95)
BAND = ("low", "middle", "high")
F64 = NDArray[np.float64]


def describe_timeline(
    rows: Sequence[TimelineRow],
    *,
    alerts: Iterable[AlertView],
    events: Iterable[tuple[int | None, str, Mapping[str, Any]]],
    skip: int = 0,
) -> dict[str, Any]:
    """Columns of equal length, one entry per step. The first `skip` rows only feed the band."""
    known = list(alerts)
    band = healthy_band(
        [row.metrics.get("k3_mean") for row in rows],
        [is_healthy(row, known) for row in rows],
    )
    shown = rows[skip:]
    first = shown[0].step if shown else 0
    return {
        "step": [row.step for row in shown],
        "verdict": [row.verdict for row in shown],
        "closed_at": [row.closed_at for row in shown],
        "counted": [row.counted for row in shown],
        "cause": [row.cause for row in shown],
        "metrics": _columns([row.metrics for row in shown], METRICS),
        "scalars": _columns(
            [row.scalars for row in shown], sorted({name for row in shown for name in row.scalars})
        ),
        "baseline": {name: values[skip:] for name, values in band.items()},
        "kl_advice": kl_advice(rows),
        "alerts": [alert.as_json() for alert in known],
        "events": [
            {"step": step, "kind": kind, "fields": dict(fields)}
            for step, kind, fields in events
            if step is None or step >= first
        ],
    }


def kl_advice(rows: Sequence[TimelineRow]) -> dict[str, Any] | None:
    """Advice on reward against KL(policy‖reference); None where no reference was ever sent."""
    kl = [row.metrics.get("policy_ref_kl") for row in rows]
    if not any(value is not None for value in kl):
        return None
    return advise([row.scalars.get("reward", row.metrics.get("reward_mean")) for row in rows],
                  kl).as_json()  # fmt: skip


def _columns(
    rows: Sequence[Mapping[str, float | None]], names: Iterable[str]
) -> dict[str, list[float | None]]:
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: c for name, c in columns.items() if any(value is not None for value in c)}


def is_healthy(row: TimelineRow, alerts: Iterable[AlertView]) -> bool:
    """`ok`, and no alert about k3 was about this step."""
    return row.verdict == "ok" and not any(
        alert.series == "k3" and _covers(alert, row.step) for alert in alerts
    )


def _covers(alert: AlertView, step: int) -> bool:
    """From its onset on; until it was over, if it is."""
    onset = alert.step if alert.onset_step is None else alert.onset_step
    return onset <= step and (alert.state != "resolved" or step <= alert.step)


def healthy_band(
    k3: Sequence[float | None], healthy: Sequence[bool]
) -> dict[str, list[float | None]]:
    """Quantiles of k3 over the `WINDOW` healthy steps before each step; None below `LEAST` steps.

    A step is never part of its own band, and a bad step of nobody's.
    """
    usable = np.array([ok and x is not None for x, ok in zip(k3, healthy, strict=True)], bool)
    values = np.array([x for x, use in zip(k3, usable, strict=True) if use], np.float64)
    before = np.cumsum(usable) - usable  # healthy steps before each step
    table = _window_quantiles(values)[before]
    return {
        name: [None if np.isnan(x) else float(x) for x in table[:, i]]
        for i, name in enumerate(BAND)
    }


def _window_quantiles(values: F64) -> F64:
    """Row n: QUANTILES of values[max(0, n − WINDOW):n], NaN where these are fewer than LEAST."""
    count = len(values)
    table = np.full((count + 1, len(QUANTILES)), np.nan)
    for n in range(LEAST, min(WINDOW, count + 1)):
        table[n] = np.quantile(values[:n], QUANTILES)
    if count >= WINDOW:
        windows = np.lib.stride_tricks.sliding_window_view(values, WINDOW)
        table[WINDOW:] = np.quantile(windows, QUANTILES, axis=1).T
    return table
