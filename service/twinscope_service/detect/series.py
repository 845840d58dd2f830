"""Which series of a run are watched: `observe(summary, metrics, ...) -> list[Observation]`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import median

from twinscope_service.detect.findings import Observation
from twinscope_service.measure.records import COVERAGE, PROFILE_COLUMNS, Summary

Metrics = Mapping[str, float | None]

GROUP_TOKENS = 100  # a group with fewer counted tokens in a step says nothing in that step
GROUP_LABELS = 256  # most labels per name; more is not a set of replicas but an identifier
GROUPS_COMPARED = 3  # from so many groups on, each is compared with the median of all
# Labels that change by themselves: a group that exists for a few steps has no past to compare with.
PASSING_GROUPS = frozenset(
    {"weight_version", "rollout_version", "train_version", "version", "turn"}
)

# Shares of tokens that should be tiny and steady. Below `least` nobody is told.
SHARES: dict[str, str] = {  # coverage class -> what it is a share of
    "nonfinite": "usable",
    "sentinel": "usable",
    "positive": "usable",
    "zero_rollout": "counted",
    "zero_train": "counted",
    "delta_zero": "counted",
    "clamped": "counted",
}
LEAST_SHARE = 1e-3


def observe(summary: Summary, metrics: Metrics, *, step: int) -> list[Observation]:
    """Everything that is watched about one closed step. Unknown metrics are observed as None."""
    tokens = int(summary.coverage[COVERAGE.index("counted")])
    return [
        *_levels(metrics, step=step, tokens=tokens, samples=summary.samples),
        *_shares(summary, step=step),
        *_groups(summary, metrics, step=step, tokens=tokens),
    ]


def _levels(metrics: Metrics, *, step: int, tokens: int, samples: int) -> Iterator[Observation]:
    """Mean k3, median and p99 of |Δ| on a log scale; E[ρ] − 1 and E[−p] − H as they are.

    With the clustered standard errors of measure.derive where there is one. A quantile has none;
    the relative error of the mean |Δ| stands for its dependence on the batch size.
    """
    k3, rho = metrics.get("k3_mean"), metrics.get("rho_mean")
    abs_mean, abs_error = metrics.get("abs_mean"), metrics.get("abs_mean_se")
    relative = abs_error / abs_mean if abs_error and abs_mean else None
    yield Observation("k3", step, k3, tokens, samples, metrics.get("k3_mean_se"))
    for name in ("abs_p50", "abs_p99"):
        value = metrics.get(name)
        error = None if value is None or relative is None else relative * value
        yield Observation(name, step, value, tokens, samples, error)
    excess = None if rho is None else rho - 1.0
    error = metrics.get("rho_mean_se")
    yield Observation("rho_excess", step, excess, tokens, samples, error, scale="linear")
    if (surprise := metrics.get("surprise_mean")) is not None:  # the trainer sends entropy
        yield Observation("surprise", step, surprise, tokens, samples, scale="linear")


def _shares(summary: Summary, *, step: int) -> Iterator[Observation]:
    """Coverage classes as shares of tokens, (count + ½) / (n + 1), with their binomial error.

    The half keeps the logarithm finite at a count of 0, where most of them are all the time.
    """
    count = dict(zip(COVERAGE, summary.coverage.tolist(), strict=True))
    base = {"counted": count["counted"], "usable": count["received"] - count["masked_out"]}
    for name, of in SHARES.items():
        n = base[of]
        value = (count[name] + 0.5) / (n + 1.0) if n else None
        error = None if value is None else value / math.sqrt(count[name] + 0.5)
        yield Observation(
            f"{name}_share", step, value, n, summary.samples, error, least=LEAST_SHARE
        )


def _groups(summary: Summary, metrics: Metrics, *, step: int, tokens: int) -> Iterator[Observation]:
    """Mean k3 of every group, relative to the median group of the same name in the same step.

    What all groups share (the policy sharpens, the prompts change) cancels, so one bad replica in
    64 stands out although the mean of all hardly moves. All groups of a name share one false-alarm
    budget. With fewer than GROUPS_COMPARED groups the plain level is watched.
    """
    by_name: dict[str, dict[str, tuple[float, int]]] = {}
    n, k3 = PROFILE_COLUMNS.index("n"), PROFILE_COLUMNS.index("k3")
    for (name, label), sums in summary.groups.items():
        if name not in PASSING_GROUPS and label and sums[n] >= GROUP_TOKENS:
            by_name.setdefault(name, {})[label] = (float(sums[k3] / sums[n]), int(sums[n]))
    mean, error = metrics.get("k3_mean"), metrics.get("k3_mean_se")
    unit = error / mean * math.sqrt(tokens) if error and mean else None  # relative, per token
    for name, levels in sorted(by_name.items()):
        if not 2 <= len(levels) <= GROUP_LABELS:
            continue
        middle = median(level for level, _ in levels.values())
        compared = len(levels) >= GROUPS_COMPARED and middle > 0.0
        family = 1 << (len(levels) - 1).bit_length()
        for label, (level, count) in sorted(levels.items()):
            value = level / middle if compared else level
            group_error = None if unit is None else unit * value / math.sqrt(count)
            yield Observation(
                f"k3{{{name}={label}}}", step, value, count, 0, group_error,
                family=family, expected=1.0 if compared else None,
            )  # fmt: skip
