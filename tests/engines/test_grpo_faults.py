"""The complete example run, untouched and with each of its faults, as a user runs it.

vLLM samples, PyTorch trains, weights really go back; the tiny model, which learns in a dozen steps.
A fault begins at step 10, inside the detectors' burn-in of 20 steps. Seeds draw the model's weights
and its samples: what is asserted may not hang on one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from example_runs import run_example
from service_process import ServiceProcess, running_service

FAULT_STEP = 10
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One service for the module: every run has a name of its own."""
    with running_service(tmp_path_factory.mktemp("service")) as process:
        yield process


@pytest.fixture
def grpo(service: ServiceProcess) -> Run:
    """`grpo(run, steps, *switches)`: the example's run; its steps as the service shows them."""

    def run(name: str, steps: int, *switches: str) -> list[dict[str, Any]]:
        run_example("grpo_cpu.py", service, "--run", name, "--steps", str(steps), *switches)
        return [service.get(f"/v1/runs/{name}/steps/{step}") for step in range(steps)]

    return run


def _causes(steps: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(family, cause) of each step's first answer."""
    return [(s["diagnosis"][0]["family"], s["diagnosis"][0]["cause"]) for s in steps]


def test_untouched_run_raises_nothing(grpo: Run, service: ServiceProcess) -> None:
    """Weights move, the reward rises, the engine follows: every step ok, no alert of any kind."""
    steps = grpo("untouched", 60)

    assert [step["verdict"] for step in steps] == ["ok"] * len(steps)
    assert set(_causes(steps)) == {("none", "numerical_noise")}
    assert service.get("/v1/runs/untouched/alerts") == []


@pytest.mark.parametrize("seed", [0, 1])
def test_weights_that_stop_coming_are_a_level_shift_with_its_onset(
    seed: int, grpo: Run, service: ServiceProcess
) -> None:
    """No sync from step 10: k3 shifted at step 10 or 11, and the weights are old.

    With seed 1 the first step with old weights is off by less than a factor of two.
    """
    name = f"no-sync-{seed}"
    steps = grpo(name, 22, "--no-sync-from", str(FAULT_STEP), "--seed", str(seed))

    shifts = [
        alert
        for alert in service.get(f"/v1/runs/{name}/alerts")
        if alert["kind"] == "level_shift" and alert["series"] == "k3"
    ]
    assert shifts
    assert all(alert["onset_step"] in (FAULT_STEP, FAULT_STEP + 1) for alert in shifts)
    assert all(alert["ratio"] > 5 for alert in shifts)
    assert {step["verdict"] for step in steps[:FAULT_STEP]} == {"ok"}
    assert {step["verdict"] for step in steps[13:]} == {"inconsistent"}
    assert set(_causes(steps[13:])) == {("weights", "stale_weights")}


@pytest.mark.parametrize("seed", [0, 1])
def test_prefix_cache_that_survives_a_sync_is_named(seed: int, grpo: Run) -> None:
    """Not flushed from step 10 on: samples with cached prompts are off, the others are not.

    By as much as the policy has learned since: it can be told after two to four steps.
    """
    steps = grpo(
        f"kept-cache-{seed}", 20, "--keep-cache-from", str(FAULT_STEP), "--seed", str(seed)
    )

    assert {step["verdict"] for step in steps[:FAULT_STEP]} == {"ok"}
    assert {cause for _, cause in _causes(steps[15:])} == {"stale_prefix_cache"}
    assert {step["verdict"] for step in steps[15:]} == {"inconsistent"}


def test_temperature_of_one_side_is_named(grpo: Run) -> None:
    """The trainer divides by 0.8 from step 10 on, the engine by 1: named at once."""
    steps = grpo(
        "one-temperature", 13, "--trainer-temperature", "0.8",
        "--trainer-temperature-from", str(FAULT_STEP),
    )  # fmt: skip

    assert {step["verdict"] for step in steps[:FAULT_STEP]} == {"ok"}
    assert {step["verdict"] for step in steps[FAULT_STEP:]} == {"inconsistent"}
    assert {cause for _, cause in _causes(steps[FAULT_STEP:])} == {"temperature_not_restored"}
