"""How far two checkpoints are apart, tensor by tensor, without loading a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twinscope.errors import ConfigError
from twinscope_service.twin.rescore import Moved


def moved(older: Path, newer: Path) -> Moved | None:
    """Shares of changed weights; None where the folders hold no safetensors with equal names."""
    import torch

    total = stored = rounded = 0
    before = dict(_tensors(older))
    for name, tensor in _tensors(newer):
        other = before.get(name)
        if other is None or other.shape != tensor.shape or not tensor.is_floating_point():
            continue
        total += tensor.numel()
        stored += int((tensor.float() != other.float()).sum())
        rounded += int((tensor.to(torch.bfloat16) != other.to(torch.bfloat16)).sum())
    if not total:
        return None
    return Moved(older.name, newer.name, stored / total, rounded / total)


def _tensors(folder: Path) -> Iterator[tuple[str, Any]]:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'twinscope[check]'") from error
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                yield name, file.get_tensor(name)
