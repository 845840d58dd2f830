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


def test_the_block_brings_what_a_real_batch_brings() -> None:
    """Token ids always; entropy, ref, prompts, versions and groups in the second block."""
    block = measure.make_block(20_000)
    assert block.token_ids is not None
    assert block.token_ids.min() >= 0
    full = measure.add_sides(block)
    assert full.entropy is not None
    assert full.ref_logprobs is not None
    assert full.ref_logprobs.max() <= 0
    assert full.prompt_offsets is not None
    assert full.prompt_ids is not None
    assert full.prompt_offsets[-1] == len(full.prompt_ids)
    assert set(full.groups) == {"engine", "turn"}
    assert measure.input_bytes(full) == 20_000 * 21


@pytest.mark.parametrize(("tokens", "samples"), [(4_000, 512), (16_000, 100), (512, 512)])
def test_lengths_add_up_whatever_rounding_does(tokens: int, samples: int) -> None:
    """Offsets never fall and end at the number of tokens."""
    block = measure.make_block(tokens, samples=samples)
    assert block.samples == samples
    assert block.offsets[0] == 0
    assert block.offsets[-1] == tokens
    assert (np.diff(block.offsets) >= 0).all()


def test_both_sides_run_and_agree() -> None:
    """A small run in this process: one block of each kind, ratios of the shared metrics at 1."""
    pytest.importorskip("torch")
    cases, memory, same = measure.compare(20_000, 1)
    assert [case.core is not None for case in cases] == [True] + [False] * 4
    assert all(case.full.seconds > 0 and case.verl.seconds > 0 for case in cases)
    for name, ratio in same.items():
        assert ratio == pytest.approx(1, abs=1e-3), name
    text = measure.render(cases, memory, same)
    assert text.count("x faster") == 5
    assert "read bandwidth" in text
    assert "padded input" in text


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
