"""How far a level of disagreement is from what healthy pairs of its class show."""

from __future__ import annotations

from math import log

import numpy as np

from twinscope_service.diagnose.view import View
from twinscope_service.measure.formulas import DISAGREE, LOG_HALF, k3

# k3 at which half of the pairs of a class are faulty: above every healthy trace we have of it,
# below the reported faults (bands of docs/diagnosis.md, our synthesis).
HALF_WAY = {"dense": 6e-3, "moe": 1.5e-2, "quantized": 2e-2, "hybrid": 6e-2}
COOLING = -0.6  # exponent of T in the healthy k3, from healthy pairs at T 0.5 to 1.6
FEW = 1e-3  # share of tokens
BASELINE_FACTOR = 3.0  # where the run has a healthy baseline: that many times its k3


def model_class(view: View) -> str:
    """dense, moe, quantized or hybrid, by the fingerprints; dense when they say nothing."""
    rollout, train = view.context.rollout or {}, view.context.train or {}
    if str(rollout.get("quantization") or "none").lower() not in ("none", "null", "false", ""):
        return "quantized"
    words = " ".join(str(p.get(k, "")) for p in (rollout, train) for k in ("model", "architecture"))
    if any(p.get(k) for p in (rollout, train) for k in ("num_experts", "moe")):
        return "moe"
    lowered = words.lower()
    if any(word in lowered for word in ("moe", "expert", "mixtral", "deepseek")):
        return "moe"
    return "hybrid" if any(w in lowered for w in ("mamba", "hybrid", "nemotron-h")) else "dense"


def level_strength(view: View) -> float:
    """0 at the healthy floor, 1 at the half-way level, in between by the logarithm; at most 3."""
    return level_at(view, shared_k3(view)) if view.tokens >= 100 else 0.0


def level_at(view: View, k3: float | None) -> float:
    """The same for the k3 of a part of the samples; 0 where there is none."""
    if k3 is None or k3 <= 0.0:
        return 0.0
    half_way = HALF_WAY[model_class(view)]
    if view.history is not None and view.history.baseline is not None:
        half_way = max(BASELINE_FACTOR * view.floor, 1e-4)
    floor = min(view.floor, half_way / 2.0)
    return min(max(log(k3 / floor) / log(half_way / floor), 0.0), 3.0)


def shared_k3(view: View) -> float:
    """k3 of what all tokens share: without a few of which only the engine is sure.

    Two in ten thousand double the mean and say nothing of the others. Many are part of the level;
    so are those of some samples only, whose worst tokens are not known by themselves.
    """
    wild = [t for t in view.summary.worst if t.q > LOG_HALF and t.q - t.p > DISAGREE]
    few = len(wild) == view.total("confident_disagreement") <= FEW * view.tokens
    if not view.whole or not few:
        return view.k3
    return view.k3 - sum(float(k3(np.array(t.p - t.q))) for t in wild) / view.tokens


def usual_k3(view: View) -> float:
    """The most that precision and kernels alone give in pairs of this class."""
    return HALF_WAY[model_class(view)] / 2.0


def expected_floor(view: View, *, temperature: float = 1.0) -> float:
    """k3 that this pair would have without its fault: the run's own, else typical by precision.

    The typical one falls with the sampling temperature: the same noise on the logits is divided
    by it, and colder laws are surer of their tokens.
    """
    if view.history is not None and view.history.baseline is not None:
        return view.floor
    precise = "32" in str((view.context.train or {}).get("dtype", ""))
    return (1.1e-3 if precise else 2e-3) * float(temperature**COOLING)
