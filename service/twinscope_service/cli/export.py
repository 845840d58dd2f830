"""`twinscope export`: a run's steps, or what is kept of its samples and tokens, as a table."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinscope_service.cli.address import add_service

if TYPE_CHECKING:
    from twinscope_service.client import Client

LATEST = 20  # steps whose samples or tokens are written, unless --steps says others


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "export",
        help="a run's steps, samples or tokens as Parquet, CSV or JSON lines",
        description="One row per closed step: verdict, cause, every metric, every scalar. With "
        "--samples or --tokens one row per sample, or per token of one, of those that the service "
        "keeps: a step's worst samples and a fair draw. The suffix of the file decides the format: "
        ".parquet (needs pyarrow), .csv or .jsonl.",
    )
    parser.add_argument("run_name", metavar="RUN")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--samples", action="store_true", help="a row per kept sample")
    rows.add_argument("--tokens", action="store_true", help="a row per token of the kept samples")
    parser.add_argument("--steps", metavar="FIRST:LAST",
                        help="these steps, both included, either may be left out (default: all; "
                        f"with --samples or --tokens the latest {LATEST})")  # fmt: skip
    add_service(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch, write the file, say what was written."""
    from twinscope_service.client import Client
    from twinscope_service.report.export import table_of, write_table

    chosen = span(args.steps)
    with Client(args.url, token=args.token) as client:
        if args.samples or args.tokens:
            return _kept(client, args, chosen)
        rows = table_of(step for step in client.steps(args.run_name) if step.step in chosen)
    write_table(rows, args.output)
    print(f"{args.output}: {len(rows)} steps")
    return 0


def _kept(client: Client, args: argparse.Namespace, chosen: range) -> int:
    """Samples or tokens, fetched and written step by step."""
    from twinscope_service.report.export import Row, write_chunks
    from twinscope_service.report.kept import SAMPLE_COLUMNS, TOKEN_COLUMNS, sample_rows, token_rows

    name, rows_of = args.run_name, token_rows if args.tokens else sample_rows
    known = [step for step in client.timeline(name, last=20_000).step if step in chosen]
    steps = known if args.steps else known[-LATEST:]
    seen = []

    def chunks() -> Iterator[Sequence[Row]]:
        for step in steps:
            samples = client.kept(name, step)["samples"]
            if samples:
                seen.append(step)
                yield list(rows_of(name, step, samples))

    columns = TOKEN_COLUMNS if args.tokens else SAMPLE_COLUMNS
    count = write_chunks(chunks(), args.output, columns)
    what = "tokens" if args.tokens else "samples"
    print(f"{args.output}: {count} {what} of {len(seen)} steps; {len(steps) - len(seen)} keep none")
    return 0


def span(text: str | None) -> range:
    """The steps of FIRST:LAST, both included; None: all. Raises ConfigError."""
    from twinscope.errors import ConfigError
    from twinscope.wire.header import STEP_END

    found = re.fullmatch(r"(\d*):(\d*)", text or ":")
    if found is None:
        raise ConfigError(f"--steps: got {text!r}; give FIRST:LAST, such as 100:120, :120 or 100:")
    first, last = found.groups()
    return range(int(first or 0), int(last) + 1 if last else STEP_END)
