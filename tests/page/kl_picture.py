"""The simulated behaviour of the KL controller as an SVG: part of `make pictures`."""

from __future__ import annotations

from xml.etree.ElementTree import tostring

from twinscope import AdaptiveKLController
from twinscope_service.report.markup import tag
from twinscope_service.report.plots import linear, logarithmic

TARGET, BATCHES, SAMPLES = 0.05, 1200, 512
STARTS = {0.005: "#c4501b", 0.2: "#1a7a3c", 5.0: "#1f5fbf"}  # β at the start -> colour
WIDTH, HEIGHT = 900, 300


def simulate(beta: float) -> list[float]:
    """KL per batch of a policy whose KL relaxes towards 0.01 / β; the reward changes half-way."""
    controller, kl, found = AdaptiveKLController(beta, target=TARGET), 0.001, []
    for batch in range(BATCHES):
        gain = 0.01 if batch < BATCHES // 2 else 0.03
        kl += 0.1 * (gain / controller.beta - kl)
        controller.update(kl, samples=SAMPLES)
        found.append(kl)
    return found


def draw() -> str:
    """Three starts, one target."""
    x = linear(0, BATCHES, 60, WIDTH - 150)
    y = logarithmic(1e-3, 3.0, HEIGHT - 40, 20)
    parts = [tag("rect", width=WIDTH, height=HEIGHT, fill="#ffffff")]
    for level in (1e-3, 1e-2, 1e-1, 1.0):
        at = y(level)
        parts.append(tag("line", x1=60, x2=WIDTH - 150, y1=at, y2=at, stroke="#e0e4ea"))
        parts.append(tag("text", f"{level:g}", x=52, y=at + 4, text_anchor="end", fill="#5c6773"))
    parts.append(
        tag("line", x1=60, x2=WIDTH - 150, y1=y(TARGET), y2=y(TARGET), stroke="#1b2430",
            stroke_dasharray="4 3")
    )  # fmt: skip
    for row, (beta, colour) in enumerate(STARTS.items()):
        path = " ".join(f"{x(i):.1f},{y(max(k, 1e-3)):.1f}" for i, k in enumerate(simulate(beta)))
        parts.append(tag("polyline", points=path, fill="none", stroke=colour, stroke_width=1.8))
        label = f"β starts at {beta:g}"
        parts.append(tag("text", label, x=WIDTH - 140, y=40 + 20 * row, fill=colour))
    parts.append(tag("text", "target", x=WIDTH - 140, y=y(TARGET) + 4, fill="#1b2430"))
    parts.append(tag("text", "KL against batches; the reward triples half-way", x=60, y=HEIGHT - 12,
                     fill="#5c6773"))  # fmt: skip
    svg = tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}",
              font_family="sans-serif", font_size=13)  # fmt: skip
    return tostring(svg, encoding="unicode") + "\n"
