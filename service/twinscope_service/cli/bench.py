"""`twinscope bench`: the performance tables, as ratios within one run."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser("bench", help="performance, side by side with what frameworks do")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    measure = kinds.add_parser("measure", help="the measure stage against verl's metric functions")
    measure.add_argument("--tokens", type=int, default=8_000_000)
    measure.add_argument("--rounds", type=int, default=5)
    measure.set_defaults(run=_measure)


def _measure(args: argparse.Namespace) -> int:
    from twinscope_service.bench.measure import run

    return run(tokens=args.tokens, rounds=args.rounds)
