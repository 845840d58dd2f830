"""Which model an example runs."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """`--model`, the same for every example."""
    parser.add_argument("--model", default="smollm2", help="smollm2, tiny, or a model folder")


def model_folder(name: str, *, seed: int = 0) -> Path:
    """The folder of the chosen model, made first if need be; `seed`: of tiny's weights."""
    if name == "smollm2":
        from smollm2 import make_smollm2

        return make_smollm2(Path(".cache/smollm2"))
    if name == "tiny":
        from tiny_llama import make_tiny_llama

        return make_tiny_llama(Path(tempfile.mkdtemp(prefix="tiny-llama-")), seed=seed)
    return Path(name)
