"""Recorded healthy pairs that ship with the service, the full set where it is, one engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from twinscope.wire.batch import Batch
from twinscope_service.diagnose.cause import Cause
from twinscope_service.diagnose.rank import diagnose
from twinscope_service.lab.cases import Case, recorded, summarise
from twinscope_service.measure.engine import build_engine
from twinscope_service.replay import recording

Diagnose = Callable[[Batch], tuple[Cause, ...]]


@pytest.fixture(scope="session")
def diagnosed() -> Diagnose:
    """Measure a paired batch with the reference engine and diagnose it."""
    engine = build_engine("reference")

    def run(batch: Batch) -> tuple[Cause, ...]:
        summary, context = summarise(batch, engine)
        return diagnose(summary, context=context)

    return run


@pytest.fixture(scope="session")
def healthy() -> Case:
    """96 samples, 10 465 tokens, both sides in bfloat16, with entropy, padding and token ids."""
    return Case("healthy_bf16", ("numerical_noise",), recording("healthy_bf16"), "healthy_bf16")


@pytest.fixture(scope="session")
def traces() -> list[Case]:
    """The full labelled set, from the folder in TWINSCOPE_TRACES."""
    folder = os.environ.get("TWINSCOPE_TRACES")
    if not folder:
        pytest.skip("TWINSCOPE_TRACES does not name the folder of recorded traces")
    return recorded(Path(folder))
