"""How hooks get in: off by default, tested versions only, at the import they wait for."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from twinscope import DidNotAttach, Probe
from twinscope.hosts.attach import (
    Attachment,
    Host,
    is_wrapped,
    minors,
    spell,
    unwrap,
    when_imported,
    wrap,
)
from twinscope.hosts.known import KNOWN
from twinscope.hosts.sglang_plugin import SGLANG
from twinscope.hosts.verl import VERL
from twinscope.hosts.vllm_plugin import VLLM
from twinscope.testing import InMemorySink

HOST = Host("engine", "TWINSCOPE_ENGINE_HOOK", versions=((1, 4), (1, 5)))


def test_hook_is_off_until_its_variable_says_otherwise() -> None:
    """Unset, 0 and words that mean nothing are off."""
    words = {"": "off", "0": "off", "perhaps": "off", "1": "on", "Untested": "untested"}

    assert {word: HOST.switch({HOST.variable: word}) for word in words} == words
    assert HOST.switch({}) == "off"


def test_only_tested_versions_are_taken_unless_the_user_insists() -> None:
    """Patch releases and local versions belong to their minor version."""
    HOST.check("1.4.2+cpu", "on")
    HOST.check("2.0", "untested")
    with pytest.raises(DidNotAttach, match=r"engine 1\.6\.0.*1\.4, 1\.5.*=untested"):
        HOST.check("1.6.0", "on")
    with pytest.raises(DidNotAttach, match="None"):
        HOST.check(None, "on")


def test_support_may_begin_at_a_patch_release() -> None:
    """(0, 5, 11): from 0.5.11 on, and not 0.6."""
    host = Host("server", "SWITCH", versions=((0, 5, 11),))
    for version in ("0.5.11", "0.5.12.post1", "0.5.23"):
        host.check(version, "on")
    for version in ("0.5.10.post1", "0.5", "0.6.0"):
        with pytest.raises(DidNotAttach, match=r"0\.5 \(from 0\.5\.11\)"):
            host.check(version, "on")


def test_versions_are_spelt_as_people_say_them() -> None:
    """Runs of minor versions as from-to, single ones by themselves, a first patch in brackets."""
    assert spell(minors(0, 23, 33)) == "0.23 to 0.33"
    assert spell(((1, 4), (1, 5), (1, 7))) == "1.4, 1.5, 1.7"
    assert spell(((0, 5, 11),)) == "0.5 (from 0.5.11)"
    assert spell(()) == ""


def test_hooks_and_the_table_of_hosts_declare_the_same_versions() -> None:
    """What doctor says of a version is what the hook does with it."""
    declared = {known.switch: known.versions for known in KNOWN if known.switch}

    hooks = (VLLM, SGLANG, VERL)
    assert {hook.variable: hook.versions for hook in hooks} == declared


def test_refusal_is_told_to_the_service_and_never_raised(closing: list[Probe]) -> None:
    """Automatic hooks swallow DidNotAttach; the run's history has the reason."""
    sink = InMemorySink()
    closing.append(Probe(sink=sink))
    attachment = Attachment(HOST, environment={HOST.variable: "1"}, make_probe=lambda: closing[0])

    attached = attachment.attach("9.9", lambda: pytest.fail("installed"))

    assert not attached
    assert closing[0].flush(10)
    assert "9.9" in sink.events("host_refused")[0]["fields"]["reason"]


def test_wrapping_twice_is_wrapping_once_and_can_be_undone() -> None:
    """Hosts load plugins several times in a process."""
    calls: list[str] = []
    owner = SimpleNamespace(work=lambda: calls.append("work"))
    original = owner.work

    for _ in range(2):
        wrap(owner, "work", lambda inner: lambda: (calls.append("hook"), inner())[0])
    owner.work()

    assert calls == ["hook", "work"]
    assert is_wrapped(owner, "work")
    unwrap(owner, "work")
    assert owner.work is original


@pytest.fixture
def module_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that imports look into."""
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield tmp_path
    assert sys.meta_path == before  # the watch went away
    sys.modules.pop("hosted_late", None)


def test_action_waits_for_the_import_and_sees_the_finished_module(module_folder: Path) -> None:
    """The module is complete, keeps its own loader, and nothing is imported for the hook."""
    (module_folder / "hosted_late.py").write_text("VALUE = 7\n")
    seen: list[object] = []

    when_imported("hosted_late", lambda module: seen.append(module.VALUE))
    assert "hosted_late" not in sys.modules
    module = importlib.import_module("hosted_late")

    assert seen == [7]
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    when_imported("hosted_late", lambda module: seen.append("again"))
    assert seen == [7, "again"]


def test_import_that_fails_fails_as_ever(module_folder: Path) -> None:
    """The host sees its own error; the action never runs."""
    (module_folder / "hosted_late.py").write_text("raise RuntimeError('its own')\n")
    ran = threading.Event()

    when_imported("hosted_late", lambda module: ran.set())

    with pytest.raises(RuntimeError, match="its own"):
        importlib.import_module("hosted_late")
    assert not ran.is_set()
