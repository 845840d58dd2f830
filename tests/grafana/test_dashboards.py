"""The Grafana dashboards: fresh, complete, and every query answered by a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from prometheus_process import Prometheus, running_prometheus
from service_process import ServiceProcess, running_service

from twinscope import Probe
from twinscope_dashboards import boards
from twinscope_service.expose.catalogue import METRIC_BY_NAME
from twinscope_service.replay import recording, steps

grafana = pytest.importorskip("twinscope_dashboards.grafana")

FOLDER = Path(__file__).resolve().parents[2] / "dashboards/grafana"
QUERIES = [
    pytest.param(board, panel, query, id=f"{board.uid}: {panel.title} {query.ref}")
    for board in boards.BOARDS
    for panel in board.panels
    for query in panel.queries
]
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus binary: apt-get install prometheus"
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with one run that has everything: a shift, a reference, a reward."""
    with running_service(tmp_path_factory.mktemp("service")) as process:
        healthy, faulty = (recording(f"temperature_0.7_{e}") for e in ("restored", "unrestored"))
        plan = [healthy] * 26 + [faulty] * 8
        with Probe(process.url, "run <b>1</b>") as probe:
            for batch in steps(plan, run="run <b>1</b>", samples_per_step=40, seed=0):
                p = batch.tensors["train_logprobs"]
                assert probe.pair(
                    step=batch.step, offsets=batch.offsets, train_logprobs=p,
                    rollout_logprobs=batch.tensors["rollout_logprobs"],
                    ref_logprobs=np.minimum(p + np.float32(0.01), np.float32(0)),
                    token_ids=batch.tensors["token_ids"], sample_ids=batch.sample_ids,
                )  # fmt: skip
                probe.scalar(step=batch.step, reward=0.6, baseline_reward=0.1)
                probe.close_step(batch.step)
                assert probe.flush(60)
        yield process


@pytest.fixture(scope="module")
def prometheus(
    service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the service at least twice."""
    folder = tmp_path_factory.mktemp("prometheus")
    with running_prometheus(folder, target=service.url.removeprefix("http://")) as server:
        server.wait_for("rate(twinscope_ingest_bytes_total[1m])")
        yield server


def filled_in(expression: str) -> str:
    """The expression as Grafana sends it: variables replaced."""
    values = {"$run": ".*", "$__rate_interval": "1m", "$__interval": "1m"}
    for name, value in values.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@needs_prometheus
@pytest.mark.parametrize(("board", "panel", "query"), QUERIES)
def test_every_query_returns_data(
    board: boards.Board, panel: boards.Panel, query: boards.Query, prometheus: Prometheus
) -> None:
    """An empty panel in Grafana means a fault, so none is empty on a service that has data."""
    assert prometheus.query(filled_in(query.expr)), f"{board.uid}: {panel.title}"


@needs_prometheus
def test_the_dashboards_say_what_the_service_says(
    service: ServiceProcess, prometheus: Prometheus
) -> None:
    """The curve's last value is the API's; the verdict's state is the one of the last step."""
    last = service.get("/v1/runs")["runs"][0]["last"]
    level = prometheus.query("rollout_train_kl")[0]["value"][1]
    state = prometheus.query(filled_in(boards.VERDICT))[0]["value"][1]

    assert float(level) == last["metrics"]["k3_mean"]
    assert (state, last["verdict"]) == ("1", "inconsistent")


@needs_prometheus
@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_annotations_and_variables_are_valid(board: boards.Board, prometheus: Prometheus) -> None:
    """Their expressions parse, and the variable `run` has values."""
    document = json.loads(grafana.render(board))
    for annotation in document["annotations"].get("list") or ():
        prometheus.query(filled_in(annotation["expr"]))
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
            assert match is not None
            assert prometheus.query(f"count by ({match[2]}) ({match[1]})")


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_the_committed_json_is_what_the_code_renders(board: boards.Board) -> None:
    """`make dashboards` after a change."""
    assert (FOLDER / f"{board.uid}.json").read_text() == grafana.render(board)


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_grafanas_own_schema_knows_every_field(board: boards.Board) -> None:
    """The committed JSON read into the SDK's types and written again is the same document."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    committed = json.loads((FOLDER / f"{board.uid}.json").read_text())
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(committed)))

    assert read == committed


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_a_run_name_stays_text_in_grafana(board: boards.Board) -> None:
    """No panel renders HTML; in addresses the name is percent-encoded, in queries a label value."""
    document = json.loads((FOLDER / f"{board.uid}.json").read_text())
    text = json.dumps(document)

    assert {panel["type"] for panel in document["panels"]} <= {
        "timeseries", "stat", "state-timeline", "bargauge", "table",
    }  # fmt: skip
    for address in re.findall(r'"url": "([^"]*)"', text):
        for variable in re.findall(r"\$\{([^}]*run[^}]*)\}", address):
            assert variable.endswith(":percentencode"), address
    for query in re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', text):
        assert re.search(r"\$\{?run", re.sub(r'run=~\\"\$run\\"', "", query)) is None, query


def test_only_catalogued_metrics_are_asked_for() -> None:
    """A renamed metric is found here, not on an empty panel."""
    named = {
        name
        for parameter in QUERIES
        for name in re.findall(r"\b(?:rollout|twinscope|policy|kl)_\w+", _expr(parameter))
    }

    assert named <= set(METRIC_BY_NAME)


def _expr(parameter: Any) -> str:
    return str(parameter.values[2].expr)


def test_panels_do_not_overlap_and_have_words() -> None:
    """Each has a title and says how to read it; positions tile the grid."""
    for board in boards.BOARDS:
        seen: set[tuple[int, int]] = set()
        for panel in json.loads(grafana.render(board))["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert panel["title"]
            assert panel["description"].endswith((".", "`."))
            assert not cells & seen
            seen |= cells


def test_the_provisioning_files_point_at_what_is_here() -> None:
    """Grafana reads them at start-up; the data source is the one that the variable finds."""
    source = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yaml").read_text())
    provider = yaml.safe_load((FOLDER / "provisioning/dashboards/twinscope.yaml").read_text())

    assert source["datasources"][0]["type"] == "prometheus"
    assert provider["providers"][0]["options"]["path"] == "/etc/grafana/dashboards"
