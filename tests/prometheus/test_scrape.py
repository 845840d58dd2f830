"""A real Prometheus scrapes a real service; PromQL and the API give the same numbers."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from service_process import ServiceProcess, free_port, running_service, stop, wait_until_up

from twinscope import Probe
from twinscope.wire.batch import Batch
from twinscope_service.replay import recording

SCRAPE_SECONDS = 60.0  # scrapes come every second; this is for a machine that is busy elsewhere

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="no prometheus binary: apt-get install prometheus (as .ci/run does)",
)


@dataclass(frozen=True)
class Prometheus:
    """A server that has started."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of a PromQL expression, now."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=10) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def value(self, expression: str) -> float:
        """The single value of `expression`, as soon as a scrape has brought one."""
        deadline = time.monotonic() + SCRAPE_SECONDS
        while time.monotonic() < deadline:
            found = self.query(expression)
            if found:
                assert len(found) == 1, found
                return float(found[0]["value"][1])
            time.sleep(0.2)
        raise AssertionError(f"{expression} stayed empty; targets: {self.query('up')}")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """The service in its own process."""
    with running_service(tmp_path_factory.mktemp("service")) as process:
        yield process


@pytest.fixture(scope="module")
def prometheus(
    service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """Debian's Prometheus, scraping the service every second."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    configuration, log = folder / "prometheus.yml", folder / "prometheus.log"
    job = {
        "job_name": "twinscope",
        "scrape_interval": "1s",
        "static_configs": [{"targets": [service.url.removeprefix("http://")]}],
    }
    configuration.write_text(json.dumps({"scrape_configs": [job]}))  # JSON is YAML
    command = [
        "prometheus",
        f"--config.file={configuration}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    command += [f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_up(f"{url}/-/ready", process, log=log, seconds=SCRAPE_SECONDS)
        yield Prometheus(url)
    finally:
        stop(process)


def _send(service: ServiceProcess, run: str, batch: Batch) -> dict[str, Any]:
    """Send a recorded pair as step 0 of `run`; the closed step."""
    with Probe(service.url, run) as probe:
        assert probe.pair(
            step=0,
            offsets=batch.offsets,
            rollout_logprobs=batch.tensors["rollout_logprobs"],
            train_logprobs=batch.tensors["train_logprobs"],
            token_ids=batch.tensors["token_ids"],
            sample_ids=batch.sample_ids,
        )
        probe.close_step(0)
        assert probe.flush(60)
    step: dict[str, Any] = service.get(f"/v1/runs/{run}/steps/0")
    return step


@pytest.mark.parametrize("name", ["healthy_bf16", "temperature_0.7_unrestored"])
def test_promql_returns_what_the_api_says(
    name: str, service: ServiceProcess, prometheus: Prometheus
) -> None:
    """`rollout_train_kl` and its neighbours survive the text format bit for bit."""
    step = _send(service, name, recording(name))
    metrics, label = step["metrics"], f'{{run="{name}"}}'

    assert prometheus.value(f"rollout_train_kl{label}") == metrics["k3_mean"]
    assert prometheus.value(f"rollout_train_k1{label}") == metrics["k1_mean"]
    assert prometheus.value(f"rollout_train_abs_logprob_diff{label}") == metrics["abs_mean"]
    assert prometheus.value(f"rollout_train_step{label}") == 0


def test_promql_names_the_verdict(service: ServiceProcess, prometheus: Prometheus) -> None:
    """One series per verdict; the one that is 1 is the API's."""
    step = _send(service, "verdicts", recording("temperature_0.7_unrestored"))

    prometheus.value('rollout_train_kl{run="verdicts"}')
    found = prometheus.query('rollout_train_verdict{run="verdicts"} == 1')

    assert step["verdict"] == "inconsistent"
    assert [series["metric"]["verdict"] for series in found] == ["inconsistent"]


def test_the_target_is_up_and_counts_what_it_received(
    service: ServiceProcess, prometheus: Prometheus
) -> None:
    """`up` is 1, and received tokens are those of the recording."""
    batch = recording("healthy_bf16")
    _send(service, "counted", batch)

    received = prometheus.value('rollout_train_tokens_total{run="counted",kind="received"}')

    assert prometheus.value('up{job="twinscope"}') == 1
    assert received == batch.tokens
