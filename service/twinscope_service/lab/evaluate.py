"""One command for the whole labelled set: confusion, calibration, and the tables of the docs.

    python -m twinscope_service.lab.evaluate FOLDER [FOLDER ...] [--fit] [--docs docs/diagnosis.md]

A FOLDER holds traces and an index.json with their causes: the recorded set, or what
`twinscope_service.lab.rescore` made. Every trace enters whole, cut to 5 000 and 2 000 tokens, with
and without its headers; healthy ones also with every exact fault of `lab.faults`. Half of the
recordings (by name) are for fitting, the other half for checking.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from twinscope_service.diagnose.calibration import CEILING
from twinscope_service.diagnose.cause import FAMILY_OF, Cause
from twinscope_service.diagnose.claim import Claim
from twinscope_service.diagnose.rank import diagnose, find_claims
from twinscope_service.diagnose.view import View
from twinscope_service.lab.cases import Case, bare, faulty, mixed, part, recorded, summarise
from twinscope_service.lab.faults import FAULTS
from twinscope_service.lab.tables import calibration_table, confusion_table, write_between
from twinscope_service.measure.engine import MeasureEngine, build_engine

SIZES = (5000, 2000)
WEAK_BY_DESIGN = frozenset({"update_lost_to_rounding"})  # needs a history, not one batch


@dataclass(frozen=True)
class Answer:
    """One case and what came out."""

    case: Case
    causes: tuple[Cause, ...]
    claims: tuple[Claim, ...]

    @property
    def right(self) -> bool:
        """The first entry is the label."""
        return self.causes[0].cause in self.case.causes

    @property
    def right_group(self) -> bool:
        """The label is the first entry or in its group."""
        first = self.causes[0]
        return self.right or bool(set(first.group) & set(self.case.causes))

    @property
    def right_family(self) -> bool:
        """The first entry is of the label's family."""
        return self.causes[0].family == FAMILY_OF[self.case.causes[0]]


def labelled_set(folders: Sequence[Path], *, seed: int) -> Iterator[Case]:
    """All cases, in a fixed order; sub-sets and mixtures drawn with `seed`."""
    for folder in folders:
        originals = recorded(folder)
        healthy = [c for c in originals if c.causes[0] == "numerical_noise"]
        exact = [c for c in faulty(healthy[:4], seed=seed) if _is_exact(c)]
        mixtures = [
            mixed(c, h, share=0.25, seed=seed)
            for c in originals
            if _mixes(c) and (h := _same_prompts(c, healthy)) is not None
        ]
        for case in (*originals, *exact, *mixtures):
            yield case
            for i, size in enumerate(SIZES):
                smaller = part(case, tokens=size, seed=seed + i)
                yield bare(smaller) if (i + seed) % 2 else smaller


def _is_exact(case: Case) -> bool:
    name = case.name.split("+", 1)[1]
    return FAULTS[name].exact and FAULTS[name].cause not in WEAK_BY_DESIGN


def _same_prompts(case: Case, healthy: list[Case]) -> Case | None:
    """A healthy case of the same prompts: a mixture must not differ in anything else."""
    prompts = case.batch.tensors["prompt_ids"].tobytes()
    return next((h for h in healthy if h.batch.tensors["prompt_ids"].tobytes() == prompts), None)


def _mixes(case: Case) -> bool:
    """Faults whose sign stays when only a quarter of the samples has them."""
    return FAMILY_OF[case.causes[0]] in ("sampling", "weights") or case.causes[0] == "token_shift"


def answer(case: Case, engine: MeasureEngine) -> Answer:
    """Diagnose one case."""
    summary, context = summarise(case.batch, engine)
    claims = tuple(find_claims(View(summary, context)))
    return Answer(case, diagnose(summary, context=context), claims)


def held_out(case: Case) -> bool:
    """Half of the recordings, by name: no recording is on both sides."""
    return hashlib.sha256(case.origin.encode()).digest()[0] % 2 == 1


def fit_curves(answers: Iterable[Answer]) -> dict[str, tuple[float, float]]:
    """(bias, slope) per kind: regularised logistic regression of "right" on strength."""
    points: dict[str, list[tuple[float, bool]]] = {}
    for one in answers:
        for claim in one.claims:
            true = claim.cause in one.case.causes
            if claim.kind == "set":  # a set is right when its family is
                true = FAMILY_OF[claim.cause] == FAMILY_OF[one.case.causes[0]]
            points.setdefault(claim.kind, []).append((claim.strength, true))
    return {kind: _logistic(values) for kind, values in sorted(points.items())}


def _logistic(points: list[tuple[float, bool]], *, ridge: float = 0.02) -> tuple[float, float]:
    """Newton steps on the penalised likelihood, from the prior (-4, 5)."""
    x = np.array([[1.0, s] for s, _ in points])
    y = np.array([float(true) for _, true in points])
    prior = np.array([-4.0, 5.0])
    w = prior.copy()
    penalty = ridge * len(points) * np.diag([1.0, 1.0]) / 10.0
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-np.clip(x @ w, -30, 30)))
        gradient = x.T @ (y - p) - penalty @ (w - prior)
        hessian = x.T @ (x * (p * (1 - p))[:, None]) + penalty
        step = np.linalg.solve(hessian, gradient)
        w = w + step / max(1.0, float(np.abs(step).max()))  # damped: separable data
    return round(float(w[0]), 2), round(float(w[1]), 2)


def report(answers: Sequence[Answer]) -> str:
    """Shares of right answers and the two tables, as Markdown."""
    checked = [a for a in answers if held_out(a.case)]
    lines = [
        f"{len(answers)} cases, {len(checked)} of them held out from fitting.",
        "",
        "| set | cases | first entry right | or in its group | family right | healthy accused |",
        "|---|---|---|---|---|---|",
    ]
    for name, some in (("all", answers), ("held out", checked)):
        healthy = [a for a in some if a.case.causes[0] == "numerical_noise"]
        lines.append(
            f"| {name} | {len(some)} | {_share(a.right for a in some)} | "
            f"{_share(a.right_group for a in some)} | {_share(a.right_family for a in some)} | "
            f"{sum(not a.right for a in healthy)} of {len(healthy)} |"
        )
    pairs = [(a.case.causes[0], a.causes[0].cause) for a in answers]
    first = [(a.causes[0].confidence, a.right) for a in checked]
    return "\n".join([*lines, "", confusion_table(pairs), "", calibration_table(first)])


def _share(values: Iterable[bool]) -> str:
    listed = list(values)
    return f"{100.0 * sum(listed) / max(len(listed), 1):.1f} %"


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; print; with --docs also write between the markers of that file."""
    parser = argparse.ArgumentParser(prog="python -m twinscope_service.lab.evaluate")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fit", action="store_true", help="print fitted curves")
    parser.add_argument("--wrong", action="store_true", help="list the wrong answers")
    parser.add_argument("--docs", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    engine = build_engine(args.engine)
    answers = [answer(case, engine) for case in labelled_set(args.folders, seed=args.seed)]
    text = report(answers)
    print(text)
    if args.wrong:
        _print_wrong(answers)
    if args.fit:
        print("\nfitted on the other half:", fit_curves(a for a in answers if not held_out(a.case)))
        print("ceilings:", CEILING)
    if args.docs:
        write_between(args.docs, "evaluation", text)
    return 0


def _print_wrong(answers: Iterable[Answer]) -> None:
    wrong = [a for a in answers if not a.right]
    print("\nwrong:", Counter(a.case.causes[0] for a in wrong).most_common())
    for a in wrong:
        said = ", ".join(f"{c.cause} {c.confidence:.2f}" for c in a.causes[:3])
        print(f"  {a.case.name}: {said}")


if __name__ == "__main__":
    sys.exit(main())
