"""The pure stages the pipeline runs, in one record; and the one place where a stage may crash."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from twinscope.wire.limits import Limits
from twinscope_service.clock import Clock
from twinscope_service.config import Settings
from twinscope_service.detect.bands import K3_BANDS, Band, Bands, Judgement, StepFacts, judge
from twinscope_service.detect.findings import DetectOptions
from twinscope_service.detect.watch import Overdue, build_detect, build_overdue
from twinscope_service.diagnose.cause import Cause
from twinscope_service.diagnose.context import Context, History
from twinscope_service.diagnose.rank import DiagnoseOptions, diagnose
from twinscope_service.measure.derive import derive
from twinscope_service.measure.engine import MeasureEngine, build_engine
from twinscope_service.measure.records import MeasureOptions, Summary
from twinscope_service.views import AlertView, Metrics, StepView

log = logging.getLogger(__name__)

DetectorState = Mapping[str, Any]  # JSON


class Judge(Protocol):
    """detect.bands.judge."""

    def __call__(
        self, summary: Summary, metrics: Metrics, *, facts: StepFacts, bands: Bands
    ) -> Judgement:
        """The first verdict of a step."""
        ...


class Detect(Protocol):
    """The detectors: state of the run in, state and alerts out."""

    def __call__(
        self, state: DetectorState | None, view: StepView, summary: Summary, /
    ) -> tuple[DetectorState | None, Sequence[AlertView]]:
        """Watch one closed step."""
        ...


class Diagnose(Protocol):
    """diagnose.rank.diagnose."""

    def __call__(
        self, summary: Summary, *, context: Context, history: History
    ) -> tuple[Cause, ...]:
        """The ranked causes of a step."""
        ...


@dataclass(frozen=True)
class Stages:
    """What happens to data between join and store, with the settings it needs."""

    engine: MeasureEngine
    options: MeasureOptions
    bands: Bands
    block_tokens: int
    detect: Detect
    overdue: Overdue
    diagnose: Diagnose
    judge: Judge = judge

    def derive(self, summary: Summary) -> Metrics:
        """The metrics of a summary."""
        return derive(summary, self.options)


def build_stages(settings: Settings) -> Stages:
    """The stages that ship, as the settings want them."""
    low, high = settings.clip
    options = MeasureOptions(clamp=settings.clamp, clip_low=low, clip_high=high)
    return Stages(
        engine=build_engine(settings.engine),
        options=options,
        bands=build_bands(settings),
        block_tokens=settings.block_tokens,
        detect=build_detect(build_detect_options(settings), options),
        overdue=build_overdue(build_detect_options(settings)),
        diagnose=partial(diagnose, options=DiagnoseOptions(measure=options)),
    )


def build_detect_options(settings: Settings) -> DetectOptions:
    """What the settings say about detection. Raises ConfigError."""
    return DetectOptions(
        target_arl=settings.detect_target_arl,
        min_ratio=settings.detect_min_ratio,
        min_change=settings.detect_min_change,
        spike_ratio=settings.detect_spike_ratio,
        growth_doubling_steps=settings.detect_growth_doubling_steps,
        resolve_steps=settings.detect_resolve_steps,
        bypass_steps=settings.detect_bypass_steps,
        bypass_expected=settings.model_class == "aligned",
        silence_steps=settings.detect_silence_steps,
        silence_periods=settings.detect_silence_periods,
        silence_seconds=settings.detect_silence_seconds,
    )


def build_bands(settings: Settings) -> Bands:
    """The level bands with the changes that the settings ask for."""
    k3 = {
        name: Band(settings.k3_warn.get(name, band.warn), settings.k3_bound.get(name, band.bound))
        for name, band in K3_BANDS.items()
    }
    return Bands(
        k3=k3,
        model_class=settings.model_class,
        min_tokens=settings.min_tokens,
        min_coverage=settings.min_coverage,
        max_unusable=settings.max_unusable,
    )


def build_limits(settings: Settings) -> Limits:
    """The bounds of one batch."""
    return Limits(
        body_bytes=settings.max_body_bytes,
        json_bytes=settings.max_json_bytes,
        header_bytes=settings.max_header_bytes,
        samples=settings.max_samples,
        tokens=settings.max_tokens,
    )


class Meter:
    """Seconds and crashes per stage, since start-up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the seconds of the block to a stage."""
        start = self._clock.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] += self._clock.monotonic() - start  # type: ignore[assignment]

    @contextmanager
    def survive(self, stage: str, *, crashed: Callable[[str], object]) -> Iterator[None]:
        """Time a block and outlive what it raises: logged, counted, and told to `crashed`.

        A stage that fails on one step must not take the service down, nor pass for `ok`.
        """
        try:
            with self.time(stage):
                yield
        except Exception:
            log.exception("stage failed", extra={"stage": stage})
            self.crashes[stage] += 1
            crashed(stage)
