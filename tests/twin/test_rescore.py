"""`twinscope rescore`: whose weights made these log-probs? Candidates with known distances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import Probe
from twinscope.errors import ConfigError
from twinscope.testing import InMemorySink
from twinscope_service.twin.rescore import Moved, conclude, rank, read_recorded

MASKS = [np.ones(30, bool)] * 24


def _scores(*, distance: float, seed: int = 0) -> list[Any]:
    """Rows of log-probs `distance` away, in noise of 0.01 nats, from those of distance 0."""
    base = np.random.default_rng(7).normal(-1.5, 0.5, (24, 30))
    noise = np.random.default_rng(seed).normal(0, 0.01, base.shape)
    direction = np.random.default_rng(8).normal(0, 1, base.shape)
    return list(base + noise + distance * direction)


def test_side_agrees_with_the_nearest_checkpoint_and_says_how_surely() -> None:
    """Distances in standard errors over samples: 0.05 nats away is certain with 24 samples."""
    candidates = {"step-1": _scores(distance=0.1, seed=1), "step-2": _scores(distance=0.05, seed=2),
                  "step-3": _scores(distance=0.0, seed=3)}  # fmt: skip

    fresh = rank("rollout", _scores(distance=0.0, seed=4), MASKS, candidates)
    stale = rank("rollout", _scores(distance=0.05, seed=5), MASKS, candidates)

    assert [row.checkpoint for row in fresh.candidates] == ["step-3", "step-2", "step-1"]
    assert fresh.best == "step-3"
    assert fresh.candidates[1].behind > 3
    assert fresh.candidates[0].mean_square == pytest.approx(2 * 0.01**2, rel=0.2)
    assert stale.best == "step-2"


def test_equal_candidates_are_not_told_apart() -> None:
    """Two checkpoints that give the same numbers: no answer instead of a guess."""
    same = _scores(distance=0.0, seed=1)

    standing = rank("train", _scores(distance=0.0, seed=2), MASKS, {"a": same, "b": same})

    assert standing.best is None
    assert "cannot be told apart" in conclude([standing], "b", None)[0]


def test_masked_and_missing_values_count_for_nothing() -> None:
    """A NaN or a masked tool token far away changes no distance."""
    found = _scores(distance=0.0, seed=2)
    masks = [mask.copy() for mask in MASKS]
    found[0][3], found[1][4], masks[1][4] = np.nan, -50.0, False

    standing = rank("rollout", found, masks, {"only": _scores(distance=0.0, seed=3)})

    assert standing.best == "only"
    assert standing.candidates[0].mean_abs < 0.02


@pytest.mark.parametrize(
    ("best", "says"),
    [(("new", "new"), ("engine: agrees", "trainer: agrees")),
     (("old", "new"), ("engine is stale", "trainer: agrees")),
     (("new", "old"), ("engine: agrees", "trainer is stale"))],
)  # fmt: skip
def test_stale_engine_and_stale_trainer_are_different_sentences(
    best: tuple[str, str], says: tuple[str, str]
) -> None:
    """The side that does not agree with the newest checkpoint is named."""
    candidates = {"old": _scores(distance=0.1, seed=1), "new": _scores(distance=0.0, seed=2)}
    distance = {"old": 0.1, "new": 0.0}
    standings = [
        rank(side, _scores(distance=distance[name], seed=9), MASKS, candidates)
        for side, name in zip(("rollout", "train"), best, strict=True)
    ]

    texts = conclude(standings, "new", None)

    assert all(text.startswith(start) for text, start in zip(texts, says, strict=True))


def test_update_that_rounding_swallows_is_named() -> None:
    """fp32 weights moved, their bfloat16 roundings did not."""
    lost = conclude([], "b", Moved("a", "b", stored=0.9, rounded=0.01))
    seen = conclude([], "b", Moved("a", "b", stored=0.9, rounded=0.5))

    assert "update_lost_to_rounding" in lost[0]
    assert "update_lost_to_rounding" not in seen[0]


def test_weights_are_compared_as_stored_and_as_rounded(tmp_path: Path) -> None:
    """A step of a quarter of a bfloat16 ulp moves every stored weight and no rounded one."""
    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save_file
    from twinscope_service.twin.weights import moved

    weights = torch.linspace(1.0, 1.9, 100).to(torch.bfloat16).float()
    for name, value in (("old", weights), ("new", weights + 2**-9)):
        (tmp_path / name).mkdir()
        save({"w": value}, tmp_path / name / "model.safetensors")

    found = moved(tmp_path / "old", tmp_path / "new")

    assert found == Moved("old", "new", stored=1.0, rounded=0.0)
    assert moved(tmp_path / "old", tmp_path) is None


def test_traces_without_prompts_are_refused_by_field() -> None:
    """What cannot be scored is said with the field's name."""
    sink = InMemorySink()
    with Probe(sink=sink) as probe:
        probe.rollout(logprobs=[[-1.0]], token_ids=[[3]], step=0)
        assert probe.flush(10)

    with pytest.raises(ConfigError, match="prompt_ids: absent"):
        read_recorded(sink.batches(), most=8)
