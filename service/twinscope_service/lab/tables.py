"""Markdown tables of an evaluation, and writing them into a page between markers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from twinscope_service.lab.draft import LabError

BINS = ((0.0, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01))


def confusion_table(pairs: Sequence[tuple[str, str]]) -> str:
    """(label, answer) pairs as one row per label: how often right, and what was said instead."""
    rows = ["| label | cases | right | said instead |", "|---|---|---|---|"]
    for label in sorted({label for label, _ in pairs}):
        said = Counter(answer for wanted, answer in pairs if wanted == label)
        total, right = sum(said.values()), said.pop(label, 0)
        others = ", ".join(f"`{name}` {count}" for name, count in said.most_common())
        rows.append(f"| `{label}` | {total} | {right} | {others} |")
    return "\n".join(rows)


def calibration_table(answers: Sequence[tuple[float, bool]]) -> str:
    """(confidence, right) of first entries, by confidence."""
    rows = ["| confidence | answers | right |", "|---|---|---|"]
    for low, high in BINS:
        inside = [right for confidence, right in answers if low <= confidence < high]
        if inside:
            share = 100.0 * sum(inside) / len(inside)
            rows.append(f"| {low:.1f} to {min(high, 1.0):.1f} | {len(inside)} | {share:.0f} % |")
    return "\n".join(rows)


def write_between(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name:begin -->` and `<!-- name:end -->` in `page`."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    old = page.read_text()
    if begin not in old or end not in old:
        raise LabError(f"{page} has no {begin} ... {end}; add the two markers")
    head, rest = old.split(begin, 1)
    tail = rest.split(end, 1)[1]
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}")
