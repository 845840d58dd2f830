"""Diagnosis: from a Summary and what is known around it to ranked causes, best first."""

from __future__ import annotations

from dataclasses import dataclass

from twinscope_service.diagnose.cause import Cause
from twinscope_service.diagnose.context import Context, History
from twinscope_service.measure.records import MeasureOptions, Summary


@dataclass(frozen=True)
class DiagnoseOptions:
    """`least_confidence`: causes below it are not reported; `most_causes`: length of the answer."""

    least_confidence: float = 0.2
    most_causes: int = 6
    measure: MeasureOptions = MeasureOptions()


def diagnose(
    summary: Summary,
    *,
    context: Context,
    history: History | None = None,
    options: DiagnoseOptions | None = None,
) -> tuple[Cause, ...]:
    """Ranked causes, best first; `numerical_noise` first when nothing is wrong. Pure."""
    raise NotImplementedError("lands next: the records are published first")
