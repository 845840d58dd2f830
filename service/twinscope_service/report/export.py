"""Steps as a table: one row per closed step, columns of plain values."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
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
    """Write `rows` in the format of the suffix. Raises ConfigError."""
    write = WRITERS.get(path.suffix)
    if write is None:
        raise ConfigError(f"{path}: unknown suffix; use one of {', '.join(WRITERS)}")
    write(rows, path)


def _write_parquet(rows: Sequence[Row], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"{path}: Parquet needs pyarrow: pip install 'twinscope[export]', or write .csv"
        ) from None
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def _write_csv(rows: Sequence[Row], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else ["run"])
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe in front."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _write_json_lines(rows: Sequence[Row], path: Path) -> None:
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


WRITERS: dict[str, Callable[[Sequence[Row], Path], None]] = {
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".jsonl": _write_json_lines,
}
