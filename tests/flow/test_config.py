"""Settings: where they come from, which wins, and what is said about unusable ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinscope.errors import ConfigError
from twinscope_service.config import Settings, load_settings
from twinscope_service.detect.bands import K3_BANDS
from twinscope_service.stages import build_bands, build_detect_options, build_limits


def test_the_command_line_wins_over_environment_over_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting by itself."""
    file = tmp_path / "t.toml"
    file.write_text('port = 1\nhost = "file"\nstep_grace_s = 5\nrun_tokens = {a = "b"}\n')
    monkeypatch.setenv("TWINSCOPE_PORT", "2")
    monkeypatch.setenv("TWINSCOPE_HOST", "environment")
    found = load_settings(config=file, port=3)
    assert (found.port, found.host, found.step_grace_s) == (3, "environment", 5.0)
    assert found.run_tokens == {"a": "b"}


def test_the_probes_variables_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read TWINSCOPE_TOKEN; the others of the probe are left alone."""
    for name in ("URL", "RUN", "DISABLED"):
        monkeypatch.setenv(f"TWINSCOPE_{name}", "x")
    monkeypatch.setenv("TWINSCOPE_TOKEN", "secret")
    assert load_settings().token == "secret"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"port": "eighty"}, "port (TWINSCOPE_PORT): got 'eighty'"),
        ({"prot": 80}, "prot: no such setting"),
        ({"engine": "gpu"}, "engine (TWINSCOPE_ENGINE): got 'gpu'"),
        ({"clip": (1.2, 1.4)}, "0 < low < 1 < high"),
        ({"k3_bound": {"dens": 0.1}}, "positive numbers for aligned, dense"),
        ({"max_inflight_bytes": 2048}, "at least max_body_bytes"),
        ({"min_coverage": 1.5}, "min_coverage (TWINSCOPE_MIN_COVERAGE): got 1.5"),
    ],
)
def test_an_unusable_setting_is_named_with_value_and_fix(
    given: dict[str, object], said: str
) -> None:
    """Before anything starts."""
    with pytest.raises(ConfigError) as error:
        load_settings(**given)
    assert said in str(error.value)


def test_all_unusable_settings_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a secret is not shown."""
    monkeypatch.setenv("TWINSCOPE_TOKEN", "")
    with pytest.raises(ConfigError) as error:
        load_settings(port=-1, clamp=0)
    assert all(name in str(error.value) for name in ("port", "clamp", "token"))
    assert "(not shown)" in str(error.value)


def test_misspelt_keys_and_unusable_targets_are_told_together() -> None:
    """Of a table, the entry and the key; nobody starts the service once per mistake."""
    target = {"name": "ops", "url": "http://x", "secret": "hush"}
    with pytest.raises(ConfigError) as error:
        load_settings(
            prot=1,
            clamp=0,
            alert_targets=[{**target, "type": "pigeon"}],
            alert_silences=[{"end": "soon"}],
        )
    lines = [line.strip() for line in str(error.value).splitlines()]
    assert sorted(line.split(":")[0].split(" ")[0] for line in lines[1:]) == [
        "alert_silences[0].end",
        "alert_targets[0].type",
        "clamp",
        "prot",
    ]
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("text", ["port = ", "port = 99999"])
def test_a_bad_file_is_said(tmp_path: Path, text: str) -> None:
    """With its name, or the setting's."""
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.toml|port"):
        load_settings(config=file)
    with pytest.raises(ConfigError, match=r"none\.toml"):
        load_settings(config=tmp_path / "none.toml")


def test_dictionaries_in_the_environment_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else is an error that says so."""
    monkeypatch.setenv("TWINSCOPE_RUN_TOKENS", '{"a": "b"}')
    assert load_settings().run_tokens == {"a": "b"}
    monkeypatch.setenv("TWINSCOPE_RUN_TOKENS", "a=b")
    with pytest.raises(ConfigError, match="JSON"):
        load_settings()


def test_secrets_are_not_printed() -> None:
    """Settings end up in logs."""
    shown = repr(load_settings(token="hush", run_tokens={"a": "hush"}))
    assert "hush" not in shown


def test_settings_reach_the_stages() -> None:
    """What is not set keeps the level that ships."""
    settings = load_settings(k3_bound={"moe": 0.5}, model_class="aligned", detect_target_arl=5000)
    bands = build_bands(settings)
    assert (bands.k3["moe"].bound, bands.k3["moe"].warn) == (0.5, K3_BANDS["moe"].warn)
    assert bands.k3["dense"] == K3_BANDS["dense"]
    assert bands.model_class == "aligned"
    detect = build_detect_options(settings)
    assert (detect.target_arl, detect.bypass_expected) == (5000, True)
    assert build_limits(load_settings(max_samples=7)).samples == 7


def test_every_setting_has_a_description() -> None:
    """The page of settings is made of them."""
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
