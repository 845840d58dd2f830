"""`twinscope bench probe`: what it times is the real call, in every form it names."""

from __future__ import annotations

import numpy as np

from twinscope import Probe
from twinscope.testing import InMemorySink
from twinscope_service.bench import hand_over


def test_all_forms_carry_the_same_answers() -> None:
    """A figure per form compares only if each hands over the same tokens."""
    arrived = {}
    for form in hand_over.forms(50):
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

    assert len(costs) == 6 * len(hand_over.TOKENS)
    sizes = sorted({cost.tokens for cost in costs})
    assert len(sizes) == len(hand_over.TOKENS)
    for size, tokens in zip(sizes, hand_over.TOKENS, strict=True):
        assert hand_over.SAMPLES * tokens / 2 <= size <= hand_over.SAMPLES * tokens
