"""The promises of the probe, attacked: whatever is passed and whatever breaks, the host goes on."""

from __future__ import annotations

import json
import logging
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import eventually

from twinscope import Probe
from twinscope.fields import FIELDS_BY_SIDE
from twinscope.slabs import SMALLEST, SlabPool
from twinscope.snapshot import Copier
from twinscope.testing import InMemorySink

pytestmark = pytest.mark.usefixtures("as_in_a_run")


class Hostile:
    """Raises from everything a probe might touch."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    __str__ = __repr__

    def __len__(self) -> int:
        raise RuntimeError("len")


ODD = st.sampled_from(
    [
        None, True, 0, -1, 1 << 70, 1.5, math.nan, math.inf, "", "text", b"bytes", "\ud800", "\x00",
        [], [[]], [[], []], [None], [[None]], [[1, 2], [3]], [["a"]], {}, {1: 2}, {"a": math.nan},
        set(), object(), Hostile(), [Hostile()], {"a": Hostile()}, range(3), iter([1]), lambda: 1,
        np.zeros(0), np.zeros(3), np.zeros((2, 3)), np.zeros((2, 2, 2)), np.float32(1), np.array(1),
        np.array(["a"]), np.array([None]), np.array([math.nan, math.inf]), np.zeros((0, 3)),
        torch.zeros(3), torch.zeros(2, 3), torch.tensor(1.0), torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3).to_sparse(), torch.zeros(3, dtype=torch.complex64), torch.zeros(0),
        torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.bfloat16),
    ]
)  # fmt: skip
NAMES = sorted(set().union(*FIELDS_BY_SIDE.values()) | {"logprobs", "step", "rollout_logprobs"})


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["rollout", "train", "ref", "pair", "scalar", "event", "close_step"]),
    positional=st.lists(ODD, max_size=2),
    fields=st.dictionaries(st.sampled_from(NAMES), ODD, max_size=6),
)
def test_no_argument_whatever_raises(
    method: str, positional: list[Any], fields: dict[str, Any]
) -> None:
    """Every call returns a truth value, and the books balance."""
    sink = InMemorySink()
    probe = Probe(sink=sink)
    answer = getattr(probe, method)(*positional, **fields)
    good = probe.train(step=1, logprobs=[[-1.0]], sample_ids="a")
    probe.close()

    assert answer in (True, False)
    assert good is True
    assert probe.stats().shipped.batches >= 1
    assert probe.stats().balanced
    json.dumps(probe.stats().as_dict(), allow_nan=False)


def test_running_out_of_memory_in_a_copy_is_a_counted_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The allocation of a copy fails, here or later; the host's training step does not."""

    def exhausted(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(SlabPool, "take", exhausted)
    probe = Probe(sink=InMemorySink())

    large = np.zeros(SMALLEST, np.float32)
    assert probe.train(step=1, logprobs=large, sample_ids="a") is False  # copied into a slab
    assert probe.train(step=1, logprobs=[[-1.0]], sample_ids="a") is True  # fails when unpacked
    probe.close()
    assert probe.stats().dropped["internal_error"].batches == 2
    assert probe.stats().balanced


def test_ctrl_c_during_a_call_reaches_the_host_and_the_books(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not the probe's to swallow."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Copier, "copy", interrupted)
    probe = Probe(sink=InMemorySink())
    with pytest.raises(KeyboardInterrupt):
        probe.train(step=1, logprobs=[[-1.0]], sample_ids="a")
    probe.close()

    assert probe.stats().balanced


def test_the_host_s_tensors_and_results_are_untouched() -> None:
    """The same training step with and without the probe: bit for bit the same."""

    def step(probe: Probe | None) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 16)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(5):
            logprobs = model(torch.randn(4, 8)).log_softmax(-1)
            ids = {"sample_ids": range(4)}
            if probe is not None:
                assert probe.train(step=number, logprobs=logprobs, mask=logprobs > -3, **ids)
            optimiser.zero_grad()
            logprobs.mean().backward()
            optimiser.step()
        return model.weight.detach()

    with Probe(sink=InMemorySink()) as probe:
        watched = step(probe)

    assert torch.equal(watched, step(None))


def test_the_host_s_random_numbers_are_its_own() -> None:
    """Retries with jitter draw from a generator of the probe's: seeded runs stay the same."""
    random.seed(7)
    before = random.getstate()
    probe = Probe("http://127.0.0.1:9")
    assert eventually(lambda: probe.stats().retries > 0)
    probe.close(timeout=0.0)

    assert random.getstate() == before


def test_secrets_stay_out_of_logs_and_stats(caplog: pytest.LogCaptureFixture) -> None:
    """A token is neither logged nor shown."""
    caplog.set_level(logging.DEBUG)
    probe = Probe("http://127.0.0.1:9", token="s3cret", exit_timeout_s=0.0)
    probe.train(step=1, logprobs=[[1, 2], 3])
    probe.close()

    assert "s3cret" not in caplog.text
    assert "s3cret" not in repr(probe.stats())
