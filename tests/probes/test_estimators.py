"""approx_kl and masked_mean: values against decimals, gradients against the formulas."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal, localcontext

import pytest

from twinscope import approx_kl, masked_mean
from twinscope.errors import ConfigError

torch = pytest.importorskip("torch")


def exact_k3(delta: float) -> float:
    """e^Δ − 1 − Δ from 60 digits."""
    with localcontext() as context:
        context.prec = 60
        x = Decimal(delta)
        return float(x.exp() - 1 - x)


@pytest.mark.parametrize(("dtype", "rel"), [("float64", 1e-13), ("float32", 1e-6)])
@pytest.mark.parametrize("scale", [1e-6, 1e-4, 1e-2, 0.4, 0.6, 3.0, 15.0])
def test_k3_is_right_for_small_and_large_differences(dtype: str, rel: float, scale: float) -> None:
    """ref = 0 makes Δ exact in either precision."""
    log_probs = (scale * torch.tensor([-1.0, -0.3, 0.7, 1.0])).to(getattr(torch, dtype))
    found = approx_kl(log_probs, torch.zeros_like(log_probs))
    for x, value in zip(log_probs.tolist(), found.tolist(), strict=True):
        assert value == pytest.approx(exact_k3(-x), rel=rel)


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        ("k1", lambda d: -d, lambda d: torch.ones_like(d)),
        ("k2", lambda d: d * d / 2, lambda d: -d),
        ("k3", lambda d: torch.expm1(d) - d, lambda d: 1 - torch.exp(d)),
        ("abs", lambda d: d.abs(), lambda d: -torch.sign(d)),
        ("k3+", lambda d: torch.expm1(d) - d, lambda d: -d),
    ],
)
def test_each_estimator_has_its_value_and_its_gradient(estimator, value, gradient) -> None:
    """The table in the module's docstring, in float64."""
    d = torch.tensor([-2.0, -0.5, -0.1, 0.2, 0.5, 1.5], dtype=torch.float64)
    log_probs = torch.full_like(d, -3.0).requires_grad_()
    found = approx_kl(log_probs, log_probs.detach() + d, estimator=estimator)
    torch.testing.assert_close(found.detach(), value(d), rtol=1e-12, atol=0)
    (got,) = torch.autograd.grad(found.sum(), log_probs)
    torch.testing.assert_close(got, gradient(d), rtol=1e-12, atol=1e-15)


def test_gradients_agree_with_finite_differences() -> None:
    """On both sides of where the series ends."""
    x = torch.tensor([-0.49, -0.51, 0.49, 0.51, 1e-3], dtype=torch.float64, requires_grad=True)
    ref = torch.zeros(5, dtype=torch.float64)
    for name in ("k1", "k2", "k3", "abs"):
        assert torch.autograd.gradcheck(lambda y, n=name: approx_kl(y, ref, estimator=n), x)


def test_a_huge_difference_is_clamped() -> None:
    """98 nats: no infinity, no gradient."""
    x = torch.tensor([-98.0], requires_grad=True)
    found = approx_kl(x, torch.zeros(1))
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert x.grad.item() == 0.0


def test_half_precision_is_widened_before_the_difference() -> None:
    """The result is that of the float32 values of the inputs."""
    a, b = torch.tensor([-1.5, -2.0]).bfloat16(), torch.tensor([-1.0, -2.5]).bfloat16()
    found = approx_kl(a, b)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, approx_kl(a.float(), b.float()))


def test_masked_mean_ignores_what_is_masked_even_nan() -> None:
    """In value and in gradient, whole and by row."""
    values = torch.tensor([[1.0, float("nan")], [3.0, 5.0]], requires_grad=True)
    mask = torch.tensor([[1, 0], [1, 1]])
    whole = masked_mean(values, mask)
    assert whole.item() == pytest.approx(3.0)
    whole.backward()
    assert values.grad.tolist()[0][1] == 0.0
    assert masked_mean(values, mask, dim=1).tolist() == [1.0, 4.0]
    assert masked_mean(torch.tensor([2.0, 4.0])).item() == 3.0
    assert torch.isnan(masked_mean(values, torch.zeros_like(mask)))


def test_masked_mean_keeps_digits_that_float32_sums_lose() -> None:
    """Ten million equal values: their mean is that value."""
    values = torch.full((10_000_000,), 0.1)
    assert masked_mean(values).item() == pytest.approx(0.1, rel=1e-7)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"estimator": "k4"}, "estimator"), ({"clamp": 0.0}, "clamp")],
)
def test_bad_arguments_are_refused_by_name(arguments: dict[str, object], field: str) -> None:
    """With what was given and what to give."""
    with pytest.raises(ConfigError, match=field):
        approx_kl(torch.zeros(2), torch.zeros(2), **arguments)
    with pytest.raises(ConfigError, match="shape"):
        approx_kl(torch.zeros(2), torch.zeros(3))


def test_naming_the_functions_does_not_import_torch() -> None:
    """torch comes with the first call."""
    code = "import sys, twinscope; twinscope.approx_kl; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
