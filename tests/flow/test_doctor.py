"""`twinscope doctor` tells apart what otherwise all looks like silence."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twinscope import Probe
from twinscope_service.cli.doctor import (
    Finding,
    host_findings,
    known_variables,
    probe_findings,
    service_findings,
    variable_findings,
)

ROOT = Path(__file__).resolve().parents[2]


def _texts(findings: list[Finding], mark: str) -> str:
    return "\n".join(finding.text for finding in findings if finding.mark == mark)


def test_probe_that_is_off_says_which_variable_is_missing() -> None:
    """No address is the most common reason for silence."""
    assert "TWINSCOPE_URL" in _texts(probe_findings({}), "bad")
    assert "TWINSCOPE_TIMEOUT_S" in _texts(
        probe_findings({"TWINSCOPE_URL": "http://h:1", "TWINSCOPE_TIMEOUT_S": "soon"}), "bad"
    )
    assert not _texts(probe_findings({"TWINSCOPE_URL": "http://h:1"}), "bad")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TWINSCOPE_URLL", "TWINSCOPE_URL"),
        ("TWINSCOPE_VLM", "TWINSCOPE_VLLM"),
        ("twinscope_run", "TWINSCOPE_RUN"),
        ("TWINSCOPE_SPOOLDIR", "TWINSCOPE_SPOOL_DIR"),
        ("TWINSCOPE_CLIPP", "TWINSCOPE_CLIP"),
    ],
)
def test_misspelt_variable_is_named_with_what_was_meant(name: str, meant: str) -> None:
    """It is read by nobody, and without this line nobody would say so."""
    (finding,) = variable_findings({name: "1", meant: "1", "HOME": "/root"})

    assert finding.mark == "bad"
    assert finding.text.startswith(f"{name} is not a variable")
    assert finding.text.endswith(f"did you mean {meant}?")


def test_variable_like_none_of_ours_is_only_noted() -> None:
    """A launcher may have variables of its own with this prefix."""
    (finding,) = variable_findings({"TWINSCOPE_COLOUR_OF_THE_DASHBOARD": "blue"})

    assert finding.mark == "note"
    assert "did you mean" not in finding.text


def test_every_variable_that_the_code_names_is_known() -> None:
    """A new one that is left out would be called a mistake."""
    folders = ("probes", "service", "fpga_backend/twinscope_fpga", "examples")
    named = {
        name
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"TWINSCOPE_[A-Z0-9_]*[A-Z0-9]", path.read_text(encoding="utf-8"))
    }

    assert len(named) > 20
    assert named <= known_variables()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Pretend that a distribution of this version is installed."""
    import importlib.metadata

    real = importlib.metadata.version

    def pretend(name: str, version: str) -> None:
        monkeypatch.setattr(
            importlib.metadata, "version", lambda asked: version if asked == name else real(asked)
        )

    return pretend


def test_each_framework_shows_what_its_numbers_mean(
    installed: Callable[[str, str], None],
) -> None:
    """Supported and off, supported and on, refused: three different lines."""
    installed("vllm", "0.33.1")
    off = host_findings({})
    on = host_findings({"TWINSCOPE_VLLM": "1"})
    installed("vllm", "0.71.0")
    other = host_findings({"TWINSCOPE_VLLM": "1"})

    assert "not switched on" in _texts(off, "note")
    assert "q is log softmax(logits)" in _texts(off, "note")
    assert "vLLM 0.33.1" in _texts(on, "good")
    assert "TWINSCOPE_VLLM=untested" in _texts(other, "bad")


def test_hook_called_by_hand_obeys_its_own_variable(
    installed: Callable[[str, str], None],
) -> None:
    """TRL's has no switch: refused as observe() refuses it, taken with `untested`."""
    installed("trl", "1.99.0")

    assert "TWINSCOPE_TRL=untested" in _texts(host_findings({}), "bad")
    assert "TRL 1.99.0" in _texts(host_findings({"TWINSCOPE_TRL": "untested"}), "good")
    assert "TRL 1.99.0" in _texts(host_findings({"TWINSCOPE_TRL": "0"}), "bad")


@pytest.mark.parametrize(
    ("package", "module", "others", "own", "name"),
    [
        ("roll", "roll", "http", "pipeline", "ROLL"),
        ("slime", "slime", "model", "rollout", "slime, miles"),
        ("nemo-rl", "nemo_rl", "data", "algorithms", "NeMo-RL"),
    ],
)
def test_other_distributions_of_a_framework_s_name_are_not_taken_for_it(
    installed: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    package: str, module: str, others: str, own: str, name: str,
) -> None:  # fmt: skip
    """A registry's package of the same name, or a placeholder: not the framework; a clone is."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / module / others).mkdir(parents=True)
    (tmp_path / module / "__init__.py").write_text("raise RuntimeError('imported')")
    installed(package, "0.0.0")

    assert f"{name} 0.0.0" not in _texts(host_findings({}), "good")
    (tmp_path / module / own).mkdir()
    assert f"{name} 0.0.0" in _texts(host_findings({}), "good")


def test_allow_list_that_keeps_the_hook_out_is_named(
    installed: Callable[[str, str], None],
) -> None:
    """VLLM_PLUGINS silently excludes what it does not name."""
    installed("vllm", "0.33.1")

    assert "VLLM_PLUGINS=other" in _texts(host_findings({"VLLM_PLUGINS": "other"}), "bad")
    assert "VLLM_PLUGINS" not in _texts(host_findings({"VLLM_PLUGINS": "other,twinscope"}), "bad")


def test_never_loaded_and_no_data_look_different(start: Callable[..., Any]) -> None:
    """Nothing at all; a greeting without data; a refusal and why; a service that is away."""
    service = start()

    silent = service_findings(service.url, None, "quiet")
    with Probe(service.url, "quiet") as probe:
        probe.event("host_attached", host="vllm", version="0.33.0")
        probe.event("host_attached", host="vllm", version="0.29.0", not_seen=["weight_version"])
        probe.event("host_refused", host="trl", reason="trl 9.9: tested with 1.16")
        assert probe.flush(20)
        greeted = service_findings(service.url, None, "quiet")
    away = service_findings("http://127.0.0.1:9", None, "quiet")

    assert "not even a probe's greeting" in _texts(silent, "bad")
    assert "attached to vllm 0.33.0\n" in _texts(greeted, "good")
    assert "vllm 0.29.0; this version does not tell weight_version" in _texts(greeted, "good")
    assert "trl 9.9" in _texts(greeted, "bad")
    assert "no step yet" in _texts(greeted, "bad")
    assert "127.0.0.1:9" in _texts(away, "bad")


def test_a_token_that_opens_nothing_is_told_before_the_first_batch(
    start: Callable[..., Any],
) -> None:
    """/readyz answers everybody: what a batch would be told is asked for too."""
    service = start(token="secret", run_tokens={"mine": "key"})

    def bad(token: str | None, run: str | None = None) -> str:
        return _texts(service_findings(service.url, token, run), "bad")

    assert "answers 401 to no token" in bad(None)
    assert "answers 401 to the token of TWINSCOPE_TOKEN" in bad("wrong", "mine")
    assert "this token opens another run" in bad("key", "other")
    assert bad("secret") == bad("key") == ""
    assert "not even a probe's greeting" in bad("key", "mine")


def test_a_loss_that_only_the_farewell_tells_is_a_loss(start: Callable[..., Any]) -> None:
    """The service refused the last thing that a probe sent; one that lost nothing just closed."""
    service = start()
    with Probe(service.url, "fine") as probe:
        probe.event("checkpoint")
    with Probe(service.url, "closet") as probe:
        probe.close_step(77)  # of which nothing was sent
    fine = service_findings(service.url, None, "fine")
    lossy = service_findings(service.url, None, "closet")
    assert "a probe lost data" not in _texts(fine, "bad")
    assert "a probe lost data: {'rejected'" in _texts(lossy, "bad")


BARE = """
import sys
sys.path[:0] = sys.argv[1:3]
from twinscope_service.cli import main
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "doctor"),
        (["doctor"], 1, "the service is not installed here"),
        (["doctor"], 1, "did you mean TWINSCOPE_RUN?"),
        (["doctor", "--url", "http://127.0.0.1:9", "--run", "x"], 1, "refused"),
        (["analyze", "x"], 2, "pip install 'twinscope[service]'"),
    ],
)
def test_a_trainer_with_nothing_but_the_probes_has_its_doctor(
    arguments: list[str], status: int, said: str
) -> None:
    """Without site-packages, as after `pip install .`; what needs more says how to get it."""
    command = [sys.executable, "-I", "-S", "-c", BARE, str(ROOT / "probes"), str(ROOT / "service")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True,
                          env={"TWINSCOPE_RUNN": "r"})  # fmt: skip
    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr
