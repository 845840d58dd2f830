"""`twinscope bridge`: the service's curves in TensorBoard or W&B, beside the trainer's own."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinscope_service.cli.address import add_service

if TYPE_CHECKING:
    from twinscope_service.report.bridge import Target


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "bridge",
        help="a run's curves in TensorBoard or W&B",
        description="Copies every closed step's metrics, verdict and cause under twinscope/.",
    )
    parser.add_argument("run_name", metavar="RUN")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--tensorboard", type=Path, metavar="DIR", help="folder of event files")
    target.add_argument("--wandb", metavar="PROJECT", help="W&B project")
    parser.add_argument("--id", default=os.environ.get("WANDB_RUN_ID"),
                        help="id of the W&B run to write into, such as the trainer's own (default: "
                        "WANDB_RUN_ID, else a run of its own)")  # fmt: skip
    parser.add_argument("--follow", type=float, metavar="SECONDS", help="look again so often")
    add_service(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Copy; with --follow until Ctrl-C."""
    from twinscope_service.client import Client
    from twinscope_service.report.bridge import follow

    with Client(args.url, token=args.token) as client:
        client.run(args.run_name)  # an unknown run is told before a target is opened
        target = _open(args)
        try:
            follow(client, args.run_name, target, wait=lambda: _wait(args.follow))
        finally:
            target.close()
    return 0


def _open(args: argparse.Namespace) -> Target:
    from twinscope_service.report.bridge import TensorBoard, open_wandb

    if args.tensorboard is not None:
        return TensorBoard(args.tensorboard)
    return open_wandb(args.wandb, args.run_name, ident=args.id)


def _wait(seconds: float | None) -> bool:
    if seconds is None:
        return False
    time.sleep(seconds)
    return True
