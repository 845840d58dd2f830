"""The whole service with engine = fpga on a card that fails: nothing is lost, metrics say so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

FALLBACK = 'twinscope_engine_fallback_total{reason="bad_record"}'
INFO = 'twinscope_engine_info{{device="{}",engine="fpga"}}'


def test_a_damaged_record_is_measured_again_and_counted(
    card: Any,
    start: Callable[..., Any],
    batch: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Step 0 on the card, step 1 with a broken checksum, step 2 on the card again: three equal
    results, one fallback by its cause, and the device named as long as one is open."""
    monkeypatch.setenv("TWINSCOPE_FPGA_DEVICE", f"board:{card.prefix}")
    service = start(engine="fpga")
    expected = (math.exp(-0.5) - 0.5) / 2  # Δ is 0 and -1/2
    for step, fault in enumerate(("", "corrupt", "")):
        card.fault = fault
        body = batch(q=[-1.0, -2.0], p=[-1.0, -2.5], run="r", step=step)
        assert service.send(body).status_code == 202
        assert service.post(f"/v1/runs/r/steps/{step}/close").status_code == 200
        metrics = service.get(f"/v1/runs/r/steps/{step}").json()["metrics"]
        assert metrics["k3_mean"] == pytest.approx(expected, rel=1e-6)
        if step:
            assert service.metric(FALLBACK) == 1
    assert service.metric(INFO.format("board")) == 1
