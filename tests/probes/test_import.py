"""`import twinscope` in a trainer: light, lazy, and a closed list of names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import twinscope

STDLIB_ONLY = """
import sys
before = set(sys.modules)
import twinscope
bare = {{name for name in set(sys.modules) - before if name.startswith('twinscope')}}
{use}
roots = {{name.split('.')[0] for name in set(sys.modules) - before}}
print(sorted(bare), sorted(roots - set(sys.stdlib_module_names) - {{'twinscope'}}))
"""


def _run(use: str) -> str:
    code = STDLIB_ONLY.format(use=use)
    return subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = ['probes']\n{code}"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


def test_importing_loads_one_file_until_a_name_is_used() -> None:
    """A plugin in every process of a cluster costs next to nothing where it is not used."""
    assert _run("pass") == "['twinscope'] []"


def test_a_working_probe_needs_the_standard_library_only() -> None:
    """Capture, encode and send without numpy and torch."""
    use = (
        "from twinscope.testing import InMemorySink; sink = InMemorySink(); "
        "p = twinscope.Probe(sink=sink, raise_errors=True); "
        "p.train(step=1, logprobs=[[-1.0]], sample_ids='a'); assert p.flush(10); "
        "assert len(sink.posts) == 2"
    )

    assert _run(use).endswith("[]")


@pytest.mark.parametrize("name", twinscope.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    """What `__all__` lists exists and is listed by dir()."""
    assert getattr(twinscope, name) is not None
    assert name in dir(twinscope)


def test_unknown_names_are_refused_as_usual() -> None:
    """The lazy module does not invent attributes."""
    with pytest.raises(AttributeError, match="no attribute 'prob'"):
        _ = twinscope.prob
