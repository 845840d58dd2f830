"""docs/hosts/pins.md: what it says of a pinned engine is what our hook does with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from released import ASKED, WHEELS

from twinscope import DidNotAttach
from twinscope.hosts.attach import Host
from twinscope.hosts.sglang_plugin import SGLANG
from twinscope.hosts.trl import TRL
from twinscope.hosts.vllm_plugin import VLLM

PAGE = Path(__file__).resolve().parents[3] / "docs/hosts/pins.md"
HOOKS = {host.name: host for host in (VLLM, SGLANG, TRL)}


def _rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines if "|" in line]
    return [row for row in cells if row[2] in HOOKS]


def _attaches(host: Host, version: str) -> bool:
    try:
        host.check(version, "on")
    except DidNotAttach:
        return False
    return True


@pytest.mark.parametrize("row", _rows(), ids=lambda row: f"{row[0]}-{row[2]}")
def test_hook_does_what_the_page_says(row: list[str]) -> None:
    """Attaches to every version named, or to none; with a range, from the version named on."""
    host, versions, told = HOOKS[row[2]], re.findall(r"\d+\.\d+[\w.]*", row[3]), row[4]

    found = {version: _attaches(host, version) for version in versions}

    since = re.search(r"from (\d+\.\d+)\.0 on", told)
    if since:
        major, minor = map(int, since[1].split("."))
        assert _attaches(host, since[1])
        assert not _attaches(host, f"{major}.{minor - 1}")
        assert found[versions[-1]]
    else:
        assert set(found.values()) == {told == "attaches"}


@pytest.mark.parametrize("package", ["verl", "openrlhf", "skyrl", "areal"])
def test_pins_are_those_of_the_released_wheels(package: str) -> None:
    """Requirement lines of the wheels that the contract tests unpack."""
    found = list(WHEELS.glob(f"*/{package}-*.dist-info/METADATA"))
    if not found:
        (pytest.fail if ASKED else pytest.skip)(f"no wheel of {package}: run make test-hosts")
    text = found[0].read_text(encoding="utf-8")
    (version,) = re.findall(r"^Version: (\S+)$", text, re.MULTILINE)
    pattern = r"^Requires-Dist: (vllm|sglang)(?:\[\w+\])?==(\S+?) ?;"
    pinned = set(re.findall(pattern, text, re.MULTILINE))

    rows = [row for row in _rows() if row[0].lower() == package and row[1] == version]
    assert pinned
    assert pinned <= {(row[2], row[3]) for row in rows}


def test_every_framework_that_we_support_is_on_the_page() -> None:
    """With the engines that are pinned nowhere, said so."""
    text = PAGE.read_text(encoding="utf-8")

    for name in ("verl", "OpenRLHF", "SkyRL", "TRL", "Unsloth", "prime-rl", "NeMo-RL", "slime",
                 "AReaL", "ROLL", "torchtitan"):  # fmt: skip
        assert name in text
