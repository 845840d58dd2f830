"""Blocks of rounds: who runs when, with which hooks, and what their ratios say."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from twinscope import Probe
from twinscope.hosts.attach import Attachment, is_wrapped
from twinscope.hosts.vllm_plugin import VLLM, Tap
from twinscope.testing import InMemorySink
from twinscope_service.bench import engine_rounds
from twinscope_service.bench.engine_rounds import Blocks, Condition, Rig, Round, run_blocks


class FrontEnd:
    """The two methods that the plugin wraps."""

    def add_request(self) -> None: ...
    def make_request_output(self) -> None: ...


class Engine:
    """Notes at each round whether the hooks were in place."""

    def __init__(self) -> None:
        self.hooked: list[bool] = []

    def generate(self, *_: Any, **__: Any) -> list[Any]:
        methods = ("add_request", "make_request_output")
        (found,) = {is_wrapped(FrontEnd, name) for name in methods}
        self.hooked.append(found)
        return [SimpleNamespace(metrics=None)]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """In a process that knows no vLLM."""
    seams = {
        "wrap_add": (FrontEnd, "add_request"),
        "wrap_output": (FrontEnd, "make_request_output"),
    }
    monkeypatch.setattr(engine_rounds, "seams", lambda: seams)
    return Engine()


def test_each_condition_comes_first_as_often_and_hooks_are_there_in_its_rounds_only(
    engine: Engine,
) -> None:
    """A drift within blocks would otherwise be taken for a cost."""
    probe = Probe(sink=InMemorySink(), environment={})
    attachment = Attachment(VLLM, environment={}, make_probe=lambda: probe)
    conditions = [Condition("without"), Condition("with", Tap(attachment, "0.32"), probe)]

    found = run_blocks(Rig(engine, [], []), conditions, blocks=8)
    probe.close()

    blocks = list(zip(engine.hooked[::2], engine.hooked[1::2], strict=True))[1:]  # after warming up
    assert Counter(blocks) == {(True, False): 4, (False, True): 4}
    assert {name: len(rounds) for name, rounds in found.rounds.items()} == {"without": 8, "with": 8}
    assert not is_wrapped(FrontEnd, "add_request")


def test_the_ratio_is_that_of_the_middle_block() -> None:
    """By hand: CPU 3/2, 2/2 and 8/2; a block that something disturbed moves the end, not this."""

    def rounds(*cpu: tuple[float, float]) -> list[Round]:
        return [Round(1.0, front, core, []) for front, core in cpu]

    blocks = Blocks({
        "without": rounds((1, 1), (1, 1), (1, 1)), "with": rounds((2, 1), (1, 1), (4, 4)),
    })  # fmt: skip

    assert blocks.ratio("with", "without", of="cpu").middle == 1.5
    assert blocks.ratio("with", "without", of="front").middle == 2.0
    assert blocks.ratio("with", "without", of="wall").middle == 1.0
    assert blocks.extra("with", "without").middle == 1.0
