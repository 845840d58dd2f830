"""`twinscope analyze --json` on every recorded trace gives the index's float64 values."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from twinscope.wire.codec import encode_batch
from twinscope_service.cli import main
from twinscope_service.replay import before_and_after, steps

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


def _recorded_steps(folder: Path, *, healthy: int, faulty: int) -> list[str]:
    """Files of a run that goes wrong, one paired step each."""
    good, bad = before_and_after("temperature_0.7_restored", "temperature_0.7_unrestored")
    batches = [good] * healthy + [bad] * faulty
    paths = []
    for batch in steps(batches, run="mine", samples_per_step=48, seed=0):
        path = folder / f"step_{batch.step:03d}.safetensors"
        path.write_bytes(b"".join(bytes(piece) for piece in encode_batch(batch)))
        paths.append(str(path))
    return paths


def test_files_of_one_run_are_its_history_and_end_with_what_they_come_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a folder of them: healthy steps before give the level without the fault, and the onset."""
    files = _recorded_steps(tmp_path, healthy=22, faulty=8)
    assert main(["analyze", *files]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "this run's healthy level" in told
    assert told.index("run 'mine': 30 steps, 22 ok, 8 inconsistent") > told.index("step 29")
    assert "first inconsistent step 22" in told
    assert "leading cause temperature_not_restored, in 8 of these 8" in told
    assert "level shift rollout_train_kl shifted at step 22" in told

    assert main(["analyze", str(tmp_path)]) == 1
    assert " ".join(capsys.readouterr().out.split()) == told


def test_files_that_are_no_history_stand_alone_and_are_not_summed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same step twice, as of two recordings: each is judged by itself."""
    (first,) = _recorded_steps(tmp_path, healthy=1, faulty=0)
    second = tmp_path / "again.safetensors"
    second.write_bytes(Path(first).read_bytes())
    assert main(["analyze", first, str(second)]) == 0
    told = capsys.readouterr().out
    assert told.count("verdict  ok") == 2
    assert "steps," not in told
