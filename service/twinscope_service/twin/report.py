"""The twin test's answer: verdict, table, one sentence per finding; JSON, JUnit, a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from twinscope_service.twin.cells import Cell, Repeatability, Result
from twinscope_service.twin.prompts import Asked
from twinscope_service.views import Verdict

WORST_LAST = ("ok", "unknown", "inconsistent")
SIDE, MARGIN, DOTS = 480, 40, 4000  # of the picture: pixels, pixels, most points


@dataclass(frozen=True)
class Report:
    """All cells of one check."""

    results: tuple[Result, ...]
    repeatability: Repeatability  # of the trainer's forward
    engine_repeatability: Repeatability | None = None  # None: the engine scores no given tokens
    train_mode: Repeatability | None = None  # eval against train mode; None: not asked
    dropouts: tuple[str, ...] = ()  # what drops values in train mode
    asked: Asked | None = None  # the prompts; None: not told

    @property
    def verdict(self) -> Verdict:
        """The worst of the cells."""
        return max((result.verdict for result in self.results), key=WORST_LAST.index)

    def as_json(self) -> dict[str, Any]:
        """Everything, plain."""
        return {
            "verdict": self.verdict,
            "reading": self.reading(),
            "looked_at": self.looked_at(),
            "engine": dict(self.results[0].cell.samples.fingerprint or {}) if self.results else {},
            "trainer_repeatability": asdict(self.repeatability),
            "engine_repeatability": _plain(self.engine_repeatability),
            "train_mode": _plain(self.train_mode),
            "dropouts": list(self.dropouts),
            "cells": [
                {
                    "cell": r.cell.name,
                    "question": r.cell.question,
                    **r.view.as_json(),
                    "verdict": r.verdict,
                    "reasons": list(r.reasons),
                    "cached": None if r.cell.cached is None else asdict(r.cell.cached),
                }
                for r in self.results
            ],
        }

    def looked_at(self) -> list[str]:
        """What the verdict rests on: prompts, what was left out, the share that was cached."""
        prompts = [] if self.asked is None else [self.asked.sentence(), *self.asked.left_out]
        cached = [r.cell.cached.sentence() for r in self.results if r.cell.cached is not None]
        return prompts + cached

    def reading(self) -> list[str]:
        """What the cells say together: where the fault can be, and where it cannot."""
        bad = {r.cell.name for r in self.results if r.verdict == "inconsistent"}
        seen = {r.cell.name for r in self.results}
        found = [text for names, absent, text in RULES
                 if names <= bad and names | absent <= seen and not absent & bad]  # fmt: skip
        twice = {"the trainer's forward": self.repeatability,
                 "the engine's prefill": self.engine_repeatability}  # fmt: skip
        for who, repeated in twice.items():
            if repeated is not None and repeated.differing:
                found.append(f"{who} is not repeatable: {_amount(repeated)} between two passes")
        if self.train_mode is not None and self.train_mode.differing:
            found.append(
                f"in train mode the trainer's forward differs: {_amount(self.train_mode)} "
                f"(dropout: {', '.join(self.dropouts[:3]) or 'none found'}): score in eval mode, "
                "or without dropout"
            )
        return found


def _amount(repeated: Repeatability) -> str:
    return (
        f"{repeated.differing} of {repeated.tokens} tokens differ by up to "
        f"{repeated.largest:.2g} nats"
    )


def _plain(repeated: Repeatability | None) -> dict[str, Any] | None:
    return None if repeated is None else asdict(repeated)


# fmt: off
# (inconsistent cells, cells that must not be, what follows)
RULES: tuple[tuple[frozenset[str], frozenset[str], str], ...] = (
    (frozenset({"sampled"}), frozenset({"prefill"}),
     "the engine's prefill agrees with the trainer, its decoding does not: the weights are the "
     "same; look at sampling parameters, logprobs_mode, or the decode path"),
    (frozenset({"sampled"}), frozenset({"prefill", "forced decode"}),
     "decoding given tokens agrees as well: what is sampled or reported differs, not the decode "
     "path"),
    (frozenset({"forced decode"}), frozenset({"prefill"}),
     "the engine's decoding of given tokens differs from the trainer, its prefill does not: a "
     "fault of the decode path (kernels, precision of the KV cache), not of the weights"),
    (frozenset({"engine alone"}), frozenset(),
     "the engine disagrees with itself: decoding does not give what its prefill gives"),
    (frozenset({"sampled", "prefill"}), frozenset(),
     "prefill and decoding both differ from the trainer: weights, model configuration, precision"),
    (frozenset({"sampled"}), frozenset({"greedy"}),
     "greedy answers agree, sampled ones do not: temperature, truncation or penalties are not the "
     "same on both sides"),
    (frozenset({"warm cache"}), frozenset({"sampled"}),
     "only with a warm prefix cache: cached prefixes are not those of these weights"),
    (frozenset({"sampled"}), frozenset({"alone"}),
     "only in a batch: the engine's numbers depend on what else is in the batch"),
    (frozenset({"trainer alone"}), frozenset(),
     "the trainer disagrees with itself: padding, positions or the neighbours in a packed row "
     "reach its numbers"),
)
# fmt: on


def table(report: Report) -> str:
    """One line per cell."""
    heads = ("cell", "tokens", "rollout_train_kl", "mean |Δ|")
    lines = ["{:<14}{:>7}  {:>16}  {:>9}  verdict        cause".format(*heads)]
    for result in report.results:
        metrics, causes = result.view.metrics, result.view.diagnosis
        kl, gap = metrics.get("k3_mean"), metrics.get("abs_mean")
        shown = [f"{x:.3e}" if x is not None else "-" for x in (kl, gap)]
        cause = causes[0]["cause"] if causes and result.verdict != "ok" else "-"
        lines.append(
            f"{result.cell.name:<14}{result.view.tokens:>7}  {shown[0]:>16}  {shown[1]:>9}  "
            f"{result.verdict:<13}  {cause}"
        )
    return "\n".join(lines)


def junit(report: Report) -> str:
    """JUnit XML: a failed test per inconsistent cell, a skipped one where nothing can be said."""
    suite = ElementTree.Element("testsuite", name="twinscope check", tests=str(len(report.results)))
    failures = 0
    for result in report.results:
        case = ElementTree.SubElement(
            suite, "testcase", classname="twinscope", name=result.cell.name
        )
        text = "; ".join(result.reasons) or result.verdict
        if result.verdict == "inconsistent":
            failures += 1
            cause = result.view.diagnosis[0]["cause"] if result.view.diagnosis else "no cause"
            ElementTree.SubElement(case, "failure", message=str(cause)).text = text
        elif result.verdict == "unknown":
            ElementTree.SubElement(case, "skipped", message=text)
    suite.set("failures", str(failures))
    told = "\n".join([*report.looked_at(), *report.reading()])
    ElementTree.SubElement(suite, "system-out").text = told
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def picture(cell: Cell) -> str:
    """SVG: train over rollout log-prob of every token; equal policies lie on the diagonal."""
    pairs = _thin([
        (q, p) for row, other in zip(cell.rollout, cell.train, strict=True)
        for q, p in zip(row, other, strict=True) if q == q and p == p
    ])  # fmt: skip
    low = min([min(pair) for pair in pairs], default=-1.0)
    low = max(min(low, -1.0), -30.0)

    def place(value: float) -> float:
        return MARGIN + (SIDE - 2 * MARGIN) * (1 - max(value, low) / low)

    dots = "".join(
        f'<circle cx="{place(q):.1f}" cy="{SIDE - place(p):.1f}" r="1.6"/>' for q, p in pairs
    )
    first, last = MARGIN, SIDE - MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {SIDE}" width="{SIDE}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{SIDE}" height="{SIDE}" fill="#fff"/>'
        f'<path d="M{first} {last}L{last} {first}" stroke="#999"/>'
        f'<g fill="#1f5fa8" fill-opacity="0.35">{dots}</g>'
        f'<text x="{first}" y="{SIDE - 12}">rollout log-prob, {low:.0f} to 0 nats</text>'
        f'<text x="12" y="{last}" transform="rotate(-90 12 {last})">train log-prob</text></svg>'
    )


def _thin(pairs: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most DOTS of them, evenly."""
    return pairs[:: max(1, -(-len(pairs) // DOTS))]
