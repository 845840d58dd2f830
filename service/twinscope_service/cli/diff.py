"""`twinscope diff`: from which step on two runs part."""

from __future__ import annotations

import argparse
import json
from typing import Any

from twinscope_service.cli.address import add_service

TITLES = {
    "k3_mean": "rollout_train_kl", "abs_mean": "mean |Δ|", "abs_p99": "99th percentile of |Δ|",
    "rho_mean": "E[ρ]", "ess_ratio": "effective sample size", "clip_fraction": "clipped share",
    "policy_ref_kl": "KL(policy‖reference)",
}  # fmt: skip


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "diff",
        help="the first step from which two runs part, metric by metric",
        description="Compares the closed steps that both runs have: levels by their ratio, shares "
        "and signed numbers by their difference. Exit status: 0 they do not part, 1 they do, "
        "2 unknown (too few steps in common).",
    )
    parser.add_argument("a", metavar="RUN_A")
    parser.add_argument("b", metavar="RUN_B")
    parser.add_argument("--json", action="store_true")
    add_service(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch both, compare, print; exit status."""
    from twinscope_service.client import Client
    from twinscope_service.report.diff import compare, text

    with Client(args.url, token=args.token) as client:
        found = compare(client.steps(args.a), client.steps(args.b))
    if args.json:
        print(json.dumps(found.as_json(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(text(found, words=TITLES))
    if found.first is not None:
        return 1
    told = found.metrics and all(one.outcome != "unknown" for one in found.metrics)
    return 0 if told else 2
