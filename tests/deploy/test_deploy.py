"""Compose file, image and manifests: valid against their schemas, and true about this checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
MANIFESTS = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
DOCUMENTS = [
    pytest.param(document, id=f"{path.stem}: {document['kind']}")
    for path in MANIFESTS
    for document in yaml.safe_load_all(path.read_text())
]
OPERATOR = "monitoring.coreos.com"  # its schema is not part of Kubernetes


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose binary")
@pytest.mark.parametrize("profile", [[], ["--profile", "demo"]])
def test_the_compose_file_is_valid(profile: list[str]) -> None:
    """With the settings of deploy/compose.env; nothing is left to default by mistake."""
    command = ["docker-compose", "--env-file", "deploy/compose.env", *profile, "config", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_container_has_no_more_rights_than_it_needs(name: str) -> None:
    """Not root, nothing to write but volumes, no capabilities, a pinned image, a health check."""
    service = COMPOSE["services"][name]

    assert not service["user"].startswith("0")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])
    assert "healthcheck" in service
    for port in service.get("ports", ()):
        assert re.match(r"(\$\{\w*BIND:-127\.0\.0\.1\}|127\.0\.0\.1):", port)


def test_what_is_mounted_is_there() -> None:
    """A missing file would become an empty folder, silently."""
    for service in COMPOSE["services"].values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), mount
            else:
                assert source in COMPOSE["volumes"]


def test_prometheus_scrapes_the_service_under_the_name_that_the_rules_expect() -> None:
    """Job `twinscope`, host and port as in the compose file."""
    config = yaml.safe_load((ROOT / "dashboards/prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]

    assert job["job_name"] == "twinscope"
    assert job["static_configs"][0]["targets"] == ["twinscope:8321"]
    assert "twinscope" in COMPOSE["services"]


@pytest.mark.parametrize(
    ("command", "name"),
    [(["promtool", "check", "config"], "prometheus.yml"),
     (["amtool", "check-config"], "alertmanager.yml")],
    ids=["Prometheus", "Alertmanager"],
)  # fmt: skip
def test_the_mounted_configuration_is_accepted(
    command: list[str], name: str, tmp_path: Path
) -> None:
    """By the programs' own checkers; of Prometheus with the rules and the token's file it names."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} (Debian packages prometheus, prometheus-alertmanager)")
    shutil.copy(ROOT / "dashboards/prometheus/rules.yml", tmp_path)
    (tmp_path / "twinscope-token").write_text("secret")
    text = (ROOT / "dashboards/prometheus" / name).read_text()
    path = tmp_path / name
    path.write_text(text.replace("/tmp/twinscope-token", str(tmp_path / "twinscope-token")))
    done = subprocess.run([*command, str(path)], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_are_sent_to_nobody_who_is_not_there() -> None:
    """The receiver is the user's to fill in: no host in it that the stack does not have."""
    config = yaml.safe_load((ROOT / "dashboards/prometheus/alertmanager.yml").read_text())

    assert config["receivers"] == [{"name": config["route"]["receiver"]}]
    assert "alertmanager.yml" in (ROOT / "deploy/README.md").read_text()


def test_the_image_copies_what_the_wheel_is_made_of() -> None:
    """Every copied path exists and passes .dockerignore; every package is among them."""
    copied = [
        path for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.M)
        for path in line.split()[:-1]
    ]  # fmt: skip
    let_in = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M)
    for path in copied:
        assert (ROOT / path).exists(), path
        assert any(path == entry or path.startswith(f"{entry}/") for entry in let_in), path
    assert {Path(path).name for path in copied} >= {
        "twinscope", "twinscope_service", "twinscope_fpga", "twinscope_dashboards", "causes",
    }  # fmt: skip


def test_the_image_runs_as_a_user_and_writes_to_its_volume_only() -> None:
    """The last user is not root; data and compiled kernels go to /data."""
    settings = dict(re.findall(r"(\w+)=(\S+)", DOCKERFILE))

    assert re.findall(r"^USER (\S+)", DOCKERFILE, re.M)[-1] == "10001"
    assert settings["TWINSCOPE_DATA_DIR"].startswith("/data")
    assert settings["NUMBA_CACHE_DIR"].startswith("/data")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_manifest_is_valid(document: dict[str, Any]) -> None:
    """Against the schemas of Kubernetes, strictly: an unknown field is a typing error."""
    validator = pytest.importorskip("kubernetes_validate")
    if OPERATOR in document["apiVersion"]:
        assert document["spec"]["endpoints"][0]["port"] == "http"
    else:
        validator.validate(document, "1.30", strict=True)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_container_of_ours_is_hardened_and_probed(document: dict[str, Any]) -> None:
    """The same rules as in the compose file."""
    spec = document.get("spec", {})
    pod = spec.get("template", {}).get("spec", spec)
    ours = [c for c in pod.get("containers", ()) if c["image"].startswith("twinscope:")]
    for container in ours:
        context = container["securityContext"]
        assert context["runAsNonRoot"] is context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert any(mount["mountPath"] == "/data" for mount in container["volumeMounts"])
