"""Steps, kept samples or their tokens as a table; columns of plain values.

Steps are few and whole; samples and tokens are many, and are written as they come, step by step.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from twinscope.errors import ConfigError
from twinscope_service.views import StepView

Row = dict[str, Any]
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would run


def table_of(steps: Iterable[StepView]) -> list[Row]:
    """One row per closed step, every row with the same columns; None where not known."""
    rows = [_row(step) for step in steps if step.state == "closed"]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def _row(step: StepView) -> Row:
    best = step.diagnosis[0] if step.diagnosis else {}
    return {
        "run": step.run,
        "step": step.step,
        "closed_at": step.closed_at,
        "verdict": step.verdict,
        "cause": best.get("cause"),
        "confidence": best.get("confidence"),
        "samples": step.samples,
        **{f"tokens_{name}": count for name, count in step.coverage.items()},
        **step.metrics,
        **{f"scalar_{name}": value for name, value in step.scalars.items()},
    }


def write_table(rows: Sequence[Row], path: Path) -> None:
    """Write `rows`, with the columns of the first, in the format of the suffix. ConfigError."""
    names = list(rows[0]) if rows else ["run"]
    write_chunks([rows], path, dict.fromkeys(names))


def write_chunks(
    chunks: Iterable[Sequence[Row]], path: Path, columns: Mapping[str, type | None]
) -> int:
    """Write the rows of all chunks in the format of the suffix; how many. Raises ConfigError.

    `columns`: name -> type; None: the values of the first chunk tell. Nothing is written for an
    unknown suffix.
    """
    write = WRITERS.get(path.suffix)
    if write is None:
        raise ConfigError(f"{path}: unknown suffix; use one of {', '.join(WRITERS)}")
    count = 0

    def counted() -> Iterator[Sequence[Row]]:
        nonlocal count
        for chunk in chunks:
            count += len(chunk)
            yield chunk

    write(counted(), path, columns)
    return count


def _write_parquet(
    chunks: Iterable[Sequence[Row]], path: Path, columns: Mapping[str, type | None]
) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"{path}: Parquet needs pyarrow: pip install 'twinscope[export]', or write .csv"
        ) from None
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    typed = [(name, kinds[kind]) for name, kind in columns.items() if kind is not None]
    schema = pyarrow.schema(typed) if typed else None
    with ExitStack() as stack:
        writer = None
        for chunk in chunks:
            table = pyarrow.Table.from_pylist(list(chunk), schema=schema)
            if writer is None:
                opened = pyarrow.parquet.ParquetWriter(path, table.schema)
                writer = stack.enter_context(opened)
            writer.write_table(table)
        if writer is None:
            empty = schema or pyarrow.schema([])
            stack.enter_context(pyarrow.parquet.ParquetWriter(path, empty))


def _write_csv(
    chunks: Iterable[Sequence[Row]], path: Path, columns: Mapping[str, type | None]
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(columns))
        writer.writeheader()
        for chunk in chunks:
            writer.writerows({name: _cell(value) for name, value in row.items()} for row in chunk)


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _write_json_lines(
    chunks: Iterable[Sequence[Row]], path: Path, columns: Mapping[str, type | None]
) -> None:
    with path.open("w", encoding="utf-8") as file:
        for chunk in chunks:
            lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in chunk)
            file.writelines(f"{line}\n" for line in lines)


Writer = Callable[[Iterable[Sequence[Row]], Path, Mapping[str, type | None]], None]
WRITERS: dict[str, Writer] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
}
