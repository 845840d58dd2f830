"""Curves beside the user's own: written once, in order, with the API's values."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from looking import FAULTY, HEALTHY
from service_process import ServiceProcess

from twinscope_service.cli import main
from twinscope_service.client import Client
from twinscope_service.report.bridge import WeightsAndBiases, copy, curves

LAST = HEALTHY + FAULTY - 1


def test_tensorboard_reads_the_numbers_of_the_api(
    service: ServiceProcess, client: Client, tmp_path: Path
) -> None:
    """Read back with TensorBoard's own reader; floats of 32 bits, as it stores them."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    command = ["bridge", "demo", "--tensorboard", str(tmp_path), "--url", service.url]
    assert main(command) == 0
    events = reader.EventAccumulator(str(tmp_path)).Reload()
    found = events.Scalars("twinscope/k3_mean")
    column = client.timeline("demo").columns["k3_mean"]

    assert [event.step for event in found] == list(range(LAST + 1))
    assert [event.value for event in found] == pytest.approx(column, rel=1e-6)
    assert events.Scalars("twinscope/inconsistent")[-1].value == 1.0
    assert "twinscope/cause/temperature_not_restored" in events.Tags()["scalars"]


def _bridge_offline(
    service: ServiceProcess, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str
) -> None:
    """The command with the real package, offline, in a process of its own."""
    for name, value in (("MODE", "offline"), ("DIR", str(folder)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    command = ["bridge", "demo", "--wandb", "my-project", "--url", service.url, *more]
    subprocess.run([sys.executable, "-m", "twinscope_service", *command], check=True)


def test_wandb_writes_the_numbers_of_the_api_to_its_own_file(
    service: ServiceProcess, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real package, offline, in a process of its own: W&B ends the file when that ends."""
    pytest.importorskip("wandb")
    from wandb_file import read_records

    _bridge_offline(service, tmp_path, monkeypatch)
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = read_records(path)
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for items in (record.history.item for record in records if record.HasField("history"))
    ]
    (run,) = (record.run for record in records if record.HasField("run"))
    axes = {
        record.metric.glob_name: record.metric.step_metric
        for record in records
        if record.HasField("metric")
    }

    assert (run.project, run.display_name) == ("my-project", "demo")
    assert axes["twinscope/*"] == "twinscope/step"
    assert [row["twinscope/step"] for row in rows] == list(range(LAST + 1))
    assert [row["twinscope/k3_mean"] for row in rows] == client.timeline("demo").columns["k3_mean"]
    assert rows[-1]["twinscope/inconsistent"] == 1.0


@pytest.mark.parametrize("by", ["--id", "WANDB_RUN_ID"])
def test_wandb_goes_on_with_the_run_of_the_trainer(
    by: str, service: ServiceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real package, offline: rows go to that id, and the run's own name is left alone."""
    pytest.importorskip("wandb")
    from wandb_file import read_records

    if by == "--id":
        _bridge_offline(service, tmp_path, monkeypatch, "--id", "trainers1")
    else:
        monkeypatch.setenv("WANDB_RUN_ID", "trainers1")
        _bridge_offline(service, tmp_path, monkeypatch)
    (path,) = tmp_path.glob("wandb/offline-run-*-trainers1/run-trainers1.wandb")
    records = read_records(path)
    (run,) = (record.run for record in records if record.HasField("run"))

    assert (run.run_id, run.project, run.display_name) == ("trainers1", "my-project", "")
    assert sum(record.HasField("history") for record in records) == LAST + 1


class Session:
    """The three calls of a W&B run that are used, written down."""

    def __init__(self) -> None:
        self.axes: list[tuple[str, str | None]] = []
        self.rows: list[dict[str, Any]] = []
        self.finished = False

    def define_metric(self, name: str, *, step_metric: str | None = None) -> None:
        """An axis."""
        self.axes.append((name, step_metric))

    def log(self, row: dict[str, Any]) -> None:
        """A row."""
        self.rows.append(row)

    def finish(self) -> None:
        """The end."""
        self.finished = True


def test_wandb_gets_an_axis_of_its_own(client: Client) -> None:
    """Rows carry their step as a value: the trainer's own step counter is left alone."""
    session = Session()
    target = WeightsAndBiases(session)
    copy(client, "demo", target)
    target.close()

    assert ("twinscope/*", "twinscope/step") in session.axes
    assert [row["twinscope/step"] for row in session.rows] == list(range(LAST + 1))
    assert session.rows[5]["twinscope/k3_mean"] == client.step("demo", 5).metrics["k3_mean"]
    assert session.finished


def test_copying_goes_on_where_it_stopped(client: Client) -> None:
    """Steps beyond `after` only; with nothing new, nothing is written."""
    session = Session()
    target = WeightsAndBiases(session)

    assert copy(client, "demo", target, after=LAST - 2) == LAST
    assert [row["twinscope/step"] for row in session.rows] == [LAST - 1, LAST]
    assert copy(client, "demo", target, after=LAST) == LAST
    assert len(session.rows) == 2


def test_an_unknown_verdict_is_a_gap(client: Client) -> None:
    """Neither 0 nor 1; unknown metrics are left out."""
    from dataclasses import replace

    step = replace(client.step("demo", 3), verdict="unknown", metrics={"k3_mean": None})

    assert set(curves(step)) == {"twinscope/cause/numerical_noise"}
