"""The plots of a report as SVG, drawn here: no script, no file of another machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from twinscope_service.client import Timeline
from twinscope_service.report.markup import tag

WIDTH, HEIGHT = 900, 260
LEFT, RIGHT, TOP, BOTTOM = 60, 10, 14, 30
BUDGET = 800  # points of a curve; beyond, each stretch shows its smallest and largest
Scale = Callable[[float], float]


def timeline_plot(timeline: Timeline) -> Element | None:
    """rollout_train_kl over the steps, log scale, with the healthy band, verdicts and alarms."""
    level = timeline.columns.get("k3_mean", ())
    points = [(s, y) for s, y in zip(timeline.step, level, strict=False) if y is not None and y > 0]
    if len(points) < 2:
        return None
    x = linear(timeline.step[0], timeline.step[-1], LEFT, WIDTH - RIGHT)
    y, axis = log_axis([value for _, value in points], x)
    band = _band(timeline, x, y)
    alarms = [
        _alarm(alert.onset_step, timeline.step[-1], x, f"{alert.kind} at step {alert.onset_step}")
        for alert in timeline.alerts
        if alert.series == "k3" and alert.state == "firing" and alert.onset_step is not None
    ]
    dots = [
        tag("circle", cx=f"{x(s):.1f}", cy=f"{y(v):.1f}", r=2.5, class_=verdict)
        for s, v, verdict in zip(timeline.step, level, timeline.verdict, strict=False)
        if v is not None and v > 0 and (verdict != "ok" or len(points) <= 200)
    ][:BUDGET]
    curve = tag("polyline", points=_path(thin(points), x, y), class_="curve")
    ends = [
        tag("text", f"step {s}", x=f"{x(s):.0f}", y=HEIGHT - 8, text_anchor=anchor)
        for s, anchor in ((timeline.step[0], "start"), (timeline.step[-1], "end"))
    ]
    return picture("rollout_train_kl by step", *axis, *alarms, *band, curve, *dots, *ends)


def distribution_plot(statistics: Mapping[str, Any]) -> Element | None:
    """Share of tokens per octave of |Δ|, p > q and p < q apart."""
    hist = statistics["histogram"]
    edges, total = hist["edges"], sum(hist["positive"]) + sum(hist["negative"]) + hist["zero"]
    kept = [i for i in range(len(edges) - 1) if edges[i] >= 1e-5]
    if not kept or not total:
        return None
    sides = {
        name: [
            (math.sqrt(edges[i] * edges[i + 1]),
             hist[name][i] / total / math.log2(edges[i + 1] / edges[i]))
            for i in kept
        ]
        for name in ("negative", "positive")
    }  # fmt: skip
    most = max(share for side in sides.values() for _, share in side) or 1.0
    x = logarithmic(edges[kept[0]], edges[kept[-1] + 1], LEFT, WIDTH - RIGHT)
    y = linear(0.0, most, HEIGHT - BOTTOM, TOP)
    curves = [
        tag("polyline", points=_path(side, x, y), class_=f"side {name}")
        for name, side in sides.items()
    ]
    marks = _decades(edges[kept[0]], edges[kept[-1] + 1])
    ticks = [
        tag("text", f"1e{p}", x=f"{x(10.0**p):.0f}", y=HEIGHT - 8, text_anchor="middle")
        for p in marks
    ]
    top = tag("text", f"{100 * most:.0f} %", x=8, y=TOP + 8)
    return picture("Distribution of |Δ|", *ticks, top, *curves)


def profile_plot(statistics: Mapping[str, Any], name: str) -> Element | None:
    """Mean k3 by bucket of a profile."""
    k3 = statistics["columns"].index("k3")
    rows = [
        (b, s[k3] / s[0]) for b, s in enumerate(statistics["profiles"].get(name, ())) if s[0] > 0
    ]
    if not rows:
        return None
    most = max(mean for _, mean in rows) or 1.0
    x = linear(rows[0][0] - 0.5, rows[-1][0] + 0.5, LEFT, WIDTH - RIGHT)
    y = linear(0.0, most, HEIGHT - BOTTOM, TOP)
    bars = [
        tag("rect", x=f"{x(b - 0.4):.1f}", y=f"{y(mean):.1f}", width=f"{x(0.4) - x(-0.4):.1f}",
            height=f"{max(y(0) - y(mean), 0):.1f}", class_="bar")
        for b, mean in rows
    ]  # fmt: skip
    ticks = [
        tag("text", _bucket(name, b), x=f"{x(b):.0f}", y=HEIGHT - 8, text_anchor="middle")
        for b, _ in rows
    ]
    return picture(f"Mean k3 by {name}", *bars, *ticks, tag("text", f"{most:.3g}", x=8, y=TOP + 8))


def _bucket(name: str, bucket: int) -> str:
    if name == "relative":
        return f"{round(100 * bucket / 16)} %"
    return str(bucket) if bucket < 2 else f"{2 ** (bucket - 1)}+"


def picture(title: str, *children: Element) -> Element:
    """An SVG with a name for those who cannot see it."""
    return tag(
        "svg", tag("title", title), *children,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img",
    )  # fmt: skip


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """From values to pixels."""
    span = (high - low) or 1.0
    return lambda value: start + (end - start) * (value - low) / span


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """The same for positive values on a log scale."""
    scale = linear(math.log10(low), math.log10(high), start, end)
    return lambda value: scale(math.log10(value))


def log_axis(values: Sequence[float], x: Scale) -> tuple[Scale, list[Element]]:
    """A log scale that holds `values`, and its grid lines with labels."""
    low, high = min(values) / 1.3, max(values) * 1.3
    y = logarithmic(low, high, HEIGHT - BOTTOM, TOP)
    lines: list[Element] = []
    for power in _decades(low, high):
        at = f"{y(10.0**power):.1f}"
        lines.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        lines.append(tag("text", f"1e{power}", x=8, y=at))
    return y, lines


def _decades(low: float, high: float) -> range:
    return range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about BUDGET points; every stretch keeps its smallest and largest value."""
    if len(points) <= BUDGET:
        return list(points)
    width = math.ceil(2 * len(points) / BUDGET)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), width):
        part = points[start : start + width]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def _path(points: Iterable[tuple[float, float]], x: Scale, y: Scale) -> str:
    return " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)


def _band(timeline: Timeline, x: Scale, y: Scale) -> list[Element]:
    low, high = timeline.baseline["low"], timeline.baseline["high"]
    known = [
        (s, a, b)
        for s, a, b in zip(timeline.step, low, high, strict=True)
        if a is not None and b is not None and a > 0
    ]
    known = known[:: max(1, len(known) // BUDGET)]
    if len(known) < 2:
        return []
    around = [(s, b) for s, _, b in known] + [(s, a) for s, a, _ in reversed(known)]
    return [tag("polygon", points=_path(around, x, y), class_="band")]


def _alarm(onset: int | None, end: int, x: Scale, label: str) -> Element:
    left = x(float(onset or 0) - 0.5)
    return tag(
        "g",
        tag("rect", x=f"{left:.1f}", y=TOP, width=f"{max(x(end) - left, 2):.1f}",
            height=HEIGHT - TOP - BOTTOM, class_="alarm"),
        tag("text", label, x=f"{left - 4:.1f}", y=TOP + 10, text_anchor="end", class_="bad"),
    )  # fmt: skip
