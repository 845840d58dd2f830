"""The join: which samples meet, which are repeated, late, contradictory or different."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from batches import Sample, batch_of, make_samples
from joining import Desk, outcomes

from twinscope.errors import WireError
from twinscope_service.errors import Conflict
from twinscope_service.join.records import Outcome

JOINED, WAITING, DUPLICATE = Outcome.JOINED, Outcome.WAITING, Outcome.DUPLICATE
LATE, RETOKENIZED = Outcome.LATE, Outcome.RETOKENIZED
SAMPLES = make_samples(7, 6)


def test_the_step_comes_from_the_train_side() -> None:
    """A rollout that knows no step waits; the trainer's batch tells where it belongs."""
    desk = Desk()
    assert outcomes(desk.send(batch_of(SAMPLES, "rollout"))) == [WAITING] * 6
    assert desk.join.steps == {}

    plan = desk.send(batch_of(SAMPLES[:2], "train", step=41))

    assert outcomes(plan) == [JOINED] * 2
    assert plan.steps == (41,)
    assert [pair.step for pair in desk.pairs] == [41, 41]
    assert desk.join.waiting_samples == 4


def test_the_train_side_may_come_first() -> None:
    """Either side waits for the other."""
    desk = Desk()
    desk.send(batch_of(SAMPLES, "train", step=1))
    assert outcomes(desk.send(batch_of(SAMPLES[::-1], "rollout"))) == [JOINED] * 6
    assert desk.join.waiting_samples == desk.join.waiting_tokens == 0


def test_a_told_step_is_kept_apart_from_another() -> None:
    """The same id in two steps is two samples when both sides say so."""
    desk = Desk()
    later = [replace(s, q=s.q * 2, p=s.p * 2) for s in SAMPLES]
    desk.send(batch_of(SAMPLES, "rollout", step=1))
    desk.send(batch_of(later, "rollout", step=2))
    desk.send(batch_of(later, "train", step=2))

    assert [pair.step for pair in desk.pairs] == [2] * 6
    assert desk.join.steps[1].waiting() == {"rollout": 6}
    assert outcomes(desk.send(batch_of(SAMPLES, "train", step=1))) == [JOINED] * 6


def test_an_equal_step_is_preferred_to_an_unknown_one() -> None:
    """A hinted rollout is taken before one without a hint, even if that came first."""
    desk = Desk()
    old = [replace(s, q=s.q - 1) for s in SAMPLES]
    desk.send(batch_of(SAMPLES, "train", step=1))
    desk.send(batch_of(SAMPLES, "train", step=2))
    desk.send(batch_of(old, "rollout", step=2))
    desk.send(batch_of(SAMPLES, "rollout"))

    assert sorted((pair.step, pair.rollout.batch) for pair in desk.pairs) == [
        *[(1, 4)] * 6,
        *[(2, 3)] * 6,
    ]


def test_of_two_that_wait_the_one_with_the_same_tokens_is_met() -> None:
    """A reused id without a step goes where the tokens are equal, not where it came first."""
    desk = Desk()
    other = [replace(s, ids=s.ids + 1) for s in SAMPLES[1:2]]
    desk.send(batch_of(other, "train", step=1))
    desk.send(batch_of(SAMPLES[1:2], "train", step=2))

    desk.send(batch_of(SAMPLES[1:2], "rollout"))

    assert [pair.step for pair in desk.pairs] == [2]


@pytest.mark.parametrize("side", ["rollout", "train"])
def test_the_same_values_again_are_duplicates(side: str) -> None:
    """Whether the pair is complete or not."""
    desk = Desk()
    desk.send(batch_of(SAMPLES, side, step=1))
    assert outcomes(desk.send(batch_of(SAMPLES[2:], side, step=1))) == [DUPLICATE] * 4
    desk.send(batch_of(SAMPLES, "rollout" if side == "train" else "train", step=1))
    assert outcomes(desk.send(batch_of(SAMPLES[:3], side, step=1))) == [DUPLICATE] * 3
    assert len(desk.pairs) == 6


def test_other_values_for_a_side_that_came_are_a_conflict() -> None:
    """The whole batch is refused and changes nothing."""
    desk = Desk()
    desk.send(batch_of(SAMPLES[3:], "rollout"))
    changed = [*SAMPLES[:5], replace(SAMPLES[5], q=SAMPLES[5].q - np.float32(0.5))]

    with pytest.raises(Conflict, match="s5"):
        desk.send(batch_of(changed, "rollout"))

    assert desk.join.waiting_samples == 3
    assert outcomes(desk.send(batch_of(SAMPLES, "train", step=0))) == [
        *[WAITING] * 3,
        *[JOINED] * 3,
    ]


def test_a_changed_value_in_the_middle_of_a_long_sample_is_a_conflict() -> None:
    """The quick mark looks at some values only; the arrays themselves decide."""
    long = make_samples(3, 1, longest=5000)[0]
    long = replace(long, ids=np.arange(4999, dtype=np.int32))
    long = replace(long, q=np.linspace(-3, -1, 4999, dtype=np.float32))
    changed = long.q.copy()
    changed[1777] -= 0.25
    desk = Desk()
    desk.send(batch_of([long], "rollout"))

    with pytest.raises(Conflict):
        desk.send(batch_of([replace(long, q=changed)], "rollout"))


def test_different_tokens_are_reported_and_not_measured() -> None:
    """With the index of the first difference; a prefix differs where it ends."""
    desk = Desk()
    a, b, c = _long(3)
    changed = a.ids.copy()
    changed[3] += 1
    desk.send(batch_of([a, b, c], "rollout"))
    shorter = replace(b, ids=b.ids[:-2], p=b.p[:-2])

    plan = desk.send(batch_of([replace(a, ids=changed), shorter, c], "train", step=0))

    assert outcomes(plan) == [RETOKENIZED, RETOKENIZED, JOINED]
    assert [d.first for d in desk.join.steps[0].differences] == [3, len(b.ids) - 2]
    assert desk.names() == {c.name}


def test_a_digest_proves_equal_tokens() -> None:
    """One side may send a digest in place of the ids; a wrong one is a difference."""
    a, b = _long(2)
    desk = Desk()
    desk.send(batch_of([a, b], "rollout", tokens="digest"))
    plan = desk.send(batch_of([a, replace(b, ids=b.ids + 1)], "train", step=0))

    assert outcomes(plan) == [JOINED, RETOKENIZED]
    assert desk.join.steps[0].differences[0].first is None


def test_without_tokens_only_lengths_can_differ() -> None:
    """Sample ids alone join; what cannot be seen is not claimed."""
    a, b = _long(2)
    desk = Desk()
    desk.send(batch_of([a, b], "rollout", tokens="none"))
    plan = desk.send(batch_of([a, replace(b, ids=b.ids[1:], p=b.p[1:])], "train", step=0))

    assert outcomes(plan) == [JOINED, RETOKENIZED]


def test_without_ids_the_content_joins_as_often_as_it_came() -> None:
    """A group that sampled the same response twice is two samples."""
    a, b = _long(2)
    twin = replace(a, q=a.q - np.float32(0.1), p=a.p - np.float32(0.1))
    desk = Desk()
    desk.send(batch_of([a, twin, b], "rollout", named=False))
    plan = desk.send(batch_of([twin, a], "train", step=0, named=False))
    assert outcomes(plan) == [JOINED, JOINED]
    assert outcomes(desk.send(batch_of([a, b], "train", step=0, named=False))) == [WAITING, JOINED]


def test_content_joins_by_digest_too() -> None:
    """The digest of the ids gives the same key as the ids."""
    desk = Desk()
    desk.send(batch_of(SAMPLES, "rollout", named=False, tokens="digest"))
    assert outcomes(desk.send(batch_of(SAMPLES, "train", step=0, named=False))) == [JOINED] * 6


def test_nothing_to_join_by_is_refused() -> None:
    """Neither sample ids nor tokens: the message says what to send."""
    with pytest.raises(WireError, match="sample_ids"):
        Desk().send(batch_of(SAMPLES, "rollout", named=False, tokens="none"))


def test_a_pair_waits_for_the_reference_side_only_where_it_is_expected() -> None:
    """`expect` names the sides of a step; else a reference that comes too late is counted."""
    desk = Desk()
    desk.send(batch_of(SAMPLES, "rollout"))
    plan = desk.send(batch_of(SAMPLES, "train", step=0, expect={"train": 6, "ref": 6}))
    assert outcomes(plan) == [WAITING] * 6
    assert outcomes(desk.send(batch_of(SAMPLES, "ref"))) == [JOINED] * 6
    assert all(pair.ref is not None for pair in desk.pairs)

    other = Desk()
    other.send(batch_of(SAMPLES, "rollout"))
    assert outcomes(other.send(batch_of(SAMPLES, "train", step=0))) == [JOINED] * 6
    assert outcomes(other.send(batch_of(SAMPLES, "ref"))) == [LATE] * 6


def test_the_reference_side_may_come_first() -> None:
    """It waits like any other, and goes with the pair."""
    desk = Desk()
    desk.send(batch_of(SAMPLES, "ref"))
    desk.send(batch_of(SAMPLES, "rollout"))
    desk.send(batch_of(SAMPLES, "train", step=3))
    assert all(pair.ref is not None for pair in desk.pairs)
    assert desk.join.waiting_samples == desk.join.waiting_tokens == 0


def test_a_close_measures_pairs_that_waited_for_the_reference() -> None:
    """A missing reference side does not cost the pair."""
    desk = Desk()
    desk.send(batch_of(SAMPLES, "paired", step=0, expect={"ref": 6}))
    closing = desk.join.close(0)
    assert len(closing.pairs) == 6
    assert not closing.evicted
    assert desk.join.waiting_samples == desk.join.waiting_tokens == 0


def test_a_paired_batch_completes_a_side_that_waits() -> None:
    """Equal values on the side that both have; other values are a conflict."""
    desk = Desk()
    desk.send(batch_of(SAMPLES, "rollout"))
    assert outcomes(desk.send(batch_of(SAMPLES[:3], "paired", step=0))) == [JOINED] * 3
    assert desk.join.waiting_samples == 3
    with pytest.raises(Conflict):
        desk.send(batch_of([replace(SAMPLES[4], q=SAMPLES[4].q - 1)], "paired", step=0))


def test_a_step_is_complete_when_all_that_is_expected_has_met() -> None:
    """Not before, and not without an expectation."""
    desk = Desk()
    desk.send(batch_of(SAMPLES[:4], "train", step=0, expect={"rollout": 6, "train": 6}))
    desk.send(batch_of(SAMPLES, "rollout"))
    assert not desk.join.steps[0].complete
    desk.send(batch_of(SAMPLES[4:], "train", step=0))
    assert desk.join.steps[0].complete
    desk.send(batch_of(SAMPLES, "paired", step=1))
    assert not desk.join.steps[1].complete


def _long(count: int) -> list[Sample]:
    return [s for s in make_samples(1, 30) if len(s.ids) > 6][:count]
