"""`twinscope bench`: the performance tables, as ratios within one run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser("bench", help="performance, side by side with what frameworks do")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    measure = kinds.add_parser("measure", help="the measure stage against verl's metric functions")
    measure.add_argument("--tokens", type=int, default=8_000_000)
    measure.add_argument("--rounds", type=int, default=5)
    measure.set_defaults(run=_measure)
    arl = kinds.add_parser("arl", help="realised false-alarm rates of the detectors")
    arl.add_argument("--steps", type=int, default=1_000_000, help="healthy steps per law of noise")
    arl.add_argument("--target", type=float, default=10_000.0, help="the target run length, steps")
    arl.set_defaults(run=_arl)
    probe = kinds.add_parser("probe", help="what a probe costs its host's thread, by size")
    probe.add_argument("--rounds", type=int, default=60)
    probe.add_argument("--model", help="model folder: instead, the vLLM plugin on a running engine")
    probe.add_argument("--pairs", type=int, default=60, help="with --model: blocks of rounds")
    probe.add_argument("--samples", type=int, default=16, help="with --model: requests of a round")
    probe.add_argument("--max-tokens", type=int, default=48, help="with --model: longest answer")
    probe.add_argument("--service", help="with --model: deliver to this address, and to none")
    probe.set_defaults(run=_probe)
    detect = kinds.add_parser("detect", help="the detectors beside others' on the same series")
    detect.add_argument("--paths", type=int, default=4, help="series per family")
    detect.add_argument("--healthy", type=int, default=6, help="healthy series per law")
    detect.add_argument("--series", type=Path, help="folder with tcpd/ and cloud-monitoring/")
    detect.add_argument("--traces", type=Path, help="folder with recorded traces")
    detect.add_argument("--rivals", type=Path, default=Path(".venv-bench/bin/python"),
                        help="Python with river, ruptures and changepoint-online")  # fmt: skip
    detect.add_argument("--only", nargs="*", default=(), help="names of rivals (default: all)")
    detect.add_argument("--kept", type=Path, help="file of the rivals' answers: used, or made")
    detect.add_argument("--out", type=Path, help="folder for detect.md and detect.svg")
    detect.set_defaults(run=_detect)


def _measure(args: argparse.Namespace) -> int:
    from twinscope_service.bench.measure import run

    return run(tokens=args.tokens, rounds=args.rounds)


def _arl(args: argparse.Namespace) -> int:
    from twinscope_service.bench import arl

    return arl.run(steps=args.steps, target=args.target)


def _probe(args: argparse.Namespace) -> int:
    from twinscope_service.bench import probe, probe_engine

    if args.model is None:
        return probe.run(rounds=args.rounds)
    return probe_engine.run(
        model=args.model,
        pairs=args.pairs,
        samples=args.samples,
        max_tokens=args.max_tokens,
        service=args.service,
    )


def _detect(args: argparse.Namespace) -> int:
    from twinscope_service.bench import detect_report

    return detect_report.run(
        paths=args.paths,
        healthy_paths=args.healthy,
        series=args.series,
        traces=args.traces,
        rivals=args.rivals,
        out=args.out,
        only=args.only,
        kept=args.kept,
    )
