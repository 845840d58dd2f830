"""The client's records are what the API says, as plain values."""

from __future__ import annotations

import numpy as np
import pytest
from looking import FAULTY, HEALTHY, HOSTILE, LONG
from service_process import ServiceProcess, free_port

from twinscope_service.client import Client, ServiceAnswer

LAST = HEALTHY + FAULTY - 1


def test_runs_come_with_their_last_step(client: Client) -> None:
    """By name; a name with slashes and markup is a name like any other."""
    runs = {run.run: run for run in client.runs()}

    assert set(runs) == {"demo", "long", "reference", HOSTILE}
    assert client.run(HOSTILE) == runs[HOSTILE]
    last = runs["demo"].last
    assert last is not None
    assert last == client.step("demo", LAST)


def test_a_timeline_has_columns_of_one_length(client: Client) -> None:
    """Metrics and scalars by name; values those of the steps."""
    found = client.timeline("demo")
    step = client.step("demo", 17)

    assert found.step == tuple(range(LAST + 1))
    assert {len(column) for column in found.columns.values()} == {LAST + 1}
    assert found.columns["k3_mean"][17] == step.metrics["k3_mean"]
    assert found.columns["reward"][17] == step.scalars["reward"]
    assert found.verdict[17] == step.verdict
    assert {alert.kind for alert in found.alerts} >= {"level_shift"}
    assert "weight_sync" in {event["kind"] for event in found.events}


def test_every_step_is_visited_once(client: Client) -> None:
    """Across the pages of a long run."""
    assert [step.step for step in client.steps("long")] == list(range(LONG))


def test_evidence_is_a_batch_of_arrays(client: Client) -> None:
    """Ready for numpy: the worst token is among the kept samples."""
    batch = client.evidence("demo", LAST)
    assert batch is not None
    delta = batch.tensors["train_logprobs"] - batch.tensors["rollout_logprobs"]

    assert np.abs(delta).max() == pytest.approx(client.step("demo", LAST).metrics["abs_max"])
    assert client.evidence("long", 5) is None


def test_the_gate_is_the_verdict_of_the_last_step(client: Client) -> None:
    """With its reasons."""
    gate = client.gate("demo")

    assert (gate.step, gate.verdict) == (LAST, "inconsistent")
    assert gate.reasons


def test_a_refusal_says_what_the_service_said(client: Client) -> None:
    """Status and words; nobody listening is told with the address."""
    with pytest.raises(ServiceAnswer, match="nobody") as refused:
        client.run("nobody")
    assert refused.value.status == 404
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServiceAnswer, match=url), Client(url) as alone:
        alone.runs()


def test_a_token_is_sent(service: ServiceProcess) -> None:
    """And is not part of what an error shows."""
    with Client(service.url, token="secret") as client:
        assert client.runs()
        with pytest.raises(ServiceAnswer) as refused:
            client.run("nobody")
    assert "secret" not in str(refused.value)
