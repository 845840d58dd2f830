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
    parser.add_argument("--rollout", metavar="URL", help="the server's address")
    parser.add_argument("--engine", choices=("server", "vllm-offline"), default="server",
                        help="vllm-offline: no server; vLLM is started for the check")  # fmt: skip
    parser.add_argument("--engine-python", default=sys.executable, metavar="PYTHON",
                        help="vllm-offline: the interpreter that has vLLM")  # fmt: skip
    parser.add_argument("--engine-model", metavar="MODEL", help="vllm-offline: default --model")
    parser.add_argument("--engine-args", type=json.loads, default={}, metavar="JSON",
                        help="vllm-offline: arguments of vllm.LLM")  # fmt: skip
    parser.add_argument("--model", required=True, help="Hugging Face folder or name of the policy")
    parser.add_argument("--scorer", metavar="MODULE:FUNCTION",
                        help="your own forward instead of transformers")  # fmt: skip
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--device", default="cpu", help="of the trainer's forward")
    parser.add_argument("--layout", default="padded", choices=("padded", "packed", "positions"),
                        help="of the trainer's batches; positions: packed, kept apart by position "
                        "ids alone")  # fmt: skip
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[8], metavar="SAMPLES",
                        help="the run's size; more sizes are compared with it")  # fmt: skip
    parser.add_argument("--train-mode", action="store_true",
                        help="the trainer scores in train mode, dropout included")  # fmt: skip
    parser.add_argument("--no-forced-decode", dest="forced", action="store_false",
                        help="leave out the cells that ask the engine token by token")  # fmt: skip
    parser.add_argument("--no-warm-cache", dest="warm", action="store_false",
                        help="without the cell of the prefix cache, where that is off")  # fmt: skip
    parser.add_argument("--temperature", type=float, default=1.0, help="of the rollouts")
    for name in SAMPLING[1:]:
        kind = int if name == "top_k" else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind)
    parser.add_argument("--trainer-temperature", type=float, metavar="T",
                        help="what the trainer divides by (default: --temperature)")  # fmt: skip
    parser.add_argument("--logprobs-mode", help="what the server was started with, if known")
    parser.add_argument("--prompts", type=Path, metavar="FILE",
                        help="your prompts instead of the fixed ones: a text per line, or *.jsonl "
                        "of texts or messages (by the tokenizer's chat template)")  # fmt: skip
    parser.add_argument("--max-tokens", type=int, default=64, help="of a response")
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
    from twinscope_service.twin.cells import cells, judge, repeat, repeat_engine
    from twinscope_service.twin.report import Report
    from twinscope_service.twin.trainer import load_tokenizer

    score, others, train = _scorers(args)
    tokenizer = load_tokenizer(args.model)
    given = args.trainer_temperature
    temperature = (args.temperature if given is None else given) or 1.0
    with _engine(args) as engine:
        asked = _prompts(args, tokenizer, engine.context)
        found = list(
            cells(
                engine, score, asked.rows, trainer_temperature=temperature, salt=uuid.uuid4().hex,
                others=others, forced=args.forced, warm=args.warm, tell=_tell,
            )
        )  # fmt: skip
        _tell("engine twice")
        engine_repeated = repeat_engine(engine, found[0].samples)
    return Report(
        tuple(judge(found, load_settings())),
        repeat(score, found[0], temperature=temperature),
        engine_repeated,
        repeat(train, found[0], temperature=temperature) if train is not None else None,
        _dropouts(train),
        asked,
    )


def _prompts(args: argparse.Namespace, tokenizer: Any, context: int | None) -> Any:
    """What is asked. `context`: the engine's; where it does not say, the model's."""
    from twinscope_service.twin.prompts import built_in, own
    from twinscope_service.twin.trainer import context_of

    known = context or context_of(args.model)
    fit = {"copies": args.copies, "context": known, "response": args.max_tokens}
    if args.prompts:
        return own(args.prompts, tokenizer, **fit)
    return built_in(tokenizer, **fit)


def _engine(args: argparse.Namespace) -> Any:
    """The engine, as a context. Raises ConfigError for arguments that do not go together."""
    from twinscope.errors import ConfigError
    from twinscope_service.twin.engine import Engine, served_model
    from twinscope_service.twin.offline import OfflineEngine

    asked = {name: getattr(args, name) for name in SAMPLING}
    sampling = {name: value for name, value in asked.items() if value is not None}
    if args.engine == "vllm-offline":
        given = {"logprobs_mode": args.logprobs_mode} if args.logprobs_mode else {}
        return OfflineEngine(
            args.engine_python, args.engine_model or args.model, sampling, args.max_tokens,
            {**given, **args.engine_args},
        )  # fmt: skip
    if args.rollout is None:
        raise ConfigError("--rollout: absent; give the server's address, or --engine vllm-offline")
    url, key = args.rollout.rstrip("/").removesuffix("/v1"), os.environ.get("OPENAI_API_KEY")
    served = served_model(url, api_key=key)
    return Engine(
        url, served.name, max_tokens=args.max_tokens, api_key=key, context=served.context,
        sampling=sampling, logprobs_mode=args.logprobs_mode,
    )  # fmt: skip


def _scorers(args: argparse.Namespace) -> tuple[Any, dict[str, Any], Any]:
    """(the trainer, the trainer in other micro-batches by the cell's name, in train mode)."""
    from dataclasses import replace

    from twinscope_service.twin.trainer import HuggingFaceScorer, load_scorer

    if args.scorer:
        return load_scorer(args.scorer), {}, None
    size, *more = args.micro_batch
    plain = HuggingFaceScorer.load(
        args.model, dtype=args.dtype, rows=size, device=args.device, layout=args.layout
    )
    train = replace(plain, train_mode=True)
    used = train if args.train_mode else plain
    others = {f"trainer in {n}s": replace(used, rows=n) for n in more}
    return used, others, (plain if args.train_mode else train)


def _dropouts(train: Any) -> tuple[str, ...]:
    from twinscope_service.twin.trainer import dropouts

    return () if train is None else tuple(dropouts(train.model))


def _tell(what: str) -> None:
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what} ...", end="", file=sys.stderr, flush=True)


def _print(report: Any, table: str) -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    print(table)
    print()
    for text in report.looked_at():
        print(text)
    for text in report.reading():
        print(f"\n{text}")
    worst = next((r for r in report.results if r.verdict == report.verdict), None)
    if worst is not None and report.verdict != "ok":
        print(f"\n{worst.cell.name}: {worst.cell.question}")
        for reason in worst.reasons:
            print(f"  {reason}")
        for cause in worst.view.diagnosis[:3]:
            print(f"  cause {cause['cause']} ({cause['confidence']:.2f}): {cause['evidence']}")
            if cause.get("fix"):
                print(f"    to do: {cause['fix']}")
    print(f"\nverdict {report.verdict}")
