"""KL estimators for the algorithm layer, the same arithmetic as the monitor's, differentiable.

For tokens drawn from the policy π with log-probs `log_probs`, and a reference with log-probs
`ref_log_probs` (nats, same shape), Δ = ref − π and r = e^Δ; every estimator has mean KL(π‖ref):

| name | value | gradient with respect to log π |
|---|---|---|
| k1 | −Δ | 1 |
| k2 | Δ²/2 | −Δ |
| k3 | e^Δ − 1 − Δ | 1 − r |
| abs | \\|Δ\\| | −sign Δ (no KL: the mean absolute log ratio) |
| k3+ | value of k3 | gradient of k2, whose mean is the gradient of the KL |

torch is imported when a function is called, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinscope.errors import ConfigError

if TYPE_CHECKING:
    import torch

ESTIMATORS = ("k1", "k2", "k3", "abs", "k3+")
_TERMS = {"float64": 18, "other": 10}  # of the series for |Δ| <= 1/2, to the last digit
_NEAR = 0.5


def approx_kl(
    log_probs: torch.Tensor,
    ref_log_probs: torch.Tensor,
    estimator: str = "k3",
    clamp: float | None = 20.0,
) -> torch.Tensor:
    """Per-token estimate of KL(policy‖ref), shape and device of the inputs.

    `clamp` bounds |Δ| in nats before exp (None: no bound); beyond it the gradient is 0. bfloat16
    and float16 inputs are computed in float32 and returned so: their grid is coarser than the KL.
    """
    if estimator not in ESTIMATORS:
        raise ConfigError(f"estimator: got {estimator!r}; use one of {', '.join(ESTIMATORS)}")
    if clamp is not None and not clamp > 0:
        raise ConfigError(f"clamp: got {clamp!r}; use a positive number of nats, or None")
    if log_probs.shape != ref_log_probs.shape:
        shapes = f"{tuple(log_probs.shape)} and {tuple(ref_log_probs.shape)}"
        raise ConfigError(f"log_probs, ref_log_probs: got shapes {shapes}; use equal shapes")
    delta = _widened(ref_log_probs) - _widened(log_probs)
    if clamp is not None:
        delta = delta.clamp(-clamp, clamp)
    if estimator == "k1":
        return -delta
    if estimator == "abs":
        return delta.abs()
    square = delta * delta / 2
    if estimator == "k2":
        return square
    if estimator == "k3":
        return _k3(delta)
    return square + (_k3(delta) - square).detach()


def masked_mean(
    values: torch.Tensor, mask: torch.Tensor | None = None, *, dim: int | None = None
) -> torch.Tensor:
    """Mean of `values` where `mask` is not 0, over `dim` or everything.

    What is masked out may be NaN or infinite and reaches neither value nor gradient. The sum is
    taken in float64. Nothing left to average gives NaN: there is no such mean.
    """
    import torch

    if mask is None:
        mask = torch.ones_like(values, dtype=torch.bool)
    chosen = mask != 0
    kept = torch.where(chosen, values, torch.zeros_like(values)).double()
    total = kept.sum() if dim is None else kept.sum(dim)
    count = chosen.sum() if dim is None else chosen.sum(dim)
    return (total / count).to(_widened(values).dtype)


def _widened(x: torch.Tensor) -> torch.Tensor:
    """float32 for half precision, else as it is."""
    import torch

    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _k3(delta: torch.Tensor) -> torch.Tensor:
    """e^Δ − 1 − Δ: a series for |Δ| <= ½, expm1(Δ) − Δ beyond; differentiable in both."""
    import torch

    near = delta.abs() <= _NEAR
    small = torch.where(near, delta, torch.zeros_like(delta))
    large = torch.where(near, torch.zeros_like(delta), delta)
    terms = _TERMS["float64" if delta.dtype == torch.float64 else "other"]
    series: Any = torch.ones_like(small)
    for n in range(terms, 2, -1):
        series = 1.0 + small / n * series
    return torch.where(near, small * small / 2 * series, torch.expm1(large) - large)
