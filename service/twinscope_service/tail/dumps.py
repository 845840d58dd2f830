"""The dumps that can be followed: where their steps are, when one is complete, how to read it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinscope.errors import ConfigError
from twinscope.hosts import nemo_rl, prime_rl, slime

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """A step's files. `settled`: nothing more will be written to them."""

    number: int
    files: tuple[Path, ...]
    settled: bool

    @property
    def size(self) -> int:
        """Bytes: a step whose files grow is not finished."""
        return sum(path.stat().st_size for path in self.files)


@dataclass(frozen=True)
class Format:
    """One framework's dump."""

    name: str
    find: Callable[[Path], Iterator[Step]]
    read: Callable[[Step], Iterator[Fields]]  # one or several calls of the probe per step


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return None if found is None else int(found[1])


def _grouped(files: Sequence[Path], pattern: str) -> dict[int, list[Path]]:
    steps: dict[int, list[Path]] = {}
    for path in sorted(files):
        number = _number(pattern, path.name)
        if number is not None:
            steps.setdefault(number, []).append(path)
    return dict(sorted(steps.items()))


# ---- prime-rl: token_exports/step_N/rank_R.jsonl, STABLE when all ranks are done ----


def _find_prime(folder: Path) -> Iterator[Step]:
    steps: dict[int, list[Path]] = {}
    for place in folder.glob("**/token_exports/step_*"):
        number = _number(r"^step_(\d+)$", place.name)
        if number is not None:
            steps.setdefault(number, []).append(place)
    for number, places in sorted(steps.items()):
        files = [path for place in places for path in sorted(place.glob("rank_*.jsonl"))]
        settled = all((place / "STABLE").exists() for place in places)
        if files:
            yield Step(number, tuple(files), settled)


def _read_prime(step: Step) -> Iterator[Fields]:
    for path in step.files:
        yield prime_rl.read_records(_lines(path))


# ---- NeMo-RL: train_data_step{N}.jsonl, written in one go ----


def _find_nemo(folder: Path) -> Iterator[Step]:
    files = list(folder.glob("**/train_data_step*.jsonl"))
    yield from _settled_by_the_next(_grouped(files, r"^train_data_step(\d+)\.jsonl$"))


def _read_nemo(step: Step) -> Iterator[Fields]:
    for path in step.files:
        yield nemo_rl.read_records(_lines(path), step=step.number)


# ---- slime, miles: .pt files of --save-debug-train-data, one per rollout and rank ----


def _find_slime(folder: Path) -> Iterator[Step]:
    """The rollout id is the last number but one of a name such as train_12_3.pt (or its only)."""
    files = list(folder.glob("**/*.pt"))
    yield from _settled_by_the_next(_grouped(files, r"(\d+)(?:[^\d]+\d+)?\.pt$"))


def _read_slime(step: Step) -> Iterator[Fields]:
    """Ranks of one tensor-parallel group hold the same samples: each is read once."""
    seen: set[str] = set()
    for path in step.files:
        loaded = _load_tensors(path)
        if "samples" in loaded:  # format 2: all ranks in one file
            fields = slime.read_samples(loaded["samples"], rollout_id=step.number)
            yield {**fields, "train_fingerprint": {"name": "slime"}}
            continue
        data = loaded.get("rollout_data", loaded)
        if "rollout_log_probs" not in data and "log_probs" not in data:
            continue  # a rank of another pipeline stage
        fields = slime.read_rollout_data(data, rollout_id=step.number)
        ids = fields.get("sample_ids") or [str(path)]
        if not seen & set(ids):
            seen |= set(ids)
            yield {**fields, "train_fingerprint": {"name": "slime"}}


def _load_tensors(path: Path) -> Mapping[str, Any]:
    """Only tensors and plain values: a dump that would run code is refused."""
    try:
        import torch
    except ImportError as error:
        raise ConfigError(f"{path}: {error}: pip install 'twinscope[torch]'") from error
    refused: type[Exception] = vars(torch.serialization)["pickle"].UnpicklingError
    try:
        loaded: Mapping[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except refused as error:
        raise ConfigError(f"{path}: not only tensors and plain values: {error}") from error
    return loaded


def _settled_by_the_next(steps: Mapping[int, Sequence[Path]]) -> Iterator[Step]:
    """A step is finished when a later one exists; the last one when its files stop growing."""
    newest = max(steps, default=0)
    for number, files in steps.items():
        yield Step(number, tuple(files), settled=number < newest)


def _lines(path: Path) -> list[Any]:
    """The objects of a JSON-lines file. Raises ConfigError with the line."""
    records = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    records.append(json.loads(line))
                except json.JSONDecodeError as error:
                    raise ConfigError(f"{path}:{number}: {error}") from error
    return records


FORMATS: dict[str, Format] = {
    "prime-rl": Format("prime-rl", _find_prime, _read_prime),
    "nemo-rl": Format("nemo-rl", _find_nemo, _read_nemo),
    "slime": Format("slime", _find_slime, _read_slime),
}


def recognise(folder: Path) -> Format | None:
    """The first format that finds a step in `folder`; None: nothing there yet."""
    for form in FORMATS.values():
        if next(form.find(folder), None) is not None:
            return form
    return None
