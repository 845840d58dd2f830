"""/metrics: the catalogue filled from the pipeline at the moment of the scrape.

Nothing is kept between scrapes, so that a run which left the pipeline leaves the page as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from twinscope_service.alert.sender import Alerting
from twinscope_service.expose.catalogue import METRIC_BY_NAME, RUN_METRICS
from twinscope_service.pipeline import Pipeline
from twinscope_service.receive.body import InflightBytes
from twinscope_service.receive.traffic import Traffic
from twinscope_service.views import AlertView, Health, RunView

VERDICTS = ("ok", "inconsistent", "unknown")

# One sample: label values in the order of the catalogue, and the value; None is left out.
Sample = tuple[tuple[str, ...], float | None]
Samples = Mapping[str, Iterable[Sample]]


def build_registry(
    pipeline: Pipeline,
    *,
    traffic: Traffic,
    inflight: InflightBytes,
    alerting: Alerting | None = None,
) -> CollectorRegistry:
    """A registry of its own, with what this service exports and nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(pipeline, traffic, inflight, alerting))
    return registry


class _Scrape(Collector):
    """Reads everything once per scrape."""

    def __init__(
        self,
        pipeline: Pipeline,
        traffic: Traffic,
        inflight: InflightBytes,
        alerting: Alerting | None,
    ) -> None:
        self._pipeline, self._traffic, self._inflight = pipeline, traffic, inflight
        self._alerting = alerting

    def describe(self) -> Iterable[Metric]:
        """Nothing at registration: the pipeline may not be ready yet."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every catalogued metric that has a value now."""
        health = self._pipeline.health()
        samples: dict[str, list[Sample]] = {}
        own = {
            **own_samples(health),
            **edge_samples(self._traffic, self._inflight),
            **({} if self._alerting is None else sender_samples(self._alerting)),
        }
        for view in self._pipeline.runs():
            if view.active:
                alerts = self._pipeline.alerts(view.run)
                _append(samples, run_samples(view))
                _append(samples, alert_samples(view.run, alerts))
        _append(samples, own)
        families = (_family(name, found) for name, found in samples.items())
        return (family for family in families if family.samples)


def _append(samples: dict[str, list[Sample]], more: Samples) -> None:
    for name, found in more.items():
        samples.setdefault(name, []).extend(found)


def _family(name: str, samples: Iterable[Sample]) -> Metric:
    """A family of the catalogue; a name that is not in it is a defect, and fails here."""
    spec = METRIC_BY_NAME[name]
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    family = kind(spec.name, spec.help, labels=spec.labels)
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, float(value))
    return family


def run_samples(view: RunView) -> Samples:
    """What one run's last closed step says, and its token counts."""
    run = (view.run,)
    tokens = [((view.run, kind), float(count)) for kind, count in view.tokens.items()]
    last = view.last
    if last is None:
        return {"rollout_train_tokens_total": tokens}
    values: dict[str, list[Sample]] = {
        spec.name: [(run, last.metrics.get(spec.metric))] for spec in RUN_METRICS if spec.metric
    }
    causes: dict[str, float] = {}
    for cause in last.diagnosis:
        causes.setdefault(cause["cause"], float(cause["confidence"]))
    return {
        **values,
        "rollout_train_step": [(run, last.step)],
        "rollout_train_verdict": [((view.run, v), float(v == last.verdict)) for v in VERDICTS],
        "rollout_train_cause_confidence": [((view.run, c), x) for c, x in causes.items()],
        "rollout_train_tokens_total": tokens,
    }


def alert_samples(run: str, alerts: Iterable[AlertView]) -> Samples:
    """What the detectors said. `alerts`: newest first."""
    alerts = list(alerts)
    spikes = [alert for alert in alerts if alert.kind == "spike"]
    shifts = [alert for alert in alerts if alert.kind == "level_shift"]
    risen = [alert for alert in shifts if not alert.came_down]
    growths = [alert for alert in alerts if alert.kind == "growth"]
    silences = [alert for alert in alerts if alert.kind == "silence"]
    bypasses = [alert for alert in alerts if alert.kind == "bypass"]
    newest = next((alert for alert in shifts if alert.series == "k3"), None)
    return {
        "rollout_train_spike": [((run,), _fires(spikes))],
        "rollout_train_level_shift": [((run,), _fires(risen))],
        "rollout_train_growth": [((run,), _fires(growths))],
        "rollout_train_silence": [((run,), _fires(silences))],
        "rollout_train_bypass": [((run,), _fires(bypasses))],
        "rollout_train_spikes_total": [((run,), len(spikes))],
        "rollout_train_level_shifts_total": [((run,), len(shifts))],
        "rollout_train_level_shift_ratio": [((run,), newest.ratio if newest else None)],
        "rollout_train_baseline_kl": [((run,), newest.before if newest else None)],
    }


def sender_samples(alerting: Alerting) -> dict[str, Iterable[Sample]]:
    """What became of notifications, and how many still wait, per target."""
    pending = alerting.pending().items()
    return {
        "twinscope_notifications_total": [
            (key, float(n)) for key, n in list(alerting.outcomes.items())
        ],
        "twinscope_notifications_pending": [((target,), float(n)) for target, n in pending],
    }


def _fires(alerts: Iterable[AlertView]) -> float:
    return float(any(alert.state == "firing" for alert in alerts))


def own_samples(health: Health) -> Samples:
    """The pipeline's own health: each queue beside its capacity and what was lost."""
    return {
        "twinscope_build_info": [((version("twinscope"),), 1)],
        "twinscope_ready": [((), float(health.ready))],
        "twinscope_stage_seconds_total": _by_key(health.stage_seconds),
        "twinscope_stage_errors_total": _by_key(health.errors),
        "twinscope_received_total": _by_key(health.counts),
        "twinscope_join_waiting_samples": [((), health.waiting_samples)],
        "twinscope_join_capacity_samples": [((), health.max_pending_samples)],
        "twinscope_join_waiting_tokens": [((), health.waiting_tokens)],
        "twinscope_join_capacity_tokens": [((), health.max_pending_tokens)],
        "twinscope_join_evicted_samples_total": _by_key(health.evicted),
        "twinscope_runs": [((), health.runs)],
        "twinscope_runs_capacity": [((), health.max_runs)],
        "twinscope_open_steps": [((), health.open_steps)],
        "twinscope_inbox_bytes": [((), health.inbox_bytes)],
        "twinscope_database_bytes": [((), health.database_bytes)],
        "twinscope_quarantined_bodies": [((), health.quarantined)],
        "twinscope_engine_info": [((health.engine, health.device), 1 if health.device else None)],
        "twinscope_engine_fallback_total": _by_key(health.engine_fallbacks),
    }


def edge_samples(traffic: Traffic, inflight: InflightBytes) -> Samples:
    """What the HTTP edge counted."""
    return {
        "twinscope_http_requests_total": _by_key(dict(traffic.requests)),
        "twinscope_ingest_bytes_total": [((), traffic.body_bytes)],
        "twinscope_inflight_bytes": [((), inflight.used)],
        "twinscope_inflight_capacity_bytes": [((), inflight.capacity)],
        "twinscope_inflight_refused_total": [((), inflight.refused)],
    }


def _by_key(counts: Mapping[str, float]) -> list[Sample]:
    return [((key,), value) for key, value in counts.items()]
