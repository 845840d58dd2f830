"""The image, built and run by a real container engine as the compose file says."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from containers import Engine, NoEngineError, container_engine
from service_process import free_port
from waiting import eventually

from twinscope import Probe
from twinscope_service.replay import recording, send, steps

pytestmark = [pytest.mark.image, pytest.mark.timeout(2400)]

PROJECT = "twinscope-test"
START_S = 300.0  # the first start compiles
RUN = "in a container"


@dataclass(frozen=True)
class Stack:
    """The service of the compose file, on a port of its own and without an Alertmanager."""

    engine: Engine
    port: int
    compose: Callable[..., str]

    @property
    def url(self) -> str:
        """Its address on the host."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        """A JSON answer."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def container(self) -> Any:
        """What `docker inspect` knows of it."""
        (name,) = self.compose("ps", "-q", "twinscope").split()
        return json.loads(self.engine.run("docker", "inspect", name))[0]

    def healthy(self) -> bool:
        """By the image's own health check, not by ours."""
        return bool(self.container()["State"]["Health"]["Status"] == "healthy")

    def execute(self, script: str) -> str:
        """What a shell in the container prints."""
        return self.compose("exec", "-T", "twinscope", "sh", "-c", script)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A container engine with the image built on it."""
    try:
        with container_engine() as engine:
            base = engine.base()
            engine.run(
                "docker", "build", "--network", "host", "--build-arg", f"BASE={base}",
                "-t", "twinscope:0.1.0", ".", timeout=1800,
            )  # fmt: skip
            yield engine
    except NoEngineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def stack(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`docker-compose up` of the service, healthy; taken down with its volumes."""
    if shutil.which("docker-compose") is None:
        pytest.skip("no docker-compose: apt-get install docker-compose")
    port = free_port()
    folder = tmp_path_factory.mktemp("compose")
    changes = {"twinscope": {"environment": {"TWINSCOPE_ALERT_TARGETS": "[]"}}}
    (folder / "no-targets.yml").write_text(yaml.safe_dump({"version": "3", "services": changes}))
    (folder / "env").write_text(
        Path("deploy/compose.env")
        .read_text()
        .replace("TWINSCOPE_PORT=8321", f"TWINSCOPE_PORT={port}")
    )
    options = ["-p", PROJECT, "--env-file", str(folder / "env"), "-f", "docker-compose.yml"]
    options += ["-f", str(folder / "no-targets.yml")]

    def compose(*arguments: str) -> str:
        return engine.run("docker-compose", *options, *arguments)

    found = Stack(engine, port, compose)
    compose("up", "-d", "--no-build", "twinscope")
    try:
        assert eventually(found.healthy, timeout_s=START_S), compose("logs", "twinscope")
        yield found
    finally:
        compose("down", "--volumes", "--timeout", "20")


def test_the_container_has_the_rights_of_the_compose_file_and_no_others(stack: Stack) -> None:
    """Asked of the engine and of the process itself: user, capabilities, what can be written."""
    host = stack.container()["HostConfig"]
    status = stack.execute("id -u; grep -E 'CapEff|NoNewPrivs' /proc/1/status")

    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert status.split() == ["10001", "CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    assert stack.execute("touch /opt/x 2>/dev/null || echo refused").strip() == "refused"
    assert stack.execute("touch /data/x && echo written").strip() == "written"


def test_a_trainer_outside_is_heard_and_a_restart_loses_nothing(stack: Stack) -> None:
    """A recorded step through the published port; after kill and start the same numbers."""
    healthy = recording("temperature_0.7_restored")
    with Probe(stack.url, RUN) as probe:
        for batch in steps([healthy] * 3, run=RUN, samples_per_step=48, seed=0):
            send(probe, batch)
        assert probe.flush(60)
    address = f"/v1/runs/{RUN.replace(' ', '%20')}/steps/2"
    before = stack.get(address)
    with urllib.request.urlopen(f"{stack.url}/metrics", timeout=30) as answer:
        metrics = answer.read().decode()

    assert before["verdict"] == "ok"
    assert f'rollout_train_step{{run="{RUN}"}} 2.0' in metrics

    stack.compose("kill", "twinscope")
    stack.compose("up", "-d", "--no-build", "twinscope")
    assert eventually(stack.healthy, timeout_s=START_S)
    assert stack.get(address)["metrics"] == before["metrics"]


def test_the_page_comes_out_of_the_image(stack: Stack) -> None:
    """Its files, the plotting library and the runbooks are in the wheel."""
    for path in ("/", "/main.js", "/plotly.min.js", "/runbooks/causes/temperature_not_restored.md"):
        with urllib.request.urlopen(stack.url + path, timeout=30) as answer:
            assert (path, answer.status) == (path, 200)


def test_a_port_open_to_the_network_without_a_token_is_refused(stack: Stack) -> None:
    """The container ends with status 2 and says what to set, before it listens."""
    command = ["run", "--rm", "--no-deps", "-e", "TWINSCOPE_PUBLISHED=0.0.0.0", "twinscope"]

    with pytest.raises(RuntimeError, match=r"(?s)status 2.*set TWINSCOPE_TOKEN"):
        stack.compose(*command)


def test_the_demo_profile_raises_its_alert(stack: Stack) -> None:
    """The drill in its own container reaches the service by name; exit status 0 says all held."""
    said = stack.compose("--profile", "demo", "run", "--rm", "--no-deps", "demo")
    step = stack.get("/v1/runs/demo/steps/39")

    assert "an alert was raised" in said
    assert step["verdict"] == "inconsistent"
    assert step["diagnosis"][0]["cause"] == "temperature_not_restored"
