"""`twinscope report`: a run as one file that can be attached to an issue."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from twinscope_service.cli.address import add_service


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "report",
        help="a run as one self-contained HTML file",
        description="What is wrong, since when, why and what to do, with plots, in one file "
        "without scripts and without links to other machines: attach it to an issue.",
    )
    parser.add_argument("run_name", metavar="RUN")
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE")
    parser.add_argument("--step", type=int, help="the step to look at (default: the last closed)")
    parser.add_argument("--no-samples", dest="samples", action="store_false",
                        help="leave out samples and tokens, and so all sampled text")  # fmt: skip
    add_service(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch, write, say what was written."""
    from twinscope.errors import TwinScopeError
    from twinscope_service.client import Client
    from twinscope_service.report.document import Subject, render

    with Client(args.url, token=args.token) as client:
        timeline = client.timeline(args.run_name)
        if not timeline.step:
            raise TwinScopeError(f"{args.run_name}: no step is closed yet")
        step = timeline.step[-1] if args.step is None else args.step
        subject = Subject(
            timeline=timeline,
            step=client.step(args.run_name, step),
            statistics=client.statistics(args.run_name, step),
            kept=client.kept(args.run_name, step) if args.samples else {},
            made_at=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        )
    args.output.write_text(render(subject), encoding="utf-8")
    print(f"{args.output}: {args.run_name}, step {step}, {subject.step.verdict}")
    return 0
