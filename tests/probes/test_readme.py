"""probes/README.md cannot rot: its table is rendered, its example runs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from twinscope.books import DROP_REASONS
from twinscope.settings import SETTINGS, ProbeSettings, render_table
from twinscope.testing import SinkServer

README = (Path(__file__).resolve().parents[2] / "probes/README.md").read_text(encoding="utf-8")


def test_the_table_of_settings_is_the_declaration() -> None:
    """Render it again: `python -c "from twinscope.settings import *; print(render_table())"`."""
    between = README.split("<!-- settings:")[1].split("-->\n")[1].split("\n<!-- end")[0]

    assert between == render_table()
    assert all(setting.variable.startswith("TWINSCOPE_") for setting in SETTINGS)


def test_the_example_for_a_plain_loop_runs() -> None:
    """As printed, with a toy policy in place of yours; both sides arrive and agree."""
    example = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    with SinkServer() as server:
        code = example.replace("http://127.0.0.1:8321", server.url)
        exec(code, _toy_loop())

    sides = [(batch.side, batch.step) for batch in server.batches()]
    assert sides == [("rollout", None), ("train", 0), ("rollout", None), ("train", 1),
                     ("rollout", None), ("train", 2)]  # fmt: skip
    for batch in server.batches():
        assert batch.tensors["token_ids"].tolist() == [5, 6, 7]
        assert batch.offsets.tolist() == [0, 2, 3]
        assert batch.tensors["prompt_ids"].tolist() == [1, 2, 3]
    assert [body["values"] for body in server.messages("/v1/scalars")] == [{"reward": 0.5}] * 3


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
        "sample": lambda policy: rollouts,
        "score": lambda policy, samples: torch.tensor([[-0.5, -0.25], [-1.0, 0.0]]),
        "update": lambda policy: None,
    }


def test_what_the_text_claims_is_what_the_code_does() -> None:
    """Defaults that the prose repeats."""
    assert "(256 MiB)" in README
    assert ProbeSettings().buffer_bytes == 256 << 20
    assert "shipped + pending + spooled + dropped" in README
    assert "pad" in README
    assert all(reason for reason in DROP_REASONS)
