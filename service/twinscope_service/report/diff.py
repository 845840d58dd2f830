"""From which step on do two runs part? Per metric, by the detectors that watch a run.

Two runs are compared step by step: B's value over A's where all values are positive (levels such
as k3), B's minus A's otherwise. Equal runs give a series around 1 (or 0), whatever both have in
common: that series is watched as a run's own is, with the same mean number of steps to a false
alarm, and its first level shift or growth is where the two part. A spike is not a parting.

The detectors learn a series' usual level from its first BURN_IN steps. A difference that was there
from the start would be learnt as usual, so those steps are looked at by themselves: if all lie on
one side (by chance once in 2^19) and their median is off by what is worth a report, the runs part
at the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from twinscope_service.detect import level
from twinscope_service.detect.findings import DetectOptions, Finding, Observation
from twinscope_service.detect.kernels import BURN_IN
from twinscope_service.views import StepView

# Levels and shares, then what trainers send themselves.
METRICS = (
    "k3_mean", "abs_mean", "abs_p99", "rho_mean", "ess_ratio", "clip_fraction", "policy_ref_kl",
)  # fmt: skip
SHARES = ("rho_mean", "ess_ratio", "clip_fraction")  # near 1 or 0: their differences count
Outcome = Literal["equal", "together", "parted", "unknown"]


@dataclass(frozen=True)
class Pair:
    """One metric of one step of both runs."""

    step: int
    a: float
    b: float
    tokens: int  # the fewer of the two
    a_error: float | None = None  # standard errors; None: not known
    b_error: float | None = None


@dataclass(frozen=True)
class Parting:
    """What became of one metric. Steps and levels are None where `outcome` has none."""

    metric: str
    outcome: Outcome
    steps: int  # compared
    differs: int | None = None  # the first step at which the numbers are not equal to the last bit
    parts: int | None = None  # the first step from which on the levels are different
    a: float | None = None  # medians from there on, or of all steps
    b: float | None = None


@dataclass(frozen=True)
class Difference:
    """Two runs side by side."""

    a: str
    b: str
    common: int  # closed steps that both have
    metrics: tuple[Parting, ...]
    verdict: int | None  # the first step with different verdicts

    @property
    def first(self) -> Parting | None:
        """The metric that parts first; None: none does."""
        found = [one for one in self.metrics if one.parts is not None]
        return min(found, key=lambda one: one.parts or 0, default=None)

    def as_json(self) -> dict[str, Any]:
        """Everything, plain."""
        return asdict(self)


def compare(
    a: Iterable[StepView], b: Iterable[StepView], *, options: DetectOptions | None = None
) -> Difference:
    """The closed steps that both runs have, metric by metric."""
    options = options or DetectOptions()
    first = {view.step: view for view in a if view.state == "closed"}
    second = {view.step: view for view in b if view.state == "closed"}
    views = [(first[step], second[step]) for step in sorted(first.keys() & second.keys())]
    scalars = sorted({name for x, y in views for name in x.scalars.keys() & y.scalars.keys()})
    names = [*METRICS, *(name for name in scalars if name not in METRICS)]
    found = [part(name, pairs_of(views, name), options=options) for name in names]
    return Difference(
        a=next((view.run for view in first.values()), ""),
        b=next((view.run for view in second.values()), ""),
        common=len(views),
        metrics=tuple(one for one in found if one.steps),
        verdict=next((x.step for x, y in views if x.verdict != y.verdict), None),
    )


def pairs_of(views: Sequence[tuple[StepView, StepView]], name: str) -> list[Pair]:
    """The steps in which both runs know the metric or scalar `name`."""
    found = []
    for x, y in views:
        a, b = (_value(view, name) for view in (x, y))
        if a is None or b is None:
            continue
        tokens = min(view.coverage.get("counted", 0) for view in (x, y))
        errors = (view.metrics.get(f"{name}_se") for view in (x, y))
        found.append(Pair(x.step, a, b, tokens, *errors))
    return found


def _value(view: StepView, name: str) -> float | None:
    found = view.metrics.get(name) if name in METRICS else view.scalars.get(name)
    return found if found is not None and math.isfinite(found) else None


def part(name: str, pairs: Sequence[Pair], *, options: DetectOptions) -> Parting:
    """Where one metric parts, by the rule at the head of this file."""
    differs = next((pair.step for pair in pairs if pair.a != pair.b), None)
    plain = Parting(name, "equal", len(pairs), differs, None, *_medians(pairs))
    if differs is None:
        return plain
    if len(pairs) < BURN_IN:
        return replace(plain, outcome="unknown")
    if name in METRICS:
        least = options.min_change
    else:  # a trainer's own number has any unit: what counts is its own size
        least = (options.min_ratio - 1.0) * max(abs(plain.a or 0.0), abs(plain.b or 0.0))
    log = name not in SHARES and all(pair.a > 0 and pair.b > 0 for pair in pairs)
    options = replace(options, min_change=max(least, 1e-12))
    step = _since_the_start(pairs, options, log=log)
    if step is None:
        step = _shifted(name, pairs, options, log=log)
    if step is None:
        return replace(plain, outcome="together")
    a, b = _medians([pair for pair in pairs if pair.step >= step])
    return replace(plain, outcome="parted", parts=step, a=a, b=b)


def _since_the_start(pairs: Sequence[Pair], options: DetectOptions, *, log: bool) -> int | None:
    """The first step, if the first BURN_IN differences lie on one side and matter."""
    off = [_gap(pair, log=log) for pair in pairs[:BURN_IN]]
    one_side = min(off) > 0.0 or max(off) < 0.0
    least = math.log(options.min_ratio) if log else options.min_change
    return pairs[0].step if one_side and abs(median(off)) >= least else None


def _gap(pair: Pair, *, log: bool) -> float:
    return math.log(pair.b / pair.a) if log else pair.b - pair.a


def _shifted(name: str, pairs: Sequence[Pair], options: DetectOptions, *, log: bool) -> int | None:
    """The onset of the first level shift or growth of either over the other; None: there is none.

    Both ways round, because a rise is told sooner than a fall; they share one false-alarm budget.
    """
    turned = [replace(p, a=p.b, b=p.a, a_error=p.b_error, b_error=p.a_error) for p in pairs]
    found = [_first_onset(name, one, options, log=log) for one in (pairs, turned)]
    return min((step for step in found if step is not None), default=None)


def _first_onset(
    name: str, pairs: Sequence[Pair], options: DetectOptions, *, log: bool
) -> int | None:
    state = level.fresh(name, two_sided=not log)
    for pair in pairs:
        state, findings = level.update(state, _observation(name, pair, log=log), options=options)
        step = next((step for step in map(_onset, findings) if step is not None), None)
        if step is not None:
            return step
    return None


def _onset(finding: Finding) -> int | None:
    lasting = finding.kind in ("level_shift", "growth") and finding.state == "firing"
    return finding.onset_step if lasting else None


def _observation(name: str, pair: Pair, *, log: bool) -> Observation:
    """The compared series at one step, with the standard error of both sides."""
    value, error = pair.b - pair.a, None
    if pair.a_error is not None and pair.b_error is not None:
        error = math.hypot(pair.a_error, pair.b_error)
    if log:
        value = pair.b / pair.a
        relative = [(pair.a_error or 0.0) / pair.a, (pair.b_error or 0.0) / pair.b]
        error = None if error is None else value * math.hypot(*relative)
    return Observation(
        name, pair.step, value, pair.tokens, 0, error, scale="log" if log else "linear", family=2
    )


def _medians(pairs: Sequence[Pair]) -> tuple[float | None, float | None]:
    if not pairs:
        return None, None
    return median(pair.a for pair in pairs), median(pair.b for pair in pairs)


def text(found: Difference, *, words: Mapping[str, str]) -> str:
    """For people: a line per metric, then which parts first. `words`: titles of metrics."""
    head = f"{'metric':<26}{'first differs':>14}{'parts from':>12}  {'A':>10}  {'B':>10}"
    lines = [f"A {found.a}, B {found.b}: {found.common} steps in common", "", head]
    for one in found.metrics:
        differs = "never" if one.differs is None else f"step {one.differs}"
        parts = {"parted": f"step {one.parts}", "unknown": "too few"}.get(one.outcome, "-")
        a, b = (f"{x:.4g}" if x is not None else "-" for x in (one.a, one.b))
        title = words.get(one.metric, one.metric)
        lines.append(f"{title:<26}{differs:>14}{parts:>12}  {a:>10}  {b:>10}")
    if found.verdict is not None:
        lines.append(f"\nverdicts differ first at step {found.verdict}")
    return "\n".join([*lines, "", conclusion(found)])


def conclusion(found: Difference) -> str:
    """One sentence."""
    first = found.first
    if first is not None:
        return f"they part at step {first.parts}, {first.metric} first"
    if not found.metrics or any(one.outcome == "unknown" for one in found.metrics):
        return f"unknown: fewer than {BURN_IN} steps can be compared"
    if all(one.outcome == "equal" for one in found.metrics):
        return "every number is equal to the last bit: the same data under two names?"
    return "they do not part"
