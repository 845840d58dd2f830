"""The whole chain with real parts: a fault posted over HTTP becomes an alert at a receiver."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from .faulty_run import post
from .receivers import Receiver, receiving

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards" / "prometheus" / "rules.yml"
WAIT_S = 120.0


def fast(url: str) -> list[dict[str, Any]]:
    """One target that is tried again quickly."""
    return [{"name": "ops", "type": "webhook", "url": url, "retry_first_s": 0.1,
             "retry_most_s": 0.5}]  # fmt: skip


def shifts(receiver: Receiver) -> list[dict[str, Any]]:
    """Firing level shifts that arrived directly."""
    alerts = [a for d in list(receiver.accepted) for a in d.document["alerts"]]
    return [
        a for a in alerts if a["labels"].get("kind") == "level_shift" and a["status"] == "firing"
        and a.get("twinscope", {}).get("state") == "firing"
    ]  # fmt: skip


def test_a_fault_posted_to_the_service_becomes_one_alert_with_onset_cause_and_advice(
    start: Callable[..., Any],
) -> None:
    """Thirty healthy recorded steps, then a trainer that forgets the temperature."""
    with receiving() as receiver:
        service = start(alert_targets=fast(receiver.url))
        post(service.url, "grpo", healthy=30, faulty=6)
        receiver.wait_for(lambda: bool(shifts(receiver)))
    found = shifts(receiver)[0]
    assert found["twinscope"]["onset_step"] == 30
    assert found["twinscope"]["ratio"] > 2
    assert found["labels"]["run"] == "grpo"
    assert "Do: " in found["annotations"]["description"]
    assert len({a["fingerprint"] for a in shifts(receiver)}) == 1
    before = [a for d in receiver.accepted for a in d.document["alerts"]]
    assert all(a["twinscope"]["step"] >= 30 for a in before)


def test_a_fault_that_lasts_five_hundred_steps_is_told_once(start: Callable[..., Any]) -> None:
    """Through HTTP, detectors, store and sender: when it may be, when it is sure, no more."""
    with receiving() as receiver:
        service = start(alert_targets=fast(receiver.url))
        post(service.url, "grpo", healthy=30, faulty=500)
        pending = 'twinscope_notifications_pending{target="ops"}'
        receiver.wait_for(lambda: service.metric(pending) == 0)
    told = [a for d in receiver.accepted for a in d.document["alerts"]]
    assert [(a["labels"]["kind"], a["twinscope"]["state"]) for a in told] == [
        ("spike", "firing"), ("level_shift", "provisional"), ("spike", "resolved"),
        ("level_shift", "firing"),
    ]  # fmt: skip
    assert {a["twinscope"]["onset_step"] for a in told} == {30}


@contextmanager
def service_process(data: Path, targets: list[dict[str, Any]]) -> Iterator[tuple[Any, str]]:
    """A service in a process of its own, ready; killed if the block leaves it alive."""
    port = free_port()
    environment = {**os.environ, "TWINSCOPE_ALERT_TARGETS": json.dumps(targets)}
    command = [sys.executable, "-m", "twinscope_service", "serve", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--data-dir", str(data)], env=environment, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{url}/readyz"))
        yield process, url
    finally:
        process.kill()
        process.wait(60)


def test_a_service_killed_between_stored_and_sent_sends_after_its_restart(tmp_path: Path) -> None:
    """kill -9 while the target answers 500; then it recovers."""
    with receiving(lambda n: 500) as refusing:
        with service_process(tmp_path / "data", fast(refusing.url)) as (process, url):
            post(url, "grpo", healthy=24, faulty=5)
            refusing.wait_for(lambda: refusing.seen > 0)
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        assert not refusing.accepted
    with (
        receiving(port=refusing.port) as receiver,
        service_process(tmp_path / "data", fast(receiver.url)),
    ):
        receiver.wait_for(lambda: bool(shifts(receiver)))
    states = [state for _, kind, state in receiver.told() if kind == "level_shift"]
    assert states.index("provisional") < states.index("firing")


# ---- real Prometheus and Alertmanager (Debian packages)


def test_the_same_fault_arrives_through_prometheus_and_alertmanager(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    """Scrape, rule, routing, webhook; and once more by the service's own Alertmanager target."""
    prometheus = shutil.which("prometheus")
    alertmanager = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if prometheus is None or alertmanager is None:
        pytest.skip("needs the Debian packages prometheus and prometheus-alertmanager")
    with receiving() as receiver, ExitStack() as stack:
        manager = stack.enter_context(run_alertmanager(alertmanager, tmp_path, receiver.url))
        direct = {"name": "am", "type": "alertmanager", "url": manager, "retry_first_s": 0.2}
        service = start(alert_targets=[direct])
        stack.enter_context(run_prometheus(prometheus, tmp_path, service.url, manager))
        post(service.url, "grpo", healthy=25, faulty=5)

        def arrived(by: str) -> bool:
            alerts = [a for d in list(receiver.accepted) for a in d.document["alerts"]]
            return any(
                a["labels"]["alertname"] == "TwinScopeLevelShift"
                and ("job" in a["labels"]) == (by == "prometheus")
                for a in alerts
            )

        receiver.wait_for(lambda: arrived("prometheus"))
        receiver.wait_for(lambda: arrived("service"))
        alerts = [a for d in list(receiver.accepted) for a in d.document["alerts"]]
        for found in alerts:
            host, _, page = found["annotations"]["runbook_url"].partition("/#/runbooks/")
            assert "job" not in found["labels"] or host == service.url
            file = page if page.startswith("alerts/") else f"causes/{page}"
            assert service.get(f"/runbooks/{file}.md").text.startswith("# ")
    body = receiver.accepted[0].document
    assert body["version"] == "4"
    assert body["groupLabels"] == {"run": "grpo"}


@contextmanager
def run_alertmanager(binary: str, folder: Path, receiver: str) -> Iterator[str]:
    """A real Alertmanager that routes by run, without the waits of production."""
    port = free_port()
    config = folder / "alertmanager.yml"
    config.write_text(
        "route: {receiver: hook, group_by: [run], group_wait: 0s, group_interval: 1s}\n"
        f"receivers: [{{name: hook, webhook_configs: [{{url: '{receiver}'}}]}}]\n"
    )
    url = f"http://127.0.0.1:{port}"
    with running(
        binary, f"--config.file={config}", f"--storage.path={folder / 'am'}",
        f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address=",
    ):  # fmt: skip
        wait_until(lambda: answers(f"{url}/-/ready"))
        yield url


@contextmanager
def run_prometheus(binary: str, folder: Path, service: str, manager: str) -> Iterator[str]:
    """A real Prometheus with the shipped rules, scraping every second."""
    port = free_port()
    config = folder / "prometheus.yml"
    hosts = {name: url.removeprefix("http://") for name, url in (("s", service), ("m", manager))}
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s,"
        f" external_labels: {{twinscope_url: '{service}'}}}}\n"
        f"rule_files: ['{RULES}']\n"
        f"alerting: {{alertmanagers: [{{static_configs: [{{targets: ['{hosts['m']}']}}]}}]}}\n"
        "scrape_configs:\n"
        f"  - {{job_name: twinscope, static_configs: [{{targets: ['{hosts['s']}']}}]}}\n"
    )
    url = f"http://127.0.0.1:{port}"
    with running(
        binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ):  # fmt: skip
        wait_until(lambda: answers(f"{url}/-/ready"))
        yield url


@contextmanager
def running(*command: str) -> Iterator[None]:
    """A process while the block runs."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Does it answer 200?"""
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll; fail after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "not within two minutes"
        time.sleep(0.1)
