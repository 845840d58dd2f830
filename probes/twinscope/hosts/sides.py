"""What a trainer's batch becomes: one call of the probe, with the sides that are really there.

Readers of trainers (this folder) speak one vocabulary, that of `Probe.pair`. A batch may lack a
side: the frameworks skip the trainer's log-probs, or never ask the engine for its own. Then the
side that is there is sent alone, and the step stays `unknown` instead of looking equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from twinscope.fields import FIELDS_BY_SIDE
from twinscope.probe import Probe

Side = Literal["rollout", "train", "paired"]
NAMES = {"logprobs", "version", "fingerprint"}  # without a side's prefix in one-sided calls


@dataclass(frozen=True)
class Call:
    """One call of the probe: its side and arguments."""

    side: Side
    fields: dict[str, Any]


def choose(fields: Mapping[str, Any], *, only: Literal["train"] | None = None) -> Call | None:
    """The call that `fields` (arguments of `Probe.pair`) allow; None: no log-probs at all.

    None values count as absent. `only="train"`: the other side comes from somewhere else.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    has_rollout = "rollout_logprobs" in given and only != "train"
    has_train = "train_logprobs" in given
    if has_rollout and has_train:
        return Call("paired", given)
    if not has_rollout and not has_train:
        return None
    side: Side = "train" if has_train else "rollout"
    renamed = {
        name.removeprefix(f"{side}_") if name.removeprefix(f"{side}_") in NAMES else name: value
        for name, value in given.items()
    }
    known = FIELDS_BY_SIDE[side] | {"logprobs"}
    return Call(side, {name: value for name, value in renamed.items() if name in known})


def send(probe: Probe, call: Call | None, *, step: int) -> bool:
    """Make the call. False: nothing to send, or not taken."""
    if call is None:
        return False
    if call.side == "paired":
        return probe.pair(step=step, **call.fields)
    if call.side == "train":
        return probe.train(step=step, **call.fields)
    return probe.rollout(step=step, **call.fields)
