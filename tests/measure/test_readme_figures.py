"""The figures of the README's comparison: k3 of a small mismatch, as frameworks compute it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from twinscope_service.measure.formulas import k3


@pytest.mark.parametrize("seed", range(3))
def test_the_usual_float32_forms_lose_a_mismatch_of_1e_4(seed: int) -> None:
    """100 000 tokens with -log q ~ Exp(1), σ(Δ) = 1e-4, against the exact value by its series."""
    rng = np.random.default_rng(seed)
    q = -rng.exponential(size=100_000).astype(np.float32)
    p = (q + 1e-4 * rng.standard_normal(len(q))).astype(np.float32)
    d = p - q
    exact = d.astype(np.float64)
    true = exact**2 / 2 + exact**3 / 6 + exact**4 / 24
    plain = np.abs(exact) > 5e-5  # the others hold next to nothing of the mean
    one = np.float32(1)
    t = torch.from_numpy(d)
    theirs = ((torch.exp(t) - t - 1).numpy(), (torch.exp(t) - 1 - t).numpy())
    for naive in (np.exp(d) - d - one, np.exp(d) - one - d, *theirs):
        off = np.abs(naive[plain] / true[plain] - 1)
        assert np.mean(off >= 1) > 0.9
        assert abs(np.mean(naive, dtype=np.float64) / np.mean(true) - 1) > 0.05
    assert np.mean(k3(exact)) == pytest.approx(np.mean(true), rel=1e-6)
