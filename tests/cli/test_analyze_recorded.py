"""`twinscope analyze --json` on every recorded trace gives the index's float64 values."""

from __future__ import annotations

import json
import math
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


def test_a_batch_in_json_is_read_by_its_name_and_told_by_its_first_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three tokens, Δ = 0.1, 0, -0.1: the mean k3 by hand."""
    body = {
        "schema": 1, "run": "r", "step": 0, "side": "paired",
        "token_ids": [[1, 2, 3]],
        "rollout_logprobs": [[-1.0, -1.0, -1.0]], "train_logprobs": [[-0.9, -1.0, -1.1]],
    }  # fmt: skip
    named, misnamed = tmp_path / "step.json", tmp_path / "step.safetensors"
    for path in (named, misnamed):
        path.write_text(json.dumps(body))
    assert main(["analyze", str(named), "--json"]) == 2  # too few tokens
    found = json.loads(capsys.readouterr().out)
    k3 = (math.expm1(0.1) - 0.1 + math.expm1(-0.1) + 0.1) / 3
    assert found["metrics"]["k3_mean"] == pytest.approx(k3, rel=1e-5)  # -0.9 is no float32
    assert main(["analyze", str(misnamed)]) == 2
    assert "name a file of it .json" in capsys.readouterr().err
