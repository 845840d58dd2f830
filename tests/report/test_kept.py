"""Single samples and tokens: as text in the report, as numbers in tables."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from looking import FAULTY, HEALTHY
from service_process import ServiceProcess

from twinscope_service.cli import main
from twinscope_service.client import Client
from twinscope_service.report.kept import deltas, excerpt, gaps, k3_of

LAST = HEALTHY + FAULTY - 1
SAMPLE = {
    "rollout_logprobs": [-1.0, None, -2.0, -3.0, -0.5],
    "train_logprobs": [-1.5, -1.0, -2.0, -1.0, -0.5],
    "mask": [1, 1, 1, 1, 0],
    "token_ids": [7, 8, 9, 10, 11],
}


def test_gaps_of_a_sample_are_those_worked_by_hand() -> None:
    """Δ of -0.5, 0 and 2; a missing side and a masked token are in no mean."""
    found = gaps(SAMPLE)

    assert deltas(SAMPLE) == [-0.5, None, 0.0, 2.0, None]
    assert (found.counted, found.abs_max, found.worst) == (3, 2.0, 3)
    assert found.abs_mean == pytest.approx(2.5 / 3)
    assert found.k3_mean == pytest.approx((math.exp(-0.5) - 0.5 + math.exp(2.0) - 3.0) / 3)
    assert gaps({"rollout_logprobs": [None], "train_logprobs": [-1.0]}).abs_mean is None


@pytest.mark.parametrize("delta", [1e-9, -1e-6, 1e-4, -9.9e-4, 1.1e-3, -0.3])
def test_k3_does_not_cancel(delta: float) -> None:
    """Against the series to the eighth power, which is exact to float64 for such small numbers."""
    series = math.fsum(delta**n / math.factorial(n) for n in range(2, 16))

    assert k3_of(delta) == pytest.approx(series, rel=1e-9)


def test_an_excerpt_stands_around_the_worst_token() -> None:
    """Text where there is some, ids otherwise; what is cut off is marked."""
    text = [f" w{t}" for t in range(40)]
    long = {"rollout_logprobs": [-1.0] * 40, "train_logprobs": [-1.0] * 40, "text": text}
    long["train_logprobs"] = [-1.0 - (t == 20) for t in range(40)]
    before, worst, after = excerpt(long) or ("", "", "")

    assert excerpt(SAMPLE) == (" [7]  [8]  [9] ", " [10] ", " [11] ")
    assert worst == " w20"
    assert before == "… " + "".join(text[8:20])
    assert after == "".join(text[21:33]) + " …"
    assert excerpt({"rollout_logprobs": [-1.0], "train_logprobs": [-2.0]}) is None


def test_a_report_shows_worst_samples_and_tokens(
    service: ServiceProcess, client: Client, tmp_path: Path
) -> None:
    """The largest |Δ| of the step is there, with its token and its sample."""
    path = tmp_path / "report.html"
    assert main(["report", "demo", "-o", str(path), "--url", service.url]) == 0
    text = path.read_text(encoding="utf-8")
    worst = client.kept("demo", LAST)["worst_tokens"][0]

    assert "Worst samples" in text
    assert "<mark>" in text
    assert f"#{worst['token_id']}" in text.partition("Worst tokens")[2]
    assert f"{worst['p'] - worst['q']:.4g}" in text.partition("Worst tokens")[2]

    assert main(["report", "demo", "--no-samples", "-o", str(path), "--url", service.url]) == 0
    assert "Worst" not in path.read_text(encoding="utf-8")


def test_sampled_text_is_text_in_the_report(tmp_path: Path) -> None:
    """A tokenizer whose words are markup: read in the report, never run."""
    pytest.importorskip("tokenizers")
    from hostile_words import RUN, service_of_hostile_words, word

    path = tmp_path / "report.html"
    with service_of_hostile_words(tmp_path) as service:
        assert main(["report", RUN, "-o", str(path), "--url", service.url]) == 0
        token = service.get(f"/v1/runs/{RUN}/steps/0/evidence")["worst_tokens"][0]["token_id"]
    document = path.read_text(encoding="utf-8")

    assert word(token).replace(">", "&gt;").replace("<", "&lt;") in document
    assert "<img" not in document
    assert "<script" not in document


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_exported_tokens_are_the_arrays_of_the_evidence(
    suffix: str, service: ServiceProcess, client: Client, tmp_path: Path
) -> None:
    """Every kept token of a step, in order, with both log-probs as the trace file has them."""
    path = tmp_path / f"tokens{suffix}"
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    command = ["export", "demo", "--tokens", "--steps", f"{LAST}:", "-o", str(path)]
    assert main([*command, "--url", service.url]) == 0
    rows, batch = _read(path), client.evidence("demo", LAST)
    assert batch is not None

    assert len(rows) == batch.tokens
    for column, tensor in (("rollout_logprob", "rollout_logprobs"), ("token_id", "token_ids")):
        found = np.array([float(row[column]) for row in rows], np.float64)
        assert np.array_equal(found, batch.tensors[tensor].astype(np.float64))
    delta = batch.tensors["train_logprobs"].astype(float) - batch.tensors["rollout_logprobs"]
    assert [float(row["delta"]) for row in rows[:50]] == pytest.approx(delta[:50].tolist())
    assert {int(row["step"]) for row in rows} == {LAST}


def test_exported_samples_are_those_that_are_kept(
    service: ServiceProcess, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row each, of the chosen steps; the worst token's place is that of the step's worst."""
    path = tmp_path / "samples.jsonl"
    command = ["export", "demo", "--samples", "--steps", f"{LAST - 1}:{LAST}", "-o", str(path)]
    assert main([*command, "--url", service.url]) == 0
    rows, kept = _read(path), client.kept("demo", LAST)
    largest = max((row for row in rows if row["step"] == LAST), key=lambda row: row["abs_max"])
    worst = kept["worst_tokens"][0]

    assert "samples of 2 steps; 0 keep none" in capsys.readouterr().out
    assert {row["step"] for row in rows} == {LAST - 1, LAST}
    assert len([row for row in rows if row["step"] == LAST]) == len(kept["samples"])
    assert largest["abs_max"] == pytest.approx(worst["abs"])
    assert largest["worst_position"] == worst["position"]
    assert {row["chosen"] for row in rows} == {"worst", "chance"}


def test_steps_that_keep_nothing_are_counted(
    service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run `long` has no evidence: an empty table with its columns, and words."""
    path = tmp_path / "samples.csv"
    assert main(["export", "long", "--samples", "-o", str(path), "--url", service.url]) == 0

    assert path.read_text().startswith("run,step,sample,")
    assert "0 samples of 0 steps; 20 keep none" in capsys.readouterr().out


def test_steps_are_chosen_for_the_table_of_steps_too(
    service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both ends included; what is no span is refused with an example."""
    path = tmp_path / "steps.csv"
    command = ["export", "demo", "-o", str(path), "--url", service.url]
    assert main([*command, "--steps", "3:5"]) == 0

    assert [row["step"] for row in _read(path)] == ["3", "4", "5"]
    assert main([*command, "--steps", "three"]) == 2
    assert "100:120" in capsys.readouterr().err


def _read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows
