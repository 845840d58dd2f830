"""Trace files through the service's own path, in a data directory that is thrown away afterwards.

The files of a folder are the steps of one history. A file given by name stands alone when it holds
both sides; the one-sided files given by name are joined with one another. `.json`: the JSON form.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from twinscope.errors import ConfigError, WireError
from twinscope.wire.batch import Batch
from twinscope.wire.codec import encode_batch, read_trace
from twinscope.wire.json_form import decode_json
from twinscope_service.config import Settings
from twinscope_service.pipeline import open_pipeline
from twinscope_service.views import StepView

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Report:
    """One step and the files it came from."""

    files: tuple[Path, ...]
    step: StepView


def histories(paths: Sequence[Path]) -> list[list[Path]]:
    """The files that belong together, in the order of `paths`. Raises ConfigError."""
    found = [sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path] for path in paths]
    for path, files in zip(paths, found, strict=True):
        if not files:
            raise ConfigError(f"{path}: no *{SUFFIX} file in this folder")
        if not files[0].exists():
            raise ConfigError(f"{files[0]}: no such file or folder")
    named = [files[0] for path, files in zip(paths, found, strict=True) if not path.is_dir()]
    folders = [files for path, files in zip(paths, found, strict=True) if path.is_dir()]
    one_sided = [path for path in named if _read(path).side != "paired"]
    alone = [[path] for path in named if path not in one_sided]
    return alone + ([one_sided] if one_sided else []) + folders


def analyze(files: Sequence[Path], settings: Settings) -> Iterator[Report]:
    """The steps that `files` hold, in step order, each as it closes."""
    batches = sorted(((_read(path), path) for path in files), key=_order)
    with tempfile.TemporaryDirectory(prefix="twinscope-") as data_dir:
        settings = settings.model_copy(update={"data_dir": Path(data_dir)})
        with closing(open_pipeline(settings)) as pipeline:
            sources: dict[tuple[str, int], list[Path]] = {}
            unassigned: list[Path] = []
            for batch, path in batches:
                receipt = pipeline.ingest(_body(path, batch), batch, batch_id=None)
                steps = set(receipt.steps) | ({batch.step} if batch.step is not None else set())
                for step in steps:
                    sources.setdefault((batch.run, step), []).append(path)
                if not steps:
                    unassigned.append(path)
            if not sources:
                raise ConfigError(f"{files[0]}: rollout side only; give the train side's file too")
            for (run, step), used in sorted(sources.items()):
                yield Report((*unassigned, *used), pipeline.close_step(run, step))


def _read(path: Path) -> Batch:
    if path.suffix != ".json":
        return read_trace(path)
    try:
        return decode_json(path.read_bytes())
    except WireError as error:
        raise WireError(f"{path}: {error.field}", error.args[1], error.fix) from None


def _body(path: Path, batch: Batch) -> bytes:
    if path.suffix != ".json":
        return path.read_bytes()
    return b"".join(encode_batch(batch))  # the store keeps one format


def _order(entry: tuple[Batch, Path]) -> tuple[str, int, str]:
    """By run and step; sides without a step first, since they wait for the others."""
    batch, path = entry
    return batch.run, -1 if batch.step is None else batch.step, str(path)
