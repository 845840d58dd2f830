"""The command line: one module per command, each with `add(subparsers)`; exit status 0, 1 or 2.

0 done (for verdicts: ok), 1 inconsistent or failed, 2 unknown or wrong usage.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence

from twinscope.errors import TwinScopeError

STDOUT = 1  # file descriptor
INSTALL = "pip install 'twinscope[service]', in a clone: pip install '.[service]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, run one command, turn a TwinScopeError into one readable line on stderr."""
    try:
        args = _parser().parse_args(argv)
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0].startswith("twinscope"):
            raise
        print(f"twinscope: needs {error.name}: {INSTALL}", file=sys.stderr)
        return 2
    except TwinScopeError as error:
        print(f"twinscope: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        return 141  # as a shell says of a program that a closed pipe ended
    except KeyboardInterrupt:
        return 130


def _nobody_reads() -> bool:
    """Whether it is our output that is closed (`| head`); then the rest of it goes nowhere."""
    look = select.poll()
    look.register(STDOUT, 0)  # asks for nothing: a pipe without a reader is told all the same
    if not look.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    return True


def _parser() -> argparse.ArgumentParser:
    from twinscope_service.cli import (
        analyze,
        bench,
        bridge,
        check,
        demo,
        diff,
        doctor,
        drill,
        export,
        report,
        rescore,
        serve,
        silence,
        tail,
    )

    parser = argparse.ArgumentParser(
        prog="twinscope",
        description="Are the policy that samples and the policy that is trained still the same?",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    reading = (analyze, report, export, diff, bridge)
    for module in (serve, check, tail, rescore, *reading, silence, drill, demo, bench, doctor):
        module.add(commands)
    return parser
