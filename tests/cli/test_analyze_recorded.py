"""`twinscope analyze --json` on every recorded trace gives the index's float64 values."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from twinscope_service.cli import main

CUT = Path(__file__).resolve().parents[1] / "vectors/traces"
FOLDER = Path(os.environ.get("TWINSCOPE_TRACES", CUT))
ROWS: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text())
CHECKED = ("k3_mean", "k1_mean", "abs_mean", "abs_max")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"].removesuffix(".safetensors"))
def test_analyze_gives_the_values_of_the_index(
    row: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Four statistics to 1e-6, all tokens accounted for."""
    main(["analyze", str(FOLDER / row["file"]), "--json"])

    found = json.loads(capsys.readouterr().out)
    expected = {name: row[name] for name in CHECKED}
    coverage = found["coverage"]
    assert {name: found["metrics"][name] for name in CHECKED} == pytest.approx(expected, rel=1e-6)
    assert found["tokens"] == row["tokens"]
    assert coverage["received"] == row["tokens"]
    assert coverage["received"] == sum(
        coverage[kind] for kind in ("counted", "masked_out", "nonfinite", "sentinel", "positive")
    )
