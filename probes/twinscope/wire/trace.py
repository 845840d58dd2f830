"""A batch on disk: a trace file is exactly the body of a post, suffix `.safetensors`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinscope.errors import WireError
from twinscope.wire.batch import Batch
from twinscope.wire.codec import Buffer, Shape, decode, encode
from twinscope.wire.limits import Limits

SUFFIX = ".safetensors"


def read_trace(path: str | os.PathLike[str], *, limits: Limits | None = None) -> Batch:
    """The batch in the file at `path`, checked like any other body."""
    limits = limits or Limits()
    size = Path(path).stat().st_size
    if size > limits.body_bytes:
        raise WireError(f"file {path}", f"{size} bytes", f"at most {limits.body_bytes} bytes")
    try:
        return decode(Path(path).read_bytes(), limits=limits)
    except WireError as error:
        raise WireError(f"{path}: {error.field}", error.args[1], error.fix) from None


def write_trace(
    path: str | os.PathLike[str],
    header: Mapping[str, Any],
    tensors: Mapping[str, tuple[Buffer, Shape]],
) -> None:
    """Write a trace file; a reader sees the old file or the whole new one, never half of it."""
    pieces = encode(header, tensors)
    draft = Path(f"{os.fspath(path)}.draft")
    try:
        with open(draft, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)  # still there only if writing failed
