"""`twinscope check`: the twin test, before a run is started."""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

EXIT_STATUS = {"ok": 0, "inconsistent": 1, "unknown": 2}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty",
            "presence_penalty", "frequency_penalty")  # fmt: skip


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "check",
        help="the twin test: does this engine agree with this trainer, before a run",
        description="Samples fixed prompts from an OpenAI-compatible server (vLLM, SGLang), scores "
        "the same tokens with the trainer's forward, and says whether and where they differ. Give "
        "the run's own sampling parameters. Exit status: 0 ok, 1 inconsistent, 2 unknown.",
    )
    parser.add_argument("--rollout", required=True, metavar="URL", help="the server's address")
    parser.add_argument("--model", required=True, help="Hugging Face folder or name of the policy")
    parser.add_argument("--scorer", metavar="MODULE:FUNCTION",
                        help="your own forward instead of transformers")  # fmt: skip
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--device", default="cpu", help="of the trainer's forward")
    parser.add_argument("--micro-batch", type=int, default=8, metavar="SAMPLES")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the rollouts")
    for name in SAMPLING[1:]:
        kind = int if name == "top_k" else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
    parser.add_argument("--trainer-temperature", type=float, metavar="T",
                        help="what the trainer divides by (default: --temperature)")  # fmt: skip
    parser.add_argument("--logprobs-mode", help="what the server was started with, if known")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--copies", type=int, default=2, help="samples per prompt")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--junit", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the cells, print and write what was asked for."""
    from twinscope_service.twin import report as reports

    report = _check(args)
    if args.junit:
        args.junit.write_text(reports.junit(report), encoding="utf-8")
    if args.picture:
        args.picture.write_text(reports.picture(report.results[0].cell), encoding="utf-8")
    if args.json:
        print(json.dumps(report.as_json(), indent=2, allow_nan=False))
    else:
        _print(report, reports.table(report))
    return EXIT_STATUS[report.verdict]


def _check(args: argparse.Namespace) -> Any:
    from twinscope_service.config import load_settings
    from twinscope_service.twin.cells import cells, judge, repeat
    from twinscope_service.twin.engine import Engine, served_model
    from twinscope_service.twin.prompts import encode
    from twinscope_service.twin.report import Report
    from twinscope_service.twin.trainer import HuggingFaceScorer, load_scorer, load_tokenizer

    url, key = args.rollout.rstrip("/").removesuffix("/v1"), os.environ.get("OPENAI_API_KEY")
    asked = {name: getattr(args, name) for name in SAMPLING}
    engine = Engine(
        url, served_model(url, api_key=key), max_tokens=args.max_tokens, api_key=key,
        sampling={name: value for name, value in asked.items() if value is not None},
        logprobs_mode=args.logprobs_mode,
    )  # fmt: skip
    prompts = encode(load_tokenizer(args.model), copies=args.copies)
    if args.scorer:
        score: Any = load_scorer(args.scorer)
    else:
        score = HuggingFaceScorer.load(
            args.model, dtype=args.dtype, rows=args.micro_batch, device=args.device
        )
    given = args.trainer_temperature
    temperature = args.temperature if given is None else given
    found = list(cells(engine, score, prompts, trainer_temperature=temperature or 1.0,
                       salt=uuid.uuid4().hex, tell=_tell))  # fmt: skip
    repeatability = repeat(score, found[0], temperature=temperature or 1.0)
    return Report(tuple(judge(found, load_settings())), repeatability)


def _tell(what: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what} ...", end="", file=sys.stderr, flush=True)


def _print(report: Any, table: str) -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    print(table)
    for text in report.reading():
        print(f"\n{text}")
    worst = next((r for r in report.results if r.verdict == report.verdict), None)
    if worst is not None and report.verdict != "ok":
        print(f"\n{worst.cell.name}: {worst.cell.question}")
        for reason in worst.view.reasons:
            print(f"  {reason}")
        for cause in worst.view.diagnosis[:3]:
            print(f"  cause {cause['cause']} ({cause['confidence']:.2f}): {cause['evidence']}")
            if cause.get("fix"):
                print(f"    to do: {cause['fix']}")
    print(f"\nverdict {report.verdict}")
