"""The labelled set diagnosed: who was right, what was said instead, how sure, as tables.

    python -m twinscope_service.lab.evaluate --seen FOLDER ... --held-out FOLDER ... [--docs PAGE]

A FOLDER holds traces and an index.json with their causes: recorded ones, or a half of the set that
`python -m twinscope_service.lab` makes (which also runs this). Every trace enters whole, cut to
5 000 and to 2 000 tokens, with and without what its header says; a quarter of the samples faulty;
one replica of four faulty; with a few markers besides; and healthy traces also with every exact
fault of `lab.faults`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from twinscope_service.diagnose.calibration import CEILING
from twinscope_service.diagnose.cause import FAMILY_OF, Cause
from twinscope_service.diagnose.claim import Claim
from twinscope_service.diagnose.rank import diagnose, find_claims
from twinscope_service.diagnose.view import View
from twinscope_service.lab.cases import (
    Case,
    bare,
    faulty,
    marked,
    mixed,
    part,
    recorded,
    summarise,
)
from twinscope_service.lab.faults import FAULTS, STRENGTHS
from twinscope_service.lab.tables import calibration_table, confusion_table, write_between
from twinscope_service.measure.engine import MeasureEngine, build_engine

SIZES = (5000, 2000)
WEAK_BY_DESIGN = frozenset({"update_lost_to_rounding"})  # needs a history, not one batch
LARGE_ROTARY = 0.05  # k3 of a rotary fault that must be named, not only its family
# What a pair, with its side information, identifies: the first entry must be right.
IDENTIFIABLE = frozenset(
    {
        "temperature_not_restored", "temperature_on_logprobs", "truncation_not_mirrored",
        "penalty_not_mirrored", "token_shift", "sample_permutation", "missing_value_sentinel",
        "nonfinite_values", "wrong_token_logprob", "bf16_logprob_storage", "bypass_mode",
        "side_missing", "retokenized", "boundary_token", "mask_includes_non_response",
        "sampling_not_as_reported", "padding_attended", "position_offset",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """One case and what came out. `k3`: of the case; `held_out`: nothing was fitted to it."""

    case: Case
    causes: tuple[Cause, ...]
    claims: tuple[Claim, ...]
    k3: float
    held_out: bool

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
        return self.causes[0].family in {FAMILY_OF[cause] for cause in self.case.causes}

    @property
    def all_named(self) -> bool:
        """Is every label in the answer, by itself or in the group of an entry?"""
        said = {name for c in self.causes for name in (c.cause, *c.group)}
        return set(self.case.causes) <= said

    @property
    def identifiable(self) -> bool:
        """Must the cause itself be named, not only its family?"""
        label = self.case.causes[0]
        large = label == "rope_mismatch" and self.k3 >= LARGE_ROTARY
        return self.case.kind == "whole" and (large or label in IDENTIFIABLE)


def labelled_set(folders: Sequence[Path], *, seed: int) -> Iterator[Case]:
    """All cases, in a fixed order; sub-sets and mixtures drawn with `seed`."""
    for folder in folders:
        originals = recorded(folder)
        healthy = [c for c in originals if c.causes[0] == "numerical_noise"]
        exact = [c for c in faulty(healthy[:4], seed=seed) if _is_exact(c)]
        pairs = [(c, h) for c in originals if (h := _same_prompts(c, healthy)) and h is not c]
        quarters = [_quarter(c, h, seed=seed) for c, h in pairs if _mixes(c)]
        replicas = [_replica(c, h, seed) for c, h in pairs if FAMILY_OF[c.causes[0]] == "weights"]
        twice = marked([c for c in originals if _carries_markers(c)], seed=seed)
        for case in (*originals, *exact, *quarters, *replicas, *twice):
            yield case
            for i, size in enumerate(SIZES):
                smaller = part(case, tokens=size, seed=seed + i)
                yield bare(smaller) if (i + seed) % 2 else smaller


def _is_exact(case: Case) -> bool:
    fault = (FAULTS | STRENGTHS)[case.name.split("+", 1)[1]]
    return fault.exact and fault.cause not in WEAK_BY_DESIGN


def _carries_markers(case: Case) -> bool:
    """Faults that are visible in the pair and touch all samples: what markers must not hide."""
    family, label = FAMILY_OF[case.causes[0]], case.causes[0]
    return family in ("sampling", "weights") and label != "sampling_not_as_reported"


def _same_prompts(case: Case, healthy: list[Case]) -> Case | None:
    """A healthy case of the same prompts: a mixture must not differ in anything else."""
    prompts = case.batch.tensors["prompt_ids"].tobytes()
    return next((h for h in healthy if h.batch.tensors["prompt_ids"].tobytes() == prompts), None)


def _mixes(case: Case) -> bool:
    """Faults whose sign stays when only a quarter of the samples has them."""
    return FAMILY_OF[case.causes[0]] in ("sampling", "weights") or case.causes[0] == "token_shift"


def _quarter(case: Case, healthy: Case, *, seed: int) -> Case:
    """A quarter of the samples faulty, no label says which."""
    found = mixed(case, healthy, share=0.25, seed=seed)
    extra = ("mixed_weight_versions",) if FAMILY_OF[case.causes[0]] == "weights" else ()
    return replace(found, kind="quarter", causes=case.causes + extra)


def _replica(case: Case, healthy: Case, seed: int) -> Case:
    """One replica of four faulty, with the replica's name in the header."""
    found = mixed(case, healthy, share=0.25, seed=seed)
    bad = max(2, round(0.25 * case.batch.samples))  # the first ones, see `mixed`
    names = tuple("r3" if s < bad else f"r{s % 3}" for s in range(found.batch.samples))
    batch = replace(found.batch, groups={"replica": names})
    causes = ("mixed_weight_versions", *case.causes)
    return replace(found, name=f"{found.name}@replica", causes=causes, batch=batch)


def answer(case: Case, engine: MeasureEngine, *, held_out: bool) -> Answer:
    """Diagnose one case."""
    summary, context = summarise(case.batch, engine)
    view = View(summary, context)
    return Answer(
        case, diagnose(summary, context=context), tuple(find_claims(view)), view.k3, held_out
    )


def fit_curves(answers: Iterable[Answer]) -> dict[str, tuple[float, float]]:
    """(bias, slope) per kind: regularised logistic regression of "right" on strength."""
    points: dict[str, list[tuple[float, bool]]] = {}
    for one in answers:
        for claim in one.claims:
            true = claim.cause in one.case.causes
            if claim.kind == "set":  # a set is right when its family is
                true = FAMILY_OF[claim.cause] in {FAMILY_OF[c] for c in one.case.causes}
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
    """Shares of right answers and the tables, as Markdown; the details are of held-out cases."""
    checked = [a for a in answers if a.held_out]
    single = [a for a in checked if a.case.kind != "two"]  # of two, either may come first
    lines = [
        f"{len(answers)} cases, {len(checked)} of them held out (other prompts, seeds, strengths).",
        "",
        "| set | cases | first entry right | or in its group | family right | healthy accused |",
        "|---|---|---|---|---|---|",
        *_rows(answers, checked),
        "",
        *_two_faults(checked),
        f"Mean over the labels of the held-out cases: first entry {_macro(single, 'right')}, "
        f"family {_macro(single, 'right_family')}.",
    ]
    pairs = [(a.case.causes[0], a.causes[0].cause) for a in single]
    first = [(a.causes[0].confidence, a.right) for a in checked]
    return "\n".join([*lines, "", confusion_table(pairs), "", calibration_table(first)])


def _rows(answers: Sequence[Answer], checked: Sequence[Answer]) -> Iterator[str]:
    for name, some in (
        ("all", answers),
        ("held out", checked),
        ("held out, identifiable", [a for a in checked if a.identifiable]),
        ("held out, a quarter of the samples", [a for a in checked if a.case.kind == "quarter"]),
    ):
        healthy = [a for a in some if a.case.causes[0] == "numerical_noise"]
        yield (
            f"| {name} | {len(some)} | {_share(a.right for a in some)} | "
            f"{_share(a.right_group for a in some)} | {_share(a.right_family for a in some)} | "
            f"{sum(not a.right for a in healthy)} of {len(healthy)} |"
        )


def _two_faults(checked: Sequence[Answer]) -> list[str]:
    two = [a for a in checked if a.case.kind == "two"]
    if not two:
        return []
    named = _share(a.all_named for a in two)
    return [f"Held out, two faults at once ({len(two)} cases): all of them named in {named}.", ""]


def _macro(answers: Iterable[Answer], what: str) -> str:
    """Mean over labels of the share of answers whose property `what` is true."""
    by_label: dict[str, list[bool]] = defaultdict(list)
    for a in answers:
        by_label[a.case.causes[0]].append(getattr(a, what))
    shares = [sum(values) / len(values) for values in by_label.values()]
    return f"{100.0 * sum(shares) / max(len(shares), 1):.1f} %"


def _share(values: Iterable[bool]) -> str:
    listed = list(values)
    return f"{100.0 * sum(listed) / max(len(listed), 1):.1f} %"


def evaluate(
    seen: Sequence[Path], held_out: Sequence[Path], *, engine: MeasureEngine, seed: int = 0
) -> list[Answer]:
    """Diagnose the labelled sets of both kinds of folders."""
    found = [answer(c, engine, held_out=False) for c in labelled_set(seen, seed=seed)]
    return found + [answer(c, engine, held_out=True) for c in labelled_set(held_out, seed=seed)]


def show(answers: Sequence[Answer], args: argparse.Namespace) -> None:
    """Print; with --docs also write between the markers of that file."""
    text = report(answers)
    print(text)
    if args.wrong:
        _print_wrong(answers)
    if args.fit:
        print("\nfitted on the cases seen:", fit_curves(a for a in answers if not a.held_out))
        print("ceilings:", CEILING)
    if args.docs:
        write_between(args.docs, "evaluation", text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What this command and `python -m twinscope_service.lab` share."""
    parser.add_argument("--seen", nargs="*", type=Path, default=[], metavar="FOLDER",
                        help="traces that thresholds were set with")  # fmt: skip
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fit", action="store_true", help="print fitted curves")
    parser.add_argument("--wrong", action="store_true", help="list the wrong answers")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the tables into it")


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate folders that are there."""
    parser = argparse.ArgumentParser(prog="python -m twinscope_service.lab.evaluate")
    parser.add_argument("--held-out", nargs="*", type=Path, default=[], metavar="FOLDER")
    add_arguments(parser)
    args = parser.parse_args(argv)
    engine = build_engine(args.engine)
    show(evaluate(args.seen, args.held_out, engine=engine, seed=args.seed), args)
    return 0


def _print_wrong(answers: Iterable[Answer]) -> None:
    wrong = [a for a in answers if not a.right]
    print("\nwrong:", Counter(a.case.causes[0] for a in wrong).most_common())
    for a in wrong:
        said = ", ".join(f"{c.cause} {c.confidence:.2f}" for c in a.causes[:3])
        print(f"  {'held out' if a.held_out else 'seen'} {a.case.name} (k3 {a.k3:.2g}): {said}")


if __name__ == "__main__":
    sys.exit(main())
