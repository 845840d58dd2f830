# ruff: noqa: E501  (one text per line reads as the table it is)
"""Reward against KL(policy‖reference): what an experienced engineer would say about the two curves.

Pure: the latest steps of both curves in, one piece of advice out. A change counts when the medians
of the first and the last third of the window differ by more than chance would make them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Kind = Literal["too_early", "fine", "beta_small", "beta_large", "ratio_rising", "drift"]

WINDOW, LEAST = 60, 30  # steps looked at; fewer than LEAST give no advice
SIGNIFICANT = 4.0  # standard errors between the medians of two thirds
DEARER = 1.5  # cost of reward in KL, second half over first half of the window


@dataclass(frozen=True)
class Advice:
    """What to do about β, the coefficient of the KL penalty, and the numbers behind it."""

    kind: Kind
    title: str
    text: str
    reward_change: float | None = None  # last third minus first third of the window
    kl_factor: float | None = None  # last third over first third
    steps: int = 0  # in the window

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


# fmt: off
TEXTS: dict[Kind, tuple[str, str]] = {
    "too_early": ("Too early to say", "Advice needs {least} steps with reward and reference log-probs; there are {steps}."),
    "fine": ("Reward grows without drifting away", "Over {steps} steps the reward changed by {reward:+.3g} while the KL changed by a factor of {factor:.2f}. Leave β as it is."),
    "beta_small": ("Reward and KL rise together", "Over {steps} steps the reward rose by {reward:+.3g} and the KL by a factor of {factor:.2f}: the penalty does not hold the policy. If the KL has no ceiling in sight, raise β, or let an adaptive controller hold a target."),
    "beta_large": ("Neither reward nor KL moves", "Over {steps} steps the reward changed by {reward:+.3g} and the KL by a factor of {factor:.2f}, both within noise. β (or too small a learning rate) holds the policy at its reference: lower β, or check that the reward can be earned."),
    "ratio_rising": ("Reward gets dearer", "A unit of reward costs {dearer:.1f} times the KL it cost in the first half of the last {steps} steps (reward {reward:+.3g}, KL times {factor:.2f}). This is how reward hacking begins: read samples, check the reward model, raise β or stop earlier."),
    "drift": ("KL rises and reward does not", "Over {steps} steps the KL rose by a factor of {factor:.2f} while the reward changed by {reward:+.3g}. The policy pays and gets nothing: reward hacking, a broken reward or too high a learning rate. Raise β and read samples."),
}
# fmt: on


def advise(reward: Sequence[float | None], kl: Sequence[float | None]) -> Advice:
    """Advice on the latest WINDOW steps where both are known. `kl`: nats per token, k3."""
    both = [
        (r, k) for r, k in zip(reward, kl, strict=True) if r is not None and k is not None and k > 0
    ][-WINDOW:]
    if len(both) < LEAST:
        title, text = TEXTS["too_early"]
        return Advice("too_early", title, text.format(least=LEAST, steps=len(both)), None, None,
                      len(both))  # fmt: skip
    r, k = (np.array(column, np.float64) for column in zip(*both, strict=True))
    log_kl = np.log(k)
    gain, dearer = _change(r), _cost_ratio(r, k)
    kind = _kind(_moves(r), _moves(log_kl), dearer)
    factor = math.exp(_change(log_kl))
    title, text = TEXTS[kind]
    said = text.format(steps=len(both), reward=gain, factor=factor, dearer=dearer or 0.0)
    return Advice(kind, title, said, gain, factor, len(both))


def _kind(reward: int, kl: int, dearer: float | None) -> Kind:
    """`reward`, `kl`: −1 falls, 0 within noise, 1 rises."""
    if kl > 0 and reward <= 0:
        return "drift"
    if kl > 0 and dearer is not None and dearer > DEARER:
        return "ratio_rising"
    if kl > 0:
        return "beta_small"
    return "beta_large" if reward == 0 and kl == 0 else "fine"


def _change(values: F64) -> float:
    """Median of the last third minus median of the first third."""
    third = len(values) // 3
    return float(np.median(values[-third:]) - np.median(values[:third]))


def _moves(values: F64) -> int:
    """Sign of the change, 0 if it is within noise. Noise: differences of neighbours, which a
    trend hardly touches; 1.2533 σ/√n is the standard error of a median of n values."""
    third = len(values) // 3
    sigma = float(np.median(np.abs(np.diff(values)))) * 1.4826 / math.sqrt(2)
    error = 1.2533 * sigma * math.sqrt(2 / third)
    change = _change(values)
    return 0 if abs(change) <= SIGNIFICANT * error or change == 0 else int(math.copysign(1, change))


def _cost_ratio(reward: F64, kl: F64) -> float | None:
    """KL paid per reward in the second half over that in the first; None where reward fell."""
    half = len(reward) // 2
    first, second = (_change(part) for part in (reward[:half], reward[half:]))
    paid_first, paid_second = (_change(part) for part in (kl[:half], kl[half:]))
    if first <= 0 or second <= 0 or paid_first <= 0:
        return None
    return (paid_second / second) / (paid_first / first)
