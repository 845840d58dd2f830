"""Trace files through the service's own path, in a data directory that is thrown away afterwards.

The files of a folder are the steps of one history, and so are files given by name that hold both
sides of different steps of one run; others of these stand alone. The one-sided files given by name
are joined with one another. `.json`: the JSON form.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from twinscope.errors import ConfigError, WireError
from twinscope.wire.batch import Batch
from twinscope.wire.codec import encode_batch, read_trace
from twinscope.wire.json_form import decode_json
from twinscope_service.config import Settings
from twinscope_service.pipeline import open_pipeline
from twinscope_service.views import AlertView, StepView

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Report:
    """One step and the files it came from."""

    files: tuple[Path, ...]
    step: StepView
    alerts: tuple[AlertView, ...] = ()  # of the run up to this step, newest first


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
    paired: dict[str, list[tuple[int | None, Path]]] = {}
    one_sided = []
    for path in named:
        batch = _read(path)
        if batch.side == "paired":
            paired.setdefault(batch.run, []).append((batch.step, path))
        else:
            one_sided.append(path)
    groups = [group for steps in paired.values() for group in _of_a_run(steps)]
    return groups + ([one_sided] if one_sided else []) + folders


def _of_a_run(steps: list[tuple[int | None, Path]]) -> list[list[Path]]:
    """One history; or files that stand alone, if two of them claim the same step."""
    paths = [path for _, path in steps]
    return [paths] if len({step for step, _ in steps}) == len(steps) else [[p] for p in paths]


def analyze(
    files: Sequence[Path],
    settings: Settings,
    *,
    track: Callable[[Sequence[Path]], Iterable[Path]] = iter,
) -> Iterator[Report]:
    """The steps that `files` hold, in step order, each as it closes.

    `track(paths)` gives the paths again, each when it is read: for a progress bar.
    """
    ordered = sorted(files, key=lambda path: _order(_read(path), path))  # one in memory at a time
    with tempfile.TemporaryDirectory(prefix="twinscope-") as data_dir:
        settings = settings.model_copy(update={"data_dir": Path(data_dir)})
        with closing(open_pipeline(settings)) as pipeline:
            sources: dict[tuple[str, int], list[Path]] = {}
            unassigned: list[Path] = []
            for path in track(ordered):
                batch = _read(path)
                receipt = pipeline.ingest(_body(path, batch), batch, batch_id=None)
                steps = set(receipt.steps) | ({batch.step} if batch.step is not None else set())
                for step in steps:
                    sources.setdefault((batch.run, step), []).append(path)
                if not steps:
                    unassigned.append(path)
            if not sources:
                raise ConfigError(f"{files[0]}: rollout side only; give the train side's file too")
            for (run, step), used in sorted(sources.items()):
                view = pipeline.close_step(run, step)
                yield Report((*unassigned, *used), view, tuple(pipeline.alerts(run)))


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


def _order(batch: Batch, path: Path) -> tuple[str, int, str]:
    """By run and step; sides without a step first, since they wait for the others."""
    return batch.run, -1 if batch.step is None else batch.step, str(path)
