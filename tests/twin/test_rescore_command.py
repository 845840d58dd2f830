"""`twinscope rescore` from end to end, with two real (tiny, random) models and a recorded trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import Probe
from twinscope.testing import InMemorySink
from twinscope_service.cli import main

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tiny model, and the same after a step of training-like size."""
    from tiny_llama import make_tiny_llama

    folder = tmp_path_factory.mktemp("checkpoints")
    old = make_tiny_llama(folder / "step-10")
    model = transformers.AutoModelForCausalLM.from_pretrained(old, dtype=torch.float32)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.02 * weight.std() * torch.randn_like(weight)
    model.to(torch.bfloat16).save_pretrained(folder / "step-20")
    return old, folder / "step-20"


def _logprobs(folder: Path, prompts: Any, responses: Any) -> list[list[float]]:
    """By transformers alone, one sample at a time, in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    with torch.inference_mode():
        for prompt, response in zip(prompts, responses, strict=True):
            logits = model(torch.tensor([[*prompt, *response]])).logits[0].double()
            table = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            rows.append([table[t, token].item() for t, token in enumerate(response)])
    return rows


def test_stale_engine_is_found_with_its_checkpoint(
    checkpoints: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """q of the old weights, p of the new ones: exactly that is said, in figures and status."""
    old, new = checkpoints
    draw = np.random.default_rng(0)
    prompts = [draw.integers(3, 500, 6).tolist() for _ in range(16)]
    responses = [draw.integers(3, 500, int(n)).tolist() for n in draw.integers(8, 24, 16)]
    sink = InMemorySink()
    with Probe(sink=sink) as probe:
        probe.pair(step=20, rollout_logprobs=_logprobs(old, prompts, responses),
                   train_logprobs=_logprobs(new, prompts, responses),
                   token_ids=responses, prompt_ids=prompts)  # fmt: skip
        assert probe.flush(10)
    trace = tmp_path / "step.safetensors"
    trace.write_bytes(next(post.body for post in sink.posts if post.path == "/v1/batches"))

    status = main([
        "rescore", str(trace), "--checkpoint", str(old), "--checkpoint", str(new), "--json",
    ])  # fmt: skip
    answer = json.loads(capsys.readouterr().out)

    assert status == 1
    assert {side["side"]: side["best"] for side in answer["sides"]} == {
        "rollout": "step-10", "train": "step-20",
    }  # fmt: skip
    assert answer["conclusions"][0] == "engine is stale: agrees with step-10, not with step-20"
    assert "of the weights moved from step-10 to step-20" in answer["conclusions"][2]
