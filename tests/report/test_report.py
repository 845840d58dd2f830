"""The report: one file, complete, harmless; the export: the numbers of the API."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from looking import FAULTY, HEALTHY, HOSTILE, LABEL, NOTE
from service_process import ServiceProcess

from twinscope.errors import ConfigError
from twinscope_service.cli import main
from twinscope_service.client import Client
from twinscope_service.report.export import write_table
from twinscope_service.report.plots import BUDGET, thin

LAST = HEALTHY + FAULTY - 1


class Seen(HTMLParser):
    """Tags, addresses and text of a document."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [v or "" for name, v in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        """Note it."""
        self.text += data


def _report(service: ServiceProcess, run: str, path: Path) -> Seen:
    assert main(["report", run, "-o", str(path), "--url", service.url]) == 0
    return Seen(path.read_text(encoding="utf-8"))


def test_a_report_says_what_is_wrong_since_when_and_what_to_do(
    service: ServiceProcess, client: Client, tmp_path: Path
) -> None:
    """Verdict, onset, cause, estimate, fix and level, as the API has them."""
    seen = _report(service, "demo", tmp_path / "report.html")
    step = client.step("demo", LAST)

    assert "inconsistent" in seen.text
    assert f"level_shift at step {HEALTHY}" in seen.text
    alerts = seen.text.partition("Alerts")[2]
    assert alerts.index("level shift: rollout_train_kl") < alerts.index("level shift: the share of")
    assert "one step, over" in alerts
    assert "resolved" not in alerts
    ratio = step.diagnosis[0]["estimate"]["engine_over_trainer"]
    assert f"temperature, engine's over trainer's {ratio:.4g}" in seen.text
    assert step.diagnosis[0]["cause"] in seen.text
    assert step.diagnosis[0]["fix"] in seen.text
    assert f"{step.metrics['k3_mean']:.4g}" in seen.text
    assert {"svg", "polyline", "polygon", "table"} <= seen.tags


def test_a_report_runs_nothing_and_asks_nobody(service: ServiceProcess, tmp_path: Path) -> None:
    """No script, no handler, no address, whatever the sender wrote."""
    for run in ("demo", HOSTILE):
        seen = _report(service, run, tmp_path / "report.html")
        assert not seen.tags & {"script", "iframe", "img", "object", "embed", "link", "form"}
        assert not {name for name in seen.attributes if name.startswith("on")}
        assert seen.addresses == []
        assert "url(" not in (tmp_path / "report.html").read_text()


def test_markup_of_strangers_is_text_in_the_report(service: ServiceProcess, tmp_path: Path) -> None:
    """The run's name reads as it was sent."""
    seen = _report(service, HOSTILE, tmp_path / "report.html")

    assert HOSTILE in seen.text
    assert NOTE not in (tmp_path / "report.html").read_text()
    assert LABEL not in (tmp_path / "report.html").read_text()


def test_a_long_run_makes_a_small_file(service: ServiceProcess, tmp_path: Path) -> None:
    """Five thousand steps are thinned: the file stays below a quarter of a megabyte."""
    _report(service, "long", tmp_path / "report.html")

    assert (tmp_path / "report.html").stat().st_size < 250_000


def test_thinning_keeps_every_spike() -> None:
    """The largest of 10 000 points is there, wherever it is; order is kept."""
    points = [(float(i), 1.0 + (i == 7777) * 5.0) for i in range(10_000)]
    kept = thin(points)

    assert (7777.0, 6.0) in kept
    assert len(kept) <= BUDGET + 2
    assert kept == sorted(kept)


def test_an_unknown_run_is_one_line_and_status_two(
    service: ServiceProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, no file."""
    path = tmp_path / "report.html"

    assert main(["report", "nobody", "-o", str(path), "--url", service.url]) == 2
    assert "nobody" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_an_export_has_the_numbers_of_the_api(
    suffix: str, service: ServiceProcess, client: Client, tmp_path: Path
) -> None:
    """One row per closed step; a number comes back as it was."""
    path = tmp_path / f"run{suffix}"
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    assert main(["export", "demo", "-o", str(path), "--url", service.url]) == 0
    rows = _read(path)

    assert [int(row["step"]) for row in rows] == list(range(LAST + 1))
    for row, step in zip(rows, client.steps("demo"), strict=True):
        assert float(row["k3_mean"]) == step.metrics["k3_mean"]
        assert float(row["scalar_reward"]) == step.scalars["reward"]
        assert row["verdict"] == step.verdict


def _read(path: Path) -> list[dict[str, str]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    import pyarrow.parquet

    rows: list[dict[str, str]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


def test_a_spreadsheet_runs_nothing_of_a_table(tmp_path: Path) -> None:
    """Text that begins like a formula is quoted in CSV."""
    write_table([{"run": "=cmd|' /C calc'!A0", "step": -1}], tmp_path / "t.csv")

    assert re.search(r"\"?'=cmd", (tmp_path / "t.csv").read_text())
    assert _read(tmp_path / "t.csv")[0]["step"] == "-1"


def test_an_unknown_format_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(ConfigError, match=r"\.parquet, \.csv, \.jsonl"):
        write_table([], tmp_path / "t.xlsx")
