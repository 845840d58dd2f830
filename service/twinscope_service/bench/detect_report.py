"""The tables and the plot of `twinscope bench detect`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from twinscope_service.bench import detect
from twinscope_service.bench import detect_series as data
from twinscope_service.bench.detect import OURS, Row
from twinscope_service.bench.detect_series import F64, Case

EVENT_DETECTORS = ("three_sigma", "ewma", "page_hinkley", "adwin")
SKIP = ("zero", "pelt", "kernel")  # no online delay to compare

INTRODUCTION = """# Detector benchmark

Made by `make bench-detect TRACES=DIR SERIES=DIR`: {paths} series per family, {healthy} healthy ones
of {steps} steps per law (for KSWIN, the slowest, at most {few} and {few_healthy}). Delays are in
steps, the step of the change counting 1, at one false alarm per {run_length:.0f} healthy steps of
the same noise for every detector (a column says what came of it on other healthy steps, those
before the changes). A step that is an outlier itself is an event: an alarm there is neither false
nor a find, for any detector. In brackets the share missed within 60 steps; – : the median case is
missed. Our detectors were developed on series from other seeds than these. @60 and @220: the step
of the change. Families without a σ are steps resampled from recorded vLLM/transformers runs, with
5, 20 or 100 % faulty samples. Onset error: median distance of the estimated onset (for a detector
that does not localise: of the alarm) from the true one, averaged over families.

![Median delays, one dot per family](detectors_benchmark.svg)
"""
STRICT_NOTE = """The families with outliers once more, with every alarm counted, also one on a step
that is an outlier. A detector that reports such steps then needs a higher limit for shifts:
"""
TCPD_NOTE = """TCPD: univariate series, z-scored, with TCPDBench's F1 (margin 5) and covering. Ours
are the onsets that are reported online, at three targets.
"""
EVENTS_NOTE = """Microsoft cloud-monitoring: the first 600 points of every series; the limit of each
detector is one alarm per 200 normal points of a series.
"""


def run(
    *,
    paths: int,
    healthy_paths: int,
    series: Path | None,
    traces: Path | None,
    rivals: Path,
    out: Path | None,
    only: Sequence[str] = (),
    kept: Path | None = None,
    seed: int = 1,
) -> int:
    """Run everything that is there and print Markdown; `out` also gets the plot as SVG."""
    cases = list(data.synthetic(paths=paths, healthy_paths=healthy_paths, seed=seed))
    if traces is not None:
        more = data.traces(traces, paths=paths, healthy_paths=healthy_paths, seed=seed)
        cases += list(more)
    public = [] if series is None else data.tcpd(series)
    events = [] if series is None else data.cloud_monitoring(series)
    keys = [f"{'m' if case.extra else 'c'}{i}" for i, case in enumerate(cases)]
    arrays = {key: case.y for key, case in zip(keys, cases, strict=True)}
    arrays |= {f"t{i}": one.y for i, one in enumerate(public)}
    arrays |= {f"e{i}": y for i, (_, y, _) in enumerate(events)}
    scores = {OURS: {key: detect.score(y) for key, y in arrays.items()}}
    onsets = {OURS: {key: detect.onsets(arrays[key]) for key in keys}}
    costs = {OURS: detect.own_cost()}
    if rivals.exists():
        theirs = detect.ask_rivals(arrays, rivals, only=only, kept=kept)
        scores |= theirs.scores
        onsets |= theirs.onsets
        costs |= theirs.costs
    else:
        print(f"{rivals}: not there, so only our own rows; see docs/detectors.md", file=sys.stderr)
    online = {name: found for name, found in scores.items() if name not in SKIP}
    scored, placed = (
        {n: [s.get(key) for key in keys] for n, s in found.items()} for found in (online, onsets)
    )
    rows = detect.compare(cases, scored, placed)
    lines = ["## Summary\n", *summary_table(rows, costs), "", *losses(rows)]
    lines += ["\n## Every family\n", *delay_table(rows)]
    lines += ["", STRICT_NOTE, *delay_table(strictly(cases, scored))]
    if public:
        lines += ["\n## Public labelled series\n", TCPD_NOTE, *tcpd_table(public, scores)]
    if events:
        lines += ["", EVENTS_NOTE, *event_table(events, event_scores(events, online))]
    print("\n".join(lines))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        about = INTRODUCTION.format(
            paths=paths,
            healthy=healthy_paths,
            steps=data.HEALTHY_STEPS,
            few=data.FEW,
            few_healthy=data.FEW_HEALTHY,
            run_length=detect.RUN_LENGTH,
        )
        page = "\n".join((about, *lines, ""))
        (out / "detectors_benchmark.md").write_text(page, encoding="utf-8")
        (out / "detectors_benchmark.svg").write_text(plot(rows), encoding="utf-8")
    return 0


def delay_table(rows: Sequence[Row]) -> list[str]:
    """Median delay in steps (share missed), one line per family, the best in bold."""
    names = list(dict.fromkeys(row.detector for row in rows))
    lines = ["| family | " + " | ".join(names) + " |", "|" + " --- |" * (len(names) + 1)]
    for family in dict.fromkeys(row.family for row in rows):
        found = {row.detector: row for row in rows if row.family == family}
        best = min(row.median_delay for row in found.values())
        lines.append(f"| {family} | " + " | ".join(_cell(found[n], best) for n in names) + " |")
    return lines


def _cell(row: Row, best: float) -> str:
    shown = f"{row.median_delay:g}" if row.median_delay < data.AFTER else "–"
    shown = f"**{shown}**" if row.median_delay == best < data.AFTER else shown
    return shown + (f" ({row.missed:.0%})" if row.missed >= 0.005 else "")


def summary_table(rows: Sequence[Row], costs: dict[str, float]) -> list[str]:
    """One line per detector: families where it is as good as the best, alone best, means, cost."""
    lines = [
        "| detector | best or level | alone best | mean of median delays | missed "
        "| false alarms per 10 000 steps | onset error | us per step |",
        "|" + " --- |" * 8,
    ]
    for name in dict.fromkeys(row.detector for row in rows):
        mine = [row for row in rows if row.detector == name]
        rest = [_best_other(rows, row) for row in mine]
        level = sum(row.median_delay <= r for row, r in zip(mine, rest, strict=True))
        alone = sum(row.median_delay < r for row, r in zip(mine, rest, strict=True))
        cells = (
            name,
            f"{level} of {len(mine)}",
            f"{alone}",
            f"{np.mean([row.median_delay for row in mine]):.1f}",
            f"{np.mean([row.missed for row in mine]):.1%}",
            f"{1e4 * sum(row.early for row in mine) / sum(row.exposure for row in mine):.0f}",
            f"{np.nanmean([row.onset_error for row in mine]):.1f}",
            f"{1e6 * costs[name]:.0f}" if name in costs else "?",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _best_other(rows: Sequence[Row], row: Row) -> float:
    others = [o for o in rows if o.family == row.family and o.detector != row.detector]
    return min((other.median_delay for other in others), default=data.AFTER)


def losses(rows: Sequence[Row]) -> list[str]:
    """Every family where somebody is earlier than we are: who, and what else they do there."""
    lines = [
        "| where we are later | ours | best | by | series later / earlier | by chance |",
        "|" + " --- |" * 6,
    ]
    for mine in (row for row in rows if row.detector == OURS):
        best = _best_other(rows, mine)
        if best >= mine.median_delay:
            continue
        by = [o for o in rows if o.family == mine.family and o.median_delay == best]
        named = ", ".join(o.detector + (f" ({o.missed:.0%} missed)" * (o.missed > 0)) for o in by)
        later, earlier, chance = min((detect.by_chance(mine, o) for o in by), key=lambda f: f[2])
        cells = (mine.family, f"{mine.median_delay:g}", f"{best:g}", named)
        lines.append("| " + " | ".join((*cells, f"{later} / {earlier}", f"{chance:.1g}")) + " |")
    return lines


def strictly(cases: Sequence[Case], scores: Mapping[str, Sequence[F64 | None]]) -> list[Row]:
    """The families with events again, with alarms on events counted like all others."""
    wild = [i for i, case in enumerate(cases) if case.events is not None]
    return detect.compare(
        [replace(cases[i], events=None) for i in wild],
        {name: [found[i] for i in wild] for name, found in scores.items()},
    )


def tcpd_table(public: Sequence[data.Annotated], scores: dict[str, dict[str, F64]]) -> list[str]:
    """TCPDBench's F1 and covering, averaged over the series."""
    lines = ["| on TCPD | F1 | covering | changes per series |", "| --- | --- | --- | --- |"]
    for target in (100.0, 1_000.0, 10_000.0):
        found = [detect.changes_of(one.y, target_arl=target) for one in public]
        lines.append(_tcpd_row(f"{OURS}, run length {target:g}", public, found))
    if "pelt" in scores:
        for name in ("pelt", "kernel"):
            found = [scores[name][f"t{i}"].astype(int).tolist() for i in range(len(public))]
            lines.append(_tcpd_row(f"ruptures {name} (offline)", public, found))
    for name in ("page_hinkley", "adwin", "kswin", "focus", "bocpd"):
        if name in scores:
            alarms = [_first_alarms(scores[name][f"t{i}"]) for i in range(len(public))]
            lines.append(_tcpd_row(f"{name} (alarm times)", public, alarms))
    lines.append(_tcpd_row("zero", public, [[] for _ in public]))
    return lines


def _first_alarms(scores: F64) -> list[int]:
    """Steps at which a score enters its top hundredth: where its alarms are, whatever its unit."""
    limit = np.quantile(scores, 0.99)
    over = (scores >= limit) & (scores > 0)
    return np.nonzero(over & ~np.concatenate(([False], over[:-1])))[0].tolist()


def _tcpd_row(name: str, public: Sequence[data.Annotated], found: Iterable[list[int]]) -> str:
    found = list(found)
    f1 = np.mean([data.f_measure(a.annotations, f) for a, f in zip(public, found, strict=True)])
    cover = np.mean(
        [data.covering(a.annotations, f, len(a.y)) for a, f in zip(public, found, strict=True)]
    )
    per_series = np.mean([len(f) for f in found])
    return f"| {name} | {f1:.3f} | {cover:.3f} | {per_series:.1f} |"


def event_scores(
    events: Sequence[tuple[str, F64, np.ndarray]], online: dict[str, dict[str, F64]]
) -> dict[str, dict[str, F64]]:
    """Of detectors of single values: scores of shifts stay high after one."""
    ours = {f"e{i}": detect.spike_score(y) for i, (_, y, _) in enumerate(events)}
    theirs = {name: found for name, found in online.items() if name in EVENT_DETECTORS}
    return {f"{OURS} (spike)": ours, **theirs}


def event_table(
    events: Sequence[tuple[str, F64, np.ndarray]], online: dict[str, dict[str, F64]]
) -> list[str]:
    """Share of labelled segments with an alarm, at one alarm per 200 normal points of a series."""
    lines = ["| on cloud-monitoring | segments found |", "| --- | --- |"]
    for name, found in online.items():
        hit = total = 0
        for i, (_, _, labels) in enumerate(events):
            scores = found[f"e{i}"]
            alarms = scores > np.quantile(scores[labels == 0], 1 - detect.EVENT_RATE)
            for begin, end in _runs(labels):
                total += 1
                hit += bool(alarms[begin:end].any())
        lines.append(f"| {name} | {hit / total:.1%} of {total} |")
    return lines


def _runs(labels: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], labels, [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def plot(rows: Sequence[Row]) -> str:
    """Median delays of all families as an SVG strip: one line per detector, one dot per family."""
    names = list(dict.fromkeys(row.detector for row in rows))
    width, step, left = 760, 30, 120
    height = step * len(names) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        "<title>Median detection delay at equal false-alarm rate, one dot per family</title>",
    ]

    def across(delay: float) -> float:
        return left + (width - left - 20) * math.log2(max(delay, 1.0)) / math.log2(data.AFTER)

    for tick in (1, 2, 4, 8, 16, 32, 60):
        x = across(tick)
        parts.append(f'<line x1="{x:.0f}" y1="10" x2="{x:.0f}" y2="{height - 28}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{height - 12}" text-anchor="middle">{tick}</text>')
    for line, name in enumerate(names):
        y = 25 + step * line
        colour = "#c2410c" if name == OURS else "#475569"
        parts.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{name}</text>')
        mine = [row.median_delay for row in rows if row.detector == name]
        for i, delay in enumerate(mine):
            jitter = (i * 7) % 13 - 6
            parts.append(
                f'<circle cx="{across(delay):.1f}" cy="{y + jitter}" r="3" fill="{colour}" '
                'fill-opacity="0.55"/>'
            )
    parts.append("</svg>\n")
    return "\n".join(parts)
