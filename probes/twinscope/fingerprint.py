"""The facts about this process that a diagnosis wants, gathered on the sending thread."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

# Names under which launchers tell a process its rank, most specific first.
RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
WORLD_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LIBRARIES = (
    "torch",
    "numpy",
    "vllm",
    "sglang",
    "transformers",
    "verl",
    "trl",
    "openrlhf",
    "megatron",
    "deepspeed",
    "flash_attn",
    "ray",
)


def find_rank(environment: Mapping[str, str]) -> int | None:
    """This process's rank as its launcher tells it; None: not launched in ranks."""
    return _first_number(RANK_VARIABLES, environment)


def _first_number(variables: tuple[str, ...], environment: Mapping[str, str]) -> int | None:
    for variable in variables:
        text = environment.get(variable, "").strip()
        if text.isdecimal():
            return int(text)
    return None


def identify_process(environment: Mapping[str, str]) -> dict[str, int]:
    """What tells this process from the job's others: in its greeting and in every sign of life."""
    rank = find_rank(environment)
    return {"pid": os.getpid()} | ({} if rank is None else {"rank": rank})


def library_versions() -> dict[str, str]:
    """Versions of the libraries that this process has imported. Imports none."""
    found: dict[str, str] = {}
    for name in LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version[:64]
    return found


def describe_process(environment: Mapping[str, str], *, send_hostname: bool) -> dict[str, Any]:
    """Fields of the greeting. The host name only where the user asked for it."""
    import twinscope

    facts: dict[str, Any] = {
        **identify_process(environment),
        "twinscope": twinscope.__version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "libraries": library_versions(),
    }
    for name, number in (
        ("local_rank", _first_number(("LOCAL_RANK", "SLURM_LOCALID"), environment)),
        ("world_size", _first_number(WORLD_VARIABLES, environment)),
    ):
        if number is not None:
            facts[name] = number
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    if cuda is not None:
        facts["cuda"] = str(cuda)
    if send_hostname:
        facts["host"] = platform.node()
    return facts
