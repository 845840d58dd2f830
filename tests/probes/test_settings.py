"""Settings: arguments win, launchers cannot break a host, messages say what to do."""

from __future__ import annotations

import pytest

from twinscope import ConfigError, Probe
from twinscope.settings import SETTINGS, ProbeSettings, resolve_settings


def test_an_argument_wins_over_the_environment_and_that_over_the_default() -> None:
    """The order that every launcher expects."""
    environment = {"TWINSCOPE_RUN": "from-env", "TWINSCOPE_TIMEOUT_S": "7"}
    settings = resolve_settings({"run": "from-code"}, environment)

    assert (settings.run, settings.timeout_s, settings.retry_s) == ("from-code", 7.0, 600.0)


def test_declaration_and_record_agree() -> None:
    """Each setting is a field of the record with the same default."""
    defaults = ProbeSettings()

    assert {s.name: s.default for s in SETTINGS} == {
        s.name: getattr(defaults, s.name) for s in SETTINGS
    }


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("url", "localhost:80", "use http://host:port"),
        ("url", "ftp://host", "use http://host:port"),
        ("url", "http://user:secret@host", "put the secret into the token"),
        ("url", "http://host/?x=1", "leave out what follows"),
        ("url", "http://host\r\nX: y", "use http://host:port"),
        ("url", "http://host:99999", "out of range"),
        ("run", "a\nb", "printable characters"),
        ("run", "x" * 201, "printable characters"),
        ("run", "..", "printable characters"),
        ("token", "a\r\nb", "printable characters"),
        ("buffer_bytes", 0, "at least 1"),
        ("post_bytes", "many", "invalid literal"),
        ("timeout_s", float("nan"), "seconds from 0"),
        ("exit_timeout_s", -1, "seconds from 0"),
        ("disabled", "perhaps", "use 1 or 0"),
        ("ca_file", "/nowhere/ca.pem", "use a readable PEM file"),
        ("ca_file", __file__, "use a readable PEM file"),
        ("spool_dir", 7, "printable characters"),
    ],
)  # fmt: skip
def test_an_unusable_argument_is_refused_at_start(name: str, value: object, fix: str) -> None:
    """The message names the setting, the value and the fix."""
    with pytest.raises(ConfigError) as caught:
        resolve_settings({name: value}, {})

    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert fix in str(caught.value)


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS])
def test_an_empty_string_is_not_given(name: str) -> None:
    """`Probe(os.environ.get("MY_URL", ""))` switches the probe off; it never stops the trainer."""
    assert resolve_settings({name: ""}, {}) == ProbeSettings()
    assert resolve_settings({"url": ""}, {"TWINSCOPE_URL": "http://h:1"}).url == "http://h:1"


def test_a_probe_with_an_empty_address_is_off() -> None:
    """As without one."""
    probe = Probe("", run="", token="")

    assert not probe.enabled
    assert probe.train(step=1, logprobs=[[-1.0]], sample_ids="a") is False


@pytest.mark.usefixtures("as_in_a_run")
def test_an_unusable_variable_never_stops_the_host() -> None:
    """It is named in the stats, and the default is used."""
    probe = Probe(environment={"TWINSCOPE_URL": "nonsense", "TWINSCOPE_TIMEOUT_S": "soon"})

    assert not probe.enabled
    assert [p.split(":")[0] for p in probe.stats().config_problems] == [
        "TWINSCOPE_URL",
        "TWINSCOPE_TIMEOUT_S",
    ]


@pytest.mark.parametrize(
    "environment", [{}, {"TWINSCOPE_URL": "http://127.0.0.1:1", "TWINSCOPE_DISABLED": "1"}]
)
def test_a_probe_that_is_off_does_nothing_and_says_so_once(
    environment: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """No thread, no socket, no error; one line in the log."""
    probe = Probe(environment=environment)

    assert probe.train(step=1, logprobs=[[-1.0]], sample_ids="a") is False
    assert probe.event("weight_sync") is False
    assert probe.flush() is False
    probe.close()
    assert not probe.stats().enabled
    assert [record.message for record in caplog.records if "is off" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
