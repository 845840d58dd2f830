"""The offline example, run as a user runs it, on the tiny model; grpo_cpu.py: test_grpo_faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from example_runs import run_example
from service_process import ServiceProcess, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """The service it sends to."""
    with running_service(tmp_path_factory.mktemp("service")) as process:
        yield process


def test_offline_example_prints_the_verdict_of_each_step(
    tiny_llama: Path, service: ServiceProcess
) -> None:
    """One-sided temperature: every line says inconsistent, as the service does."""
    printed = run_example(
        "vllm_offline.py", service, "--model", str(tiny_llama), "--run", "offline",
        "--steps", "2", "--temperature", "0.7", "--trainer-temperature", "1.0",
    )  # fmt: skip

    lines = [line for line in printed.splitlines() if line.startswith("step ")]
    assert len(lines) == 2
    assert all(": inconsistent, rollout_train_kl" in line for line in lines)
