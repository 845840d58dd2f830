"""`twinscope silence`: who was woken by an alert asks for peace, for a while."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import datetime
from typing import Any

from twinscope_service.cli.address import add_service

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "silence",
        help="tell nobody about a run's alerts for a while",
        description="Alerts go on being raised and shown; nobody is notified until the silence is "
        "over. The end of a trouble that was told is told too.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("run_name", nargs="?", metavar="RUN", help="one run, by its name")
    what.add_argument("--runs", metavar="GLOB", help="every run that matches")
    what.add_argument("--list", action="store_true", help="list the open silences and stop")
    what.add_argument("--end", type=int, metavar="ID", help="end a silence now")
    parser.add_argument("--for", dest="period", default="2h", metavar="TIME",
                        help="how long: 90s, 30m, 2h (default), 1d; at most 30d")  # fmt: skip
    parser.add_argument("--kinds", nargs="+", metavar="KIND", help="only these kinds of alert")
    parser.add_argument("--series", metavar="GLOB",
                        help="only these series, such as 'k3{replica=3}'")  # fmt: skip
    parser.add_argument("--reason", help="for whoever looks next")
    add_service(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Silence, list or end; say until when."""
    from twinscope_service.client import Client

    seconds = period(args.period)
    with Client(args.url, token=args.token) as client:
        if args.list:
            found = client.silences()
            for one in found:
                print(describe(one))
            print(f"{len(found)} open")
        elif args.end is not None:
            print(f"over: {describe(client.end_silence(args.end))}")
        else:
            named = {"run": args.run_name} if args.run_name else {"runs": args.runs}
            more = {name: getattr(args, name) for name in ("kinds", "series", "reason")}
            given = {name: value for name, value in more.items() if value}
            print(describe(client.silence(seconds=seconds, **named, **given)))
            if args.run_name and args.run_name not in {view.run for view in client.runs()}:
                print(f"note: no run {args.run_name!r} is known yet", file=sys.stderr)
    return 0


def period(text: str) -> float:
    """Seconds of 90s, 30m, 2h, 1d."""
    from twinscope.errors import ConfigError
    from twinscope_service.store.silences import LONGEST_S

    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise ConfigError(f"--for: got {text!r}; give a number and s, m, h or d, such as 2h")
    seconds = float(found.group(1)) * SECONDS[found.group(2)]
    if not 0 < seconds <= LONGEST_S:
        most = f"{LONGEST_S / SECONDS['d']:g}d"
        raise ConfigError(f"--for: got {text!r}; give more than nothing and at most {most}")
    return seconds


def describe(silence: dict[str, Any]) -> str:
    """One line."""
    until = datetime.fromtimestamp(silence["end"]).astimezone().isoformat(" ", "seconds")
    what = silence["run"] or f"runs {silence['runs']}"
    series = "" if silence["series"] == "*" else f", series {silence['series']}"
    reason = f": {silence['reason']}" if silence["reason"] else ""
    return f"{silence['id']}  {what}, {' '.join(silence['kinds'])}{series}, until {until}{reason}"
