"""`twinscope tail`: follow the files that a framework writes anyway, and send what they hold."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import Any

FORMATS = ("prime-rl", "nemo-rl", "slime")
WAIT_S = 30.0  # for the service, before saying so


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "tail",
        help="follow the dumps of prime-rl, NeMo-RL, slime or miles, with no code in the trainer",
        description="Sends each finished step of DIR to the service once, in order; started again, "
        "it goes on where it stopped. prime-rl: trainer.enable_token_export=true; NeMo-RL: "
        "train_data_step*.jsonl of its logger; slime and miles: --save-debug-train-data. Exit "
        "status: 0 the service has what is there, 2 nothing was sent, or something was lost.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--format", choices=FORMATS, help="default: what is found in DIR")
    parser.add_argument("--url", help="the service (default: TWINSCOPE_URL)")
    parser.add_argument("--run", dest="run_name", help="default: TWINSCOPE_RUN, or DIR's name")
    parser.add_argument("--from-step", type=int, default=0, metavar="STEP")
    parser.add_argument("--state", type=Path, metavar="FILE",
                        help="what was sent (default: .twinscope-tail.json in DIR)")  # fmt: skip
    parser.add_argument("--afresh", action="store_true", help="forget which steps were sent")
    parser.add_argument("--once", action="store_true", help="send what is there, then stop")
    parser.add_argument("--interval", type=float, default=5.0, metavar="SECONDS")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look and send until Ctrl-C, or once."""
    from twinscope import Probe
    from twinscope.errors import ConfigError
    from twinscope_service.tail.dumps import FORMATS as KNOWN
    from twinscope_service.tail.follow import Follower

    if not args.folder.is_dir():
        raise ConfigError(f"{args.folder}: no such folder")
    name = args.run_name or os.environ.get("TWINSCOPE_RUN") or args.folder.resolve().name
    with Probe(args.url, name) as probe:
        if not probe.enabled:
            raise ConfigError("no address: pass --url or set TWINSCOPE_URL")
        place = _place(args, probe.stats().url, name)
        follower = Follower(args.folder, KNOWN.get(args.format), first=args.from_step, place=place)
        known, sent = len(place.sent), _follow(follower, probe, args)
    lost = probe.stats().lost  # after closing: what the service would not take in time
    before = f", {known} were there before" if known else ""
    print(f"{sent} steps sent{before}, {lost.batches} batches lost", file=sys.stderr)
    return 0 if (sent or known) and not lost.batches else 2


def _place(args: argparse.Namespace, url: str | None, run_name: str) -> Any:
    from twinscope_service.tail.place import FILE_NAME, Place

    place = Place.load(args.state or args.folder / FILE_NAME, url=url, run=run_name)
    if args.afresh:
        place.sent.clear()
    return place


def _follow(follower: Any, probe: Any, args: argparse.Namespace) -> int:
    sent, pause = 0, threading.Event()
    try:
        while True:
            for step in follower.look(finished=args.once):
                sent += _send(follower, step, probe, once=args.once)
                if args.once and not probe.flush(timeout=0):
                    return sent
            if args.once:
                return sent
            pause.wait(args.interval)
    except KeyboardInterrupt:
        return sent


def _send(follower: Any, step: Any, probe: Any, *, once: bool) -> bool:
    """One step, until the service has it: a tail does not run ahead of a service that is away."""
    from twinscope_service.tail.follow import send_step

    if follower.place.was_other(step):
        _tell(f"step {step.number}: written again since it was sent, as a resumed run does")
        probe.event("restart", step=step.number)
    lost = probe.stats().lost
    readable = send_step(follower.form, step, probe, tell=_tell)
    while not probe.flush(timeout=WAIT_S):
        _tell(f"step {step.number}: {probe.stats().last_error or 'waiting for the service'}")
        if once:
            return False
    if not readable or probe.stats().lost != lost:
        return False
    follower.place.record(step, tell=_tell)
    print(f"step {step.number}: {len(step.files)} files", file=sys.stderr)
    return True


def _tell(text: str) -> None:
    print(f"twinscope tail: {text}", file=sys.stderr)
