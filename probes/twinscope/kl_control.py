"""The coefficient β of a KL penalty, steered so that the measured KL stays near a target.

Proportional control in log space (Ziegler et al. 2019, arXiv 1909.08593 §2.2):

    e = clip(KL / target − 1, −limit, limit)        β ← β · (1 + e · samples / horizon)

With a KL above its target β grows, below it shrinks; `horizon` samples at the limit change β by a
factor of about e^limit. Units: whatever KL is measured in, as long as the target is in the same
(TwinScope's `policy_ref_kl` is nats per token). Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from twinscope.errors import ConfigError


class AdaptiveKLController:
    """β for the next batch from the KL of this one. Not thread-safe: one per trainer.

    `target`: the KL to hold. `horizon`: samples over which a limit error acts fully. `bounds`: β
    never leaves them. `limit`: largest relative error that counts in one update.
    """

    def __init__(
        self, beta: float, *, target: float, horizon: int = 10_000,
        bounds: tuple[float, float] = (1e-6, 10.0), limit: float = 0.2,
    ) -> None:  # fmt: skip
        low, high = bounds
        _require(0 < low <= high < math.inf, "bounds", bounds, "0 < low <= high")
        _require(low <= beta <= high, "beta", beta, f"a number within bounds {bounds}")
        _require(0 < target < math.inf, "target", target, "a KL above 0")
        _require(horizon >= 1, "horizon", horizon, "at least 1 sample")
        _require(0 < limit < 1, "limit", limit, "a number between 0 and 1")
        self.beta = float(beta)
        self.target, self.horizon, self.bounds, self.limit = target, horizon, bounds, limit

    def update(self, kl: float | None, *, samples: int) -> float:
        """Take in the KL of a batch of `samples`; the new β.

        A KL that is unknown (None, NaN, infinite) changes nothing: steering by nothing is worse
        than holding still.
        """
        _require(samples >= 0, "samples", samples, "the size of the batch, 0 or more")
        if kl is None or not math.isfinite(kl):
            return self.beta
        error = min(max(kl / self.target - 1.0, -self.limit), self.limit)
        # at most a halving or a doubling per update, however large the batch
        factor = min(max(1.0 + error * samples / self.horizon, 0.5), 2.0)
        self.beta = min(max(self.beta * factor, self.bounds[0]), self.bounds[1])
        return self.beta

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"beta": self.beta}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; a β outside the present bounds is brought to them."""
        beta = float(state["beta"])
        _require(math.isfinite(beta), "beta", beta, "a finite number")
        self.beta = min(max(beta, self.bounds[0]), self.bounds[1])


def _require(holds: bool, name: str, value: object, use: str) -> None:
    if not holds:
        raise ConfigError(f"{name}: got {value!r}; use {use}")
