"""`twinscope tail`: follow the files that a framework writes anyway, and send what they hold."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path
from typing import Any

FORMATS = ("prime-rl", "nemo-rl", "slime")


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "tail",
        help="follow the dumps of prime-rl, NeMo-RL, slime or miles, with no code in the trainer",
        description="Sends each finished step of DIR to the service once, in order. prime-rl: "
        "trainer.enable_token_export=true; NeMo-RL: train_data_step*.jsonl of its logger; slime "
        "and miles: --save-debug-train-data. Exit status: 0 something was sent, 2 nothing was.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--format", choices=FORMATS, help="default: what is found in DIR")
    parser.add_argument("--url", help="the service (default: TWINSCOPE_URL)")
    parser.add_argument("--run", dest="run_name", help="default: TWINSCOPE_RUN, or DIR's name")
    parser.add_argument("--from-step", type=int, default=0, metavar="STEP")
    parser.add_argument("--once", action="store_true", help="send what is there, then stop")
    parser.add_argument("--interval", type=float, default=5.0, metavar="SECONDS")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look and send until Ctrl-C, or once."""
    import os

    from twinscope import Probe
    from twinscope.errors import ConfigError
    from twinscope_service.tail.dumps import FORMATS as KNOWN
    from twinscope_service.tail.follow import Follower

    if not args.folder.is_dir():
        raise ConfigError(f"{args.folder}: no such folder")
    name = args.run_name or os.environ.get("TWINSCOPE_RUN") or args.folder.resolve().name
    follower = Follower(args.folder, KNOWN.get(args.format), first=args.from_step)
    with Probe(args.url, name) as probe:
        if not probe.enabled:
            raise ConfigError("no address: pass --url or set TWINSCOPE_URL")
        sent = _follow(follower, probe, args)
        probe.flush(timeout=60)
        lost = probe.stats().lost
    print(f"{sent} steps sent, {lost.batches} batches lost", file=sys.stderr)
    return 0 if sent and not lost.batches else 2


def _follow(follower: Any, probe: Any, args: argparse.Namespace) -> int:
    from twinscope_service.tail.follow import send_step

    sent, pause = 0, threading.Event()
    try:
        while True:
            for step in follower.look(finished=args.once):
                if send_step(follower.form, step, probe, tell=_tell):
                    sent += 1
                    print(f"step {step.number}: {len(step.files)} files", file=sys.stderr)
            if args.once:
                return sent
            pause.wait(args.interval)
    except KeyboardInterrupt:
        return sent


def _tell(text: str) -> None:
    print(f"twinscope tail: {text}", file=sys.stderr)
