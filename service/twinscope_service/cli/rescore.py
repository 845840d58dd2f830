"""`twinscope rescore`: which checkpoint do the recorded log-probs belong to?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "rescore",
        help="which of several checkpoints did the engine, and the trainer, really use",
        description="Scores recorded samples with each checkpoint and says which of them the "
        "engine's and the trainer's log-probs agree with: a stale engine, a stale trainer, or "
        "updates that vanish when weights are rounded to bfloat16. Give checkpoints oldest first. "
        "Exit status: 0 every side agrees with the newest, 1 one does not, 2 cannot be told.",
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE",
                        help="trace files, as `evidence` of the API gives them")  # fmt: skip
    parser.add_argument("--checkpoint", action="append", required=True, type=Path, metavar="DIR",
                        help="Hugging Face folder; repeat it, oldest first")  # fmt: skip
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--micro-batch", type=int, default=8, metavar="SAMPLES")
    parser.add_argument("--samples", type=int, default=128, help="most samples to score")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score, compare, print."""
    from twinscope.wire.codec import read_trace
    from twinscope_service.twin.rescore import as_json, conclude, rank, read_recorded
    from twinscope_service.twin.weights import moved

    recorded = read_recorded([read_trace(path) for path in args.traces], most=args.samples)
    scores = {path.name: _score(path, recorded, args) for path in args.checkpoint}
    sides = (("rollout", recorded.rollout), ("train", recorded.train))
    standings = [
        rank(side, rows, recorded.masks, scores) for side, rows in sides if rows is not None
    ]
    apart = moved(*args.checkpoint[-2:]) if len(args.checkpoint) > 1 else None
    newest = args.checkpoint[-1].name
    texts = conclude(standings, newest, apart)
    if args.json:
        print(json.dumps(as_json(standings, texts), indent=2, allow_nan=False))
    else:
        _print(standings, texts)
    best = {standing.best for standing in standings}
    return 0 if best == {newest} else 2 if None in best else 1


def _score(path: Path, recorded: Any, args: argparse.Namespace) -> list[list[float]]:
    from twinscope_service.twin.trainer import HuggingFaceScorer

    score = HuggingFaceScorer.load(
        str(path), dtype=args.dtype, rows=args.micro_batch, device=args.device
    )
    return score(recorded.prompts, recorded.responses, temperature=recorded.temperature)


def _print(standings: Any, texts: list[str]) -> None:
    print(f"{'side':<8}  {'checkpoint':<28}  {'mean Δ²':>10}  {'mean |Δ|':>10}  behind the best")
    for standing in standings:
        for row in standing.candidates:
            behind = f"{row.behind:.1f} standard errors" if row.behind else "-"
            print(f"{standing.side:<8}  {row.checkpoint[-28:]:<28}  {row.mean_square:>10.3e}  "
                  f"{row.mean_abs:>10.3e}  {behind}")  # fmt: skip
    for text in texts:
        print(text)
