"""Where the service is and what opens it: the options of every command that asks one."""

from __future__ import annotations

import argparse
import os


def add_service(parser: argparse.ArgumentParser) -> None:
    """Declare --url and --token; the token comes from TWINSCOPE_TOKEN too, where `ps` shows it not.

    The probes read the same variable; an empty one is none.
    """
    parser.add_argument("--url", default="http://127.0.0.1:8321", help="the service")
    parser.add_argument("--token", default=os.environ.get("TWINSCOPE_TOKEN") or None,
                        help="its bearer token (default: TWINSCOPE_TOKEN)")  # fmt: skip
