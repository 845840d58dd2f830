"""`twinscope check` against a real vLLM server, as a user runs it before a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plugged_server import PluggedServer, plugged_server
from service_process import ROOT, service_python


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PluggedServer]:
    """vLLM with its defaults: raw log-probs."""
    with plugged_server(tiny_llama, tmp_path_factory.mktemp("server"), environment={}) as running:
        yield running


def _check(engine: list[str], model: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [service_python(), "-m", "twinscope_service", "check", *engine]
    command += ["--model", str(model), "--logprobs-mode", "raw_logprobs", "--json"]
    command += ["--copies", "3", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=1000, check=False
    )
    assert done.stdout, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


def _verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {cell["cell"]: cell["verdict"] for cell in report["cells"]}


def _cached(report: dict[str, Any]) -> dict[str, Any]:
    """What the warm cell took from the prefix cache."""
    found: dict[str, Any] = next(c for c in report["cells"] if c["cell"] == "warm cache")["cached"]
    return found


def test_equal_sides_pass_and_a_tempered_trainer_is_told_apart_from_other_weights(
    server: PluggedServer, tiny_llama: Path
) -> None:
    """Raw log-probs at T=1 agree; at T=0.8 they are not what the trainer restores."""
    engine = ["--rollout", server.url]
    status, equal = _check(engine, tiny_llama)
    tempered_status, tempered = _check(engine, tiny_llama, "--temperature", "0.8")

    assert set(_verdicts(equal).values()) == {"ok"}
    assert status == 0
    assert 0 < _cached(equal)["tokens"] < _cached(equal)["prompt_tokens"]
    assert any("long prompt" in said and "context is 384" in said for said in equal["looked_at"])
    assert {"prefill", "forced decode", "engine alone"} <= set(_verdicts(equal))
    assert tempered_status == 1
    verdicts = _verdicts(tempered)
    assert verdicts["sampled"] == "inconsistent"
    assert verdicts["prefill"] == verdicts["greedy"] == verdicts["forced decode"] == "ok"
    assert any("the weights are the same" in text for text in tempered["reading"])
    assert any("not the decode path" in text for text in tempered["reading"])


def test_engine_without_a_server_is_checked_in_its_own_interpreter(tiny_llama: Path) -> None:
    """vLLM here, the service and the trainer's forward there; the trainer packs its samples.

    The long prompt fits: it is prefilled in chunks, and cached.
    """
    arguments = {
        "enforce_eager": True, "max_model_len": 2560, "gpu_memory_utilization": 0.2,
        "hf_overrides": {"max_position_embeddings": 4096}, "max_num_batched_tokens": 512,
        "enable_chunked_prefill": True,
    }  # fmt: skip
    engine = ["--engine", "vllm-offline", "--engine-python", sys.executable]
    engine += ["--engine-args", json.dumps(arguments)]

    status, report = _check(engine, tiny_llama, "--layout", "packed", "--micro-batch", "8", "3")

    assert set(_verdicts(report).values()) == {"ok"}
    assert status == 0
    assert {"forced decode", "trainer alone", "trainer in 3s"} <= set(_verdicts(report))
    assert report["engine_repeatability"]["tokens"] == report["cells"][0]["tokens"]
    assert re.search(r"of prompts of 1 to (1[5-9]|20)\d\d tokens", report["looked_at"][0])
    # Whole blocks of 128 on the CPU: nearly all of the long prompt, nothing of the short ones.
    assert _cached(report)["tokens"] > 0.8 * _cached(report)["prompt_tokens"]
    assert 0 < _cached(report)["prompts_hit"] < _cached(report)["prompts"]
    assert report["engine"]["logprobs_mode"] == "raw_logprobs"
