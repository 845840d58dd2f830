"""probes/README.md cannot rot: its table is rendered, its example runs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from twinscope import Probe
from twinscope.books import DROP_REASONS, Count
from twinscope.settings import SETTINGS, ProbeSettings, render_table
from twinscope.testing import SinkServer

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "probes/README.md").read_text(encoding="utf-8")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
SNIPPETS = PYTHON.findall(README)


def test_the_table_of_settings_is_the_declaration() -> None:
    """Render it again: `python -c "from twinscope.settings import *; print(render_table())"`."""
    between = README.split("<!-- settings:")[1].split("-->\n")[1].split("\n<!-- end")[0]

    assert between == render_table()
    assert all(setting.variable.startswith("TWINSCOPE_") for setting in SETTINGS)


def test_the_ten_lines_are_those_of_the_front_page() -> None:
    """Two versions of the first thing a newcomer copies would be one too many."""
    front = (ROOT / "README.md").read_text(encoding="utf-8")

    assert SNIPPETS[0] == PYTHON.findall(front)[0]
    assert SNIPPETS[0].rstrip().splitlines()[-1].startswith("probe.close(")


def test_the_ten_lines_run() -> None:
    """As printed, with an engine and a trainer in place of yours; both sides arrive, and close."""
    names: dict[str, Any] = {
        "sample_from_engine": lambda: ([[5, 6], [7]], [[-0.5, -0.25], [-1.0]]),
        "recompute_old_logprobs": lambda responses: [[-0.5] * len(ids) for ids in responses],
    }
    with SinkServer() as server:
        exec(SNIPPETS[0].replace("http://127.0.0.1:8321", server.url), names)

    sides = [(batch.side, batch.step) for batch in server.batches()]
    assert sides == [("rollout", None), ("train", 0), ("rollout", None), ("train", 1),
                     ("rollout", None), ("train", 2)]  # fmt: skip
    assert sum(post.path.endswith("/close") for post in server.posts) == 3
    assert names["probe"].stats().lost == Count()


def test_the_example_with_padded_tensors_runs() -> None:
    """As printed, with a toy policy in place of yours; both sides agree on tokens and prompts."""
    with SinkServer() as server, Probe(server.url) as probe:
        exec(SNIPPETS[1], {"probe": probe, "step": 3, **_toy_loop()})
        assert probe.flush(20)

    assert [(batch.side, batch.step) for batch in server.batches()] == [
        ("rollout", None),
        ("train", 3),
    ]
    for batch in server.batches():
        assert batch.tensors["token_ids"].tolist() == [5, 6, 7]
        assert batch.offsets.tolist() == [0, 2, 3]
        assert batch.tensors["prompt_ids"].tolist() == [1, 2, 3]
    assert server.messages("/v1/scalars")[0]["values"] == {"reward": 0.5, "loss": 2.0}


def _toy_loop() -> dict[str, Any]:
    """The names that the example calls yours."""
    rollouts = SimpleNamespace(
        logprobs=[[-0.5, -0.25], [-1.0]],
        token_ids=[[5, 6], [7]],
        prompts=[[1, 2], [3]],
        padded=torch.tensor([[5, 6], [7, 0]]),
        mask=torch.tensor([[1, 1], [1, 0]]),
        reward=torch.tensor(0.5),
    )
    return {
        "policy": None,
        "rollouts": rollouts,
        "score": lambda policy, samples: torch.tensor([[-0.5, -0.25], [-1.0, 0.0]]),
        "loss": torch.tensor(2.0, requires_grad=True),
    }


def test_what_the_text_claims_is_what_the_code_does() -> None:
    """Defaults that the prose repeats."""
    assert "(256 MiB)" in README
    assert ProbeSettings().buffer_bytes == 256 << 20
    assert "shipped + pending + spooled + dropped" in README
    assert "pad" in README
    assert "(the service's `step_grace_s`)" in README
    assert "`TWINSCOPE_STEP_GRACE_S` | `30.0`" in (ROOT / "docs/settings.md").read_text("utf-8")
    assert all(reason for reason in DROP_REASONS)
