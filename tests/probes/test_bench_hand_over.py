"""`twinscope bench probe`: what it times is the real call, in every form it names."""

from __future__ import annotations

import numpy as np
import pytest

from twinscope import Probe
from twinscope.testing import InMemorySink
from twinscope_service.bench import hand_over
from twinscope_service.bench.interval import Interval, median_interval


def test_all_forms_carry_the_same_answers() -> None:
    """A figure per form compares only if each hands over the same tokens."""
    arrived = {}
    for form in hand_over.forms(8, 50):
        sink = InMemorySink()
        with Probe(sink=sink) as probe:
            assert probe.train(step=0, **form.fields)
        (arrived[form.name],) = sink.batches()
        form.bare()

    first = arrived["[S,T] numpy"]
    assert len(arrived) == 6
    for name, batch in arrived.items():
        exact = "bfloat16" not in name
        np.testing.assert_array_equal(batch.offsets, first.offsets)
        np.testing.assert_array_equal(batch.tensors["token_ids"], first.tensors["token_ids"])
        np.testing.assert_allclose(
            batch.tensors["train_logprobs"],
            first.tensors["train_logprobs"],
            rtol=0 if exact else 2**-8,
        )


def test_a_cost_is_reported_for_every_form_and_size() -> None:
    """All forms of a size have the same tokens, half to all of what padding makes of them."""
    costs = list(hand_over.measure(rounds=1))

    assert len(costs) == 6 * len(hand_over.SHAPES)
    for samples, tokens in hand_over.SHAPES:
        (size,) = {c.tokens for c in costs if c.samples == samples and c.tokens <= samples * tokens
                   and c.tokens >= samples * tokens / 2}  # fmt: skip
        assert size


def test_the_interval_of_a_median_holds_it_and_shrinks_with_more_values() -> None:
    """Of 1000 medians of 20 normal values about 95 % hold the true one; four times more, half."""
    rng = np.random.default_rng(7)
    found = [median_interval(rng.normal(5.0, 1.0, 20)) for _ in range(200)]
    held = sum(one.low <= 5.0 <= one.high for one in found) / len(found)
    wide = np.mean([one.high - one.low for one in found])
    many = [median_interval(rng.normal(5.0, 1.0, 80)) for _ in range(200)]

    assert 0.89 < held < 0.99
    assert np.mean([one.high - one.low for one in many]) == pytest.approx(wide / 2, rel=0.15)
    assert median_interval([3.0, 3.0, 3.0]) == Interval(3.0, 3.0, 3.0)
