"""`twinscope export`: a run's steps as a table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from twinscope_service.cli.address import add_service


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "export",
        help="a run's steps as Parquet, CSV or JSON lines",
        description="One row per closed step: verdict, cause, every metric, every scalar. The "
        "suffix of the file decides the format: .parquet (needs pyarrow), .csv or .jsonl.",
    )
    parser.add_argument("run_name", metavar="RUN")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    add_service(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch the steps, write the file, say what was written."""
    from twinscope_service.client import Client
    from twinscope_service.report.export import table_of, write_table

    with Client(args.url, token=args.token) as client:
        rows = table_of(client.steps(args.run_name))
    write_table(rows, args.output)
    print(f"{args.output}: {len(rows)} steps")
    return 0
