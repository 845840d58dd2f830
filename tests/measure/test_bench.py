"""`twinscope bench measure`: the table it prints, and that both sides measure the same."""

from __future__ import annotations

import numpy as np
import pytest

from twinscope.errors import ConfigError
from twinscope_service.bench import measure, peers


def test_the_block_is_ragged_masked_and_long_tailed() -> None:
    """512 samples of different lengths that add up, one in ten tokens masked."""
    block = measure.make_block(60_000)
    lengths = np.diff(block.offsets)
    assert block.samples == 512
    assert block.tokens == 60_000
    assert lengths.max() > 1.8 * lengths.mean()
    assert block.mask is not None
    assert 0.85 < block.mask.mean() < 0.95


def test_both_sides_run_and_agree() -> None:
    """A small run in this process: four contenders, ratios of the shared metrics at 1."""
    pytest.importorskip("torch")
    timings, same = measure.compare(20_000, 1)
    assert [t.name for t in timings][:3] == [
        "twinscope, full",
        "twinscope, core",
        "verl, two functions",
    ]
    assert all(t.seconds > 0 for t in timings)
    for name, ratio in same.items():
        assert ratio == pytest.approx(1, abs=1e-3), name
    text = measure.render(timings, same)
    assert "x faster" in text
    assert "read bandwidth" in text


def test_padding_keeps_every_token_in_place() -> None:
    """What verl would be given."""
    pytest.importorskip("torch")
    block = measure.make_block(5_000)
    train, _, mask = peers.pad(block)
    assert block.mask is not None
    assert int(mask.sum()) == int(block.mask.sum())
    assert float(train.double().sum()) == pytest.approx(block.train_logprobs.sum(dtype=np.float64))


@pytest.mark.parametrize(("tokens", "rounds"), [(10, 5), (10_000, 0)])
def test_sizes_that_make_no_sense_are_refused(tokens: int, rounds: int) -> None:
    """With the field and the smallest value."""
    with pytest.raises(ConfigError, match=r"tokens|rounds"):
        measure.run(tokens=tokens, rounds=rounds)
