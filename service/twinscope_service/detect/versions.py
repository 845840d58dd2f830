"""What the weight versions of a step say by themselves: they contradict, or stand still."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from twinscope_service.measure.records import ATTRIBUTE, Summary

STILL = 10  # steps in a row at one train_version before a word is said
USUAL_TIMES = 3  # ... and this many times the longest wait that the run has shown
CHANGES = 3  # of the version, before a run's own pace is known

Scalars = Callable[[int], Mapping[str, float]]  # step -> what the trainer sent of it


@dataclass(frozen=True)
class Weights:
    """The trainer's newest weight version in one closed step; None: not sent."""

    step: int
    version: int | None


@dataclass(frozen=True)
class Sync:
    """One `weight_sync` event."""

    step: int | None
    fields: Mapping[str, Any]


def ahead(summary: Summary) -> str | None:
    """Samples whose engine had newer weights than the trainer that scores them, in words.

    Tokens are scored by the weights that made them or by later ones. Versions that say otherwise
    are wrong, or the trainer went back: what differs at equal weights is not known then.
    """
    rows = summary.rows
    rollout, train = ATTRIBUTE["rollout_version"], ATTRIBUTE["train_version"]
    known = (rows.known >> rollout) & (rows.known >> train) & 1 == 1
    early = known & (rows.attributes[:, rollout] > rows.attributes[:, train])
    if early.any():
        gap = rows.attributes[early, rollout] - rows.attributes[early, train]
        worst = np.flatnonzero(early)[int(np.argmax(gap))]
        engine, trainer = (int(rows.attributes[worst, index]) for index in (rollout, train))
        samples = f"{int(early.sum())} of {len(rows.keys)} samples"
    elif not len(rows.keys) and min(summary.version_lag, default=0) < 0:
        engine, trainer = -min(summary.version_lag), 0
        samples = "some samples"
    else:
        return None
    return (
        f"the engine is ahead of the trainer on {samples} (rollout_version {engine}, train_version "
        f"{trainer}): did the trainer go back to a checkpoint, or does one side count otherwise?"
    )


def standing_still(known: Sequence[Weights], *, scalars: Scalars) -> str | None:
    """A train_version that does not move although steps go on, in words. `known`: oldest first.

    Weights may rest by design: nothing is said where versions are not sent, where `lr` was sent as
    0, or where the version never moved and nothing that was sent (`grad_norm`, `lr`) proves that
    updates were made.
    """
    if not known or known[-1].version is None:
        return None
    moves = _moves(known)
    since = moves[-1] if moves else known[0].step
    still = [w.step for w in known if w.step >= since]
    longest = max((b - a for a, b in pairwise(moves)), default=0)
    if len(still) <= STILL:
        return None
    sent = [scalars(step) for step in still[-1 - STILL : -1]]
    if any(values.get("lr") == 0.0 for values in sent):
        return None
    said = f"train_version is {known[-1].version} since step {since}, {len(still)} steps ago"
    if len(moves) > CHANGES and known[-1].step - since > USUAL_TIMES * longest:
        return f"{said}; before, it moved within {longest} or fewer: do updates still happen?"
    if all(values.get("grad_norm", values.get("lr", 0.0)) > 0.0 for values in sent) and not moves:
        return f"{said}, and gradients were sent meanwhile: do updates reach the weights?"
    return None


def _moves(known: Sequence[Weights]) -> list[int]:
    """The steps at which the version was another than in the step before."""
    pairs = [(a, b) for a, b in pairwise(known) if None not in (a.version, b.version)]
    return [b.step for a, b in pairs if a.version != b.version]


def same_sync(syncs: Sequence[Sync], *, step: int) -> str | None:
    """Two syncs in a row that carried the same digest, the later one at this step or just before.

    `syncs`: oldest first. Equal versions in both say that the weights had not moved: no word.
    """
    digests = [sync for sync in syncs if sync.step is not None and sync.fields.get("digest")]
    if len(digests) < 2:
        return None
    first, last = digests[-2:]
    if last.step not in (step - 1, step) or first.fields["digest"] != last.fields["digest"]:
        return None
    if first.step == last.step or _same_version(first, last):
        return None
    return (
        f"the weight syncs of steps {first.step} and {last.step} carried the same digest: the "
        "engine got no new weights"
    )


def _same_version(first: Sync, last: Sync) -> bool:
    version = first.fields.get("version")
    return version is not None and version == last.fields.get("version")
