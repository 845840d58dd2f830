"""TWINSCOPE_TOKEN of the compose file: who gets it, who must show it, what happens without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_process import Prometheus
from service_process import ServiceProcess, free_port, running_service, stop, wait_until_up

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-the-test"
UP = 'up{job="twinscope"}'

needs_compose = pytest.mark.skipif(
    shutil.which("docker-compose") is None, reason="no docker-compose binary"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus binary"
)


def _rendered(folder: Path, **settings: str) -> dict[str, Any]:
    """The services of the compose file with deploy/compose.env, changed in `settings`."""
    lines = (ROOT / "deploy/compose.env").read_text().splitlines()
    kept = [line for line in lines if line.lstrip("#").partition("=")[0] not in settings]
    (folder / "env").write_text("\n".join([*kept, *(f"{k}={v}" for k, v in settings.items())]))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TWINSCOPE_")}
    command = ["docker-compose", "--env-file", str(folder / "env"), "--profile", "demo", "config"]
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, check=True)
    found: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    return found


@needs_compose
def test_the_token_reaches_all_who_need_it(tmp_path: Path) -> None:
    """The service asks for it, Prometheus and the drill show it; nobody else has it."""
    services = _rendered(tmp_path, TWINSCOPE_TOKEN=TOKEN, BIND="0.0.0.0")
    having = {n for n, s in services.items() if TOKEN in s.get("environment", {}).values()}

    assert having == {"twinscope", "prometheus", "demo"}
    assert {services[name]["environment"]["TWINSCOPE_TOKEN"] for name in having} == {TOKEN}
    assert services["twinscope"]["environment"]["TWINSCOPE_PUBLISHED"] == "0.0.0.0"


@needs_compose
def test_only_what_has_a_login_can_be_opened(tmp_path: Path) -> None:
    """BIND opens the service, GRAFANA_BIND Grafana; Prometheus and Alertmanager stay at home."""
    services = _rendered(tmp_path, TWINSCOPE_TOKEN=TOKEN, BIND="0.0.0.0", GRAFANA_BIND="0.0.0.0")
    ports = {n: s["ports"][0].rpartition(":")[0] for n, s in services.items() if "ports" in s}

    assert {name for name, port in ports.items() if port.startswith("0.0.0.0:")} == {
        "twinscope", "grafana",
    }  # fmt: skip
    assert all(ports[n].startswith("127.0.0.1:") for n in ("prometheus", "alertmanager"))


@needs_compose
@pytest.mark.parametrize(("bind", "starts"), [("0.0.0.0", False), ("127.0.0.1", True)])
def test_a_port_open_to_the_network_without_a_token_is_refused(
    bind: str, starts: bool, tmp_path: Path
) -> None:
    """By the service itself, with the environment that compose gives it and one line of words."""
    given = _rendered(tmp_path, BIND=bind)["twinscope"]["environment"]
    given = {name: value for name, value in given.items() if value is not None}
    (tmp_path / "file").write_text("")  # what the service stops at, once the address is accepted
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TWINSCOPE_")}
    command = [sys.executable, "-m", "twinscope_service", "serve", "--host", "127.0.0.1"]
    command += ["--port", "0", "--data-dir", str(tmp_path / "file")]
    ended = subprocess.run(
        command, env={**clean, **given}, capture_output=True, text=True, timeout=120
    )

    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ("data_dir" in ended.stderr) is starts
    assert ("set TWINSCOPE_TOKEN" in ended.stderr) is not starts


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service that asks for the token."""
    settings = {"TWINSCOPE_TOKEN": TOKEN, "TWINSCOPE_ENGINE": "reference"}
    with running_service(tmp_path_factory.mktemp("token"), settings=settings) as process:
        yield process


@needs_compose
@needs_prometheus
@pytest.mark.parametrize(("token", "up"), [(TOKEN, "1"), ("another", "0")])
def test_prometheus_started_as_compose_does_shows_the_token(
    token: str, up: str, service: ServiceProcess, tmp_path: Path
) -> None:
    """A real Prometheus, the rendered entry point and the mounted file; the wrong token: down."""
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{service.url}/metrics", timeout=30)

    rendered = _rendered(tmp_path, TWINSCOPE_TOKEN=token)["prometheus"]
    port = free_port()
    _localise(ROOT / "dashboards/prometheus/prometheus.yml", tmp_path, service)
    shell, option, script, name = rendered["entrypoint"]
    script = script.replace("$$", "$").replace("/tmp/", f"{tmp_path}/")
    own = [f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'd'}"]
    own += [f"--web.listen-address=127.0.0.1:{port}"]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [shell, option, script, name, *own], stdout=log, stderr=log,
            env={"PATH": os.environ["PATH"], **rendered["environment"]},
        )  # fmt: skip
    try:
        found = Prometheus(f"http://127.0.0.1:{port}")
        wait_until_up(f"{found.url}/-/ready", process, log=tmp_path / "log", seconds=60)
        assert found.wait_for(UP)[0]["value"][1] == up
    finally:
        stop(process)
    assert (tmp_path / "twinscope-token").stat().st_mode & 0o777 == 0o600


def _localise(configuration: Path, folder: Path, service: ServiceProcess) -> None:
    """The mounted file with this machine's addresses, a scrape per second, and no rules."""
    text = configuration.read_text().replace("/tmp/", f"{folder}/")
    config = yaml.safe_load(text)
    config["global"]["scrape_interval"] = "1s"
    del config["rule_files"], config["alerting"]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [
        service.url.removeprefix("http://")
    ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))


@needs_compose
def test_the_demonstration_shows_the_token(service: ServiceProcess, tmp_path: Path) -> None:
    """The command and the environment of the profile, against a service that asks."""
    demo = _rendered(tmp_path, TWINSCOPE_TOKEN=TOKEN)["demo"]
    command = [part.replace("http://twinscope:8321", service.url) for part in demo["command"]]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TWINSCOPE_")}
    own = {**demo["environment"], "NUMBA_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "twinscope_service", *command], env={**clean, **own},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "temperature_not_restored" in ended.stdout
    assert TOKEN not in ended.stdout + ended.stderr
