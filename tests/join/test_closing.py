"""What leaves the join, and what is remembered of it: late, repeated, given up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from batches import batch_of, make_samples
from hypothesis import given
from hypothesis import strategies as st
from joining import Desk, outcomes

from twinscope_service.errors import Conflict
from twinscope_service.join.memory import StepMemory
from twinscope_service.join.records import Entry, Outcome, Part

SAMPLES = make_samples(11, 8)
DUPLICATE, LATE, WAITING, JOINED = Outcome.DUPLICATE, Outcome.LATE, Outcome.WAITING, Outcome.JOINED


def _closed_desk() -> Desk:
    """Step 0 joined six samples; train sample 6 never found its rollout side."""
    desk = Desk()
    desk.send(batch_of(SAMPLES[:6], "rollout"))
    desk.send(batch_of(SAMPLES[:7], "train", step=0))
    desk.join.close(0)
    return desk


def test_data_for_a_closed_step_are_late_or_repeated() -> None:
    """Both are acknowledged and neither is kept; other values of a known sample are refused."""
    desk = _closed_desk()
    assert outcomes(desk.send(batch_of(SAMPLES[:6], "train", step=0))) == [DUPLICATE] * 6
    assert outcomes(desk.send(batch_of(SAMPLES[7:], "train", step=0))) == [LATE]
    changed = [replace(s, p=s.p - 1) for s in SAMPLES[:3]]
    with pytest.raises(Conflict, match="restart"):
        desk.send(batch_of(changed, "train", step=0))
    assert desk.join.waiting_samples == 0
    assert len(desk.pairs) == 6


def test_a_rollout_that_was_used_is_a_duplicate_even_without_a_step() -> None:
    """It is counted with the step that used it. A new sample that reuses the id is none."""
    desk = _closed_desk()
    plan = desk.send(batch_of(SAMPLES[:6], "rollout"))
    assert outcomes(plan) == [DUPLICATE] * 6
    assert {placed.step for placed in plan.placements} == {0}
    reused = [replace(s, q=s.q - 1) for s in SAMPLES[:3]]
    assert outcomes(desk.send(batch_of(reused, "rollout"))) == [WAITING] * 3


def test_a_rollout_that_its_closed_step_missed_is_late() -> None:
    """It would wait for ever: its train side was given up with the step, which counts it."""
    desk = _closed_desk()
    plan = desk.send(batch_of(SAMPLES[6:], "rollout"))
    assert outcomes(plan) == [LATE, WAITING]
    assert [placed.step for placed in plan.placements] == [0, None]


def test_a_response_without_ids_may_come_again_in_a_later_step() -> None:
    """Content is no name: the same response sampled again is a new sample."""
    desk = Desk()
    desk.send(batch_of(SAMPLES, "rollout", named=False))
    desk.send(batch_of(SAMPLES, "train", step=0, named=False))
    desk.join.close(0)
    assert outcomes(desk.send(batch_of(SAMPLES, "rollout", named=False))) == [WAITING] * 8


def test_only_the_latest_steps_are_remembered() -> None:
    """What is forgotten is late, never taken for new, as long as it tells its step."""
    desk = Desk(remember_steps=2)
    for step in range(4):
        desk.send(batch_of(SAMPLES, "paired", step=step))
        desk.join.close(step)
    assert outcomes(desk.send(batch_of(SAMPLES, "paired", step=0))) == [LATE] * 8
    assert outcomes(desk.send(batch_of(SAMPLES, "paired", step=3))) == [DUPLICATE] * 8


def test_a_restart_remembers_what_was_stored() -> None:
    """The memory of a step is bytes; a join that recalls them decides the same."""
    desk = Desk()
    desk.send(batch_of(SAMPLES[:6], "paired", step=5))
    memory = desk.join.close(5).memory
    assert len(memory) == 6 * 24

    after = Desk()
    after.join.recall(5, StepMemory.decode(memory))

    plan = after.send(batch_of(SAMPLES, "paired", step=5))
    assert outcomes(plan) == [*[DUPLICATE] * 6, *[LATE] * 2]


def test_a_batch_is_finished_when_its_last_sample_leaves() -> None:
    """Two steps used one rollout batch: its arrays are needed until the second closes."""
    desk = Desk()
    desk.send(batch_of(SAMPLES, "rollout"))
    desk.send(batch_of(SAMPLES[:4], "train", step=0))
    desk.send(batch_of(SAMPLES[4:], "train", step=1))

    first = {s.batch: s for s in desk.join.close(0).settled}
    assert not first[1].finished
    assert first[1].samples == tuple((i, JOINED) for i in range(4))
    assert first[2].finished
    assert {s.batch: s.finished for s in desk.join.close(1).settled} == {1: True, 3: True}


def test_what_was_settled_before_a_restart_is_skipped() -> None:
    """Half of a batch was used by a closed step; replayed, only the other half waits."""
    desk = Desk()
    plan = desk.send(batch_of(SAMPLES, "rollout"), skip=dict.fromkeys(range(5), JOINED))
    assert [placed.index for placed in plan.placements] == [5, 6, 7]
    assert desk.join.waiting_samples == 3


def test_samples_are_given_up_oldest_first_and_counted() -> None:
    """By time; those of a step with a train side leave with their step."""
    desk = Desk()
    desk.send(batch_of(SAMPLES[:2], "rollout"))
    desk.now = 10.0
    desk.send(batch_of(SAMPLES[2:5], "rollout"))
    desk.send(batch_of(SAMPLES[5:6], "train", step=0))

    settled, stale, samples = desk.join.evict(before=5.0)
    assert (samples, stale) == (2, set())
    assert [(s.batch, s.finished) for s in settled] == [(1, True)]
    assert desk.join.evict(before=100.0)[2] == 3
    assert desk.join.waiting_samples == 1
    assert outcomes(desk.send(batch_of(SAMPLES[5:6], "rollout"))) == [JOINED]


def test_a_step_that_only_rollouts_named_is_reported_stale() -> None:
    """Nobody will close it: the trainer never spoke of it."""
    desk = Desk()
    desk.send(batch_of(SAMPLES, "rollout", step=9))
    settled, stale, samples = desk.join.evict(before=1.0)
    assert (settled, stale, samples) == ([], {9}, 0)
    assert desk.join.close(9).evicted == {"rollout": 8}
    assert desk.join.waiting_tokens == 0


def test_tokens_can_be_freed_to_a_limit() -> None:
    """Only as many as needed."""
    desk = Desk()
    for sample in SAMPLES:
        desk.send(batch_of([sample], "rollout"))
    before = desk.join.waiting_tokens
    freed = sum(len(s.ids) for s in SAMPLES[:3])
    _, _, samples = desk.join.evict(before=0.0, over_tokens=freed)
    assert samples == 3
    assert desk.join.waiting_tokens == before - freed


@given(keys=st.lists(st.binary(min_size=16, max_size=16), max_size=30), probe=st.integers(0, 29))
def test_memory_finds_exactly_what_was_put_in(keys: list[bytes], probe: int) -> None:
    """By the first 64 bits of the key, after a round trip through bytes."""
    entries = [
        Entry(key, "", 0.0, 0, {"rollout": Part(1, i, 3, i), "train": Part(2, i, 3, i + 7)})
        for i, key in enumerate(keys)
    ]
    memory = StepMemory.decode(StepMemory.of(entries).encode())

    for i, key in enumerate(keys):
        assert (i or 1, i + 7) in memory.find(key)
    prefixes = np.array([int.from_bytes(k[:8], "little") for k in keys], np.uint64)
    assert memory.holds(prefixes) == list(range(len(keys)))
    other = keys[probe % len(keys)][:7] + b"\x00\xff" if keys else b"\x00" * 9
    expected = any(k[:8] == other[:8] for k in keys)
    assert bool(memory.find(other)) == expected
