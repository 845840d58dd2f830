"""The Prometheus side: rules pass their own unit tests, every alert has a page, names exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from twinscope_service.alert.target import KINDS
from twinscope_service.expose.catalogue import METRIC_BY_NAME

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "dashboards" / "prometheus"
RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTS = re.findall(r"- alert: (\w+)", (RULES / "rules.yml").read_text(encoding="utf-8"))


def test_rules_pass_their_unit_tests() -> None:
    """promtool, with the inputs of rules_test.yml."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    done = subprocess.run(
        [promtool, "test", "rules", "rules_test.yml"], cwd=RULES, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_unit_test_and_a_runbook(alert: str) -> None:
    """The runbook is a page that exists and says what to do."""
    rules = (RULES / "rules.yml").read_text(encoding="utf-8")
    block = rules.split(f"- alert: {alert}\n")[1].split("- alert:")[0]
    link = r"runbook_url: \"{{ \$externalLabels.twinscope_url }}/#/runbooks/alerts/(\w+)\""
    page = re.search(link, block)
    assert page is not None
    text = (RUNBOOKS / f"{page.group(1)}.md").read_text(encoding="utf-8")
    assert "**What it means.**" in text
    assert "**What to do**" in text
    assert f"alertname: {alert}" in (RULES / "rules_test.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_alert_has_a_runbook(kind: str) -> None:
    """Alerts that the service sends itself link to it."""
    assert (RUNBOOKS / f"{kind}.md").exists()


def test_rules_use_no_metric_that_is_not_exported() -> None:
    """Names in the rules are those of the catalogue, or recorded by the rules."""
    rules = (RULES / "rules.yml").read_text(encoding="utf-8")
    expressions = "\n".join(line for line in rules.splitlines() if "twinscope_url" not in line)
    used = set(re.findall(r"(?<![\w:/])((?:rollout_train|twinscope)_\w+)", expressions))
    assert used
    assert used <= METRIC_BY_NAME.keys()
