"""`twinscope serve`: the sidecar."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "serve", help="run the service", description="Every setting: docs/settings.md."
    )
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port (default 8321)")
    parser.add_argument(
        "--data-dir", type=Path, help="where runs are kept (default ./twinscope-data)"
    )
    parser.add_argument("--config", type=Path, help="settings as a TOML file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from twinscope_service.app import serve
    from twinscope_service.cli.doctor import variable_findings
    from twinscope_service.config import load_settings

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    given = {"host": args.host, "port": args.port, "data_dir": args.data_dir}
    for finding in variable_findings(os.environ):
        logging.getLogger(__name__).warning(finding.text)
    overrides = {name: value for name, value in given.items() if value is not None}
    serve(load_settings(config=args.config, **overrides))
    return 0
