"""`twinscope analyze`: recorded batches, offline, to statistics, verdict and causes."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what they import is not installed beside a trainer, where `doctor` must run
    from twinscope_service.config import Settings
    from twinscope_service.offline import Report

SHOWN = (
    "k3_mean", "k1_mean", "abs_mean", "abs_p99", "abs_max", "rho_mean", "ess_ratio",
    "prob_diff_mean", "pearson_prob", "clip_fraction",
)  # fmt: skip
EXIT_STATUS = {"ok": 0, "inconsistent": 1, "unknown": 2}


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "analyze",
        help="statistics, verdict and causes of recorded batches",
        description="Exit status: 0 every step is ok, 1 one is inconsistent, 2 one is unknown.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE|DIR", help="trace files")
    parser.add_argument(
        "--json", action="store_true", help="one object for one step, else a list of objects"
    )
    parser.add_argument("--engine", help="cpu, torch, cuda, reference, fpga or fpga-emulator")
    parser.add_argument("--config", type=Path, help="settings as a TOML file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Analyze, print, and turn the worst verdict into the exit status."""
    from twinscope_service.config import load_settings
    from twinscope_service.offline import histories

    overrides = {} if args.engine is None else {"engine": args.engine}
    settings = load_settings(config=args.config, **overrides)
    groups = histories(args.paths)
    reports = list(_with_progress(groups, settings))
    if args.json:
        print(json.dumps(_as_json(reports), indent=2, allow_nan=False))
    else:
        _print(reports)
    return max((EXIT_STATUS[report.step.verdict] for report in reports), key=(0, 2, 1).index)


def _with_progress(groups: Sequence[list[Path]], settings: Settings) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import Progress

    from twinscope_service.offline import analyze

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("analyzing", total=sum(map(len, groups)))

        def track(paths: Sequence[Path]) -> Iterator[Path]:
            for path in paths:
                yield path
                progress.advance(task)

        for files in groups:
            yield from analyze(files, settings, track=track)


def _as_json(reports: list[Report]) -> Any:
    objects = [
        {"files": [str(path) for path in report.files], **report.step.as_json()}
        for report in reports
    ]
    return objects[0] if len(objects) == 1 else objects


def _print(reports: list[Report]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for report in reports:
        _print_step(console, report)
    for run in dict.fromkeys(report.step.run for report in reports):
        for line in summarise([report for report in reports if report.step.run == run]):
            console.print(line, markup=False)


def summarise(reports: Sequence[Report]) -> list[str]:
    """What a run's steps come to; nothing for one step, or for files that are no history."""
    steps = [report.step for report in reports]
    if len({step.step for step in steps}) < max(2, len(steps)):
        return []
    verdicts: Counter[str] = Counter(step.verdict for step in steps)
    counts = ", ".join(f"{verdicts[name]} {name}" for name in EXIT_STATUS if verdicts[name])
    lines = [f"run {steps[0].run!r}: {len(steps)} steps, {counts}"]
    bad = [step for step in steps if step.verdict == "inconsistent"]
    if bad:
        lines.append(f"  first inconsistent step  {bad[0].step}")
        causes = Counter(step.diagnosis[0]["cause"] for step in bad if step.diagnosis)
        for cause, count in causes.most_common(1):
            lines.append(f"  leading cause            {cause}, in {count} of these {len(bad)}")
    shifts = [alert for alert in reports[-1].alerts if alert.kind == "level_shift"]
    for shift in sorted(shifts, key=lambda alert: alert.series != "k3")[:1]:
        lines.append(f"  level shift              {shift.message}")
    return lines


def _print_step(console: Any, report: Report) -> None:
    step = report.step
    names = ", ".join(path.name for path in report.files)
    style = {"ok": "green", "inconsistent": "bold red"}.get(step.verdict, "yellow")
    console.print(f"{names}  run {step.run!r} step {step.step}", markup=False)
    console.print(f"  verdict  [{style}]{step.verdict}[/]")
    for reason in step.reasons:
        console.print(f"           {reason}", markup=False)
    values = [(name, step.metrics.get(name)) for name in SHOWN]
    shown = [f"{name} {value:.4g}" for name, value in values if value is not None]
    for start in range(0, len(shown), 4):
        console.print("  " + "   ".join(f"{text:<24}" for text in shown[start : start + 4]))
    counted = {name: count for name, count in step.coverage.items() if count}
    console.print("  tokens   " + ", ".join(f"{name} {n}" for name, n in counted.items()))
    for cause in step.diagnosis[:3]:
        console.print(f"  cause    {cause['cause']} ({cause['confidence']:.2f})", markup=False)
        console.print(f"           {cause['evidence']}", markup=False)
        if cause.get("k3_after") is not None and cause["family"] != "none":
            source = f" ({cause['k3_after_is']})" if cause.get("k3_after_is") else ""
            console.print(
                f"           without it k3_mean would be {cause['k3_after']:.3g}{source}",
                markup=False,
            )
        if cause.get("fix"):
            console.print(f"           to do: {cause['fix']}", markup=False)
    console.print()
