# ruff: noqa: E501  (one metric per line reads as the table it is)
"""Every Prometheus metric, once: what /metrics may show, docs/metrics.md lists and tests compare.

Label values are closed sets, or runs (at most `max_runs`, and gone after `run_retention_s`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter"]


@dataclass(frozen=True)
class MetricSpec:
    """One metric. `metric` is the name in `analyze --json` that it shows, where there is one."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    unit: str
    help: str
    metric: str = ""


# Labels whose values are a closed set, and where that set is declared.
LABELS: dict[str, str] = {
    "run": "name of the run",
    "verdict": "ok, inconsistent, unknown",
    "cause": "an id of a cause of the last step's diagnosis",
    "kind": "a coverage class of tokens, or a class of counted batches and samples",
    "stage": "a stage of the data path",
    "reason": "why samples were given up, or why a device could not measure a block",
    "status": "1xx, 2xx, 3xx, 4xx, 5xx",
    "version": "version of the service",
    "target": "a name from the setting `alert_targets`",
    "engine": "the setting `engine`",
    "device": "board, simulation, emulator, or none while no device is open",
    "outcome": "delivered, failed, refused, silenced, not_wanted",
}

# fmt: off
RUN_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("rollout_train_kl", "gauge", ("run",), "nats per token", "KL(rollout || train), k3 estimator, last closed step", "k3_mean"),
    MetricSpec("rollout_train_k1", "gauge", ("run",), "nats per token", "KL(rollout || train), k1 estimator, last closed step", "k1_mean"),
    MetricSpec("rollout_train_abs_logprob_diff", "gauge", ("run",), "nats", "mean |log ratio|, last closed step", "abs_mean"),
    MetricSpec("rollout_train_abs_logprob_diff_p99", "gauge", ("run",), "nats", "99th percentile of |log ratio|, last closed step", "abs_p99"),
    MetricSpec("rollout_train_abs_logprob_diff_max", "gauge", ("run",), "nats", "largest |log ratio|, not clamped, last closed step", "abs_max"),
    MetricSpec("rollout_train_ratio_mean", "gauge", ("run",), "ratio", "mean train/rollout probability ratio; 1 if the rollout log-probs are those of the sampler", "rho_mean"),
    MetricSpec("rollout_train_ess_ratio", "gauge", ("run",), "ratio", "effective sample size over tokens, last closed step", "ess_ratio"),
    MetricSpec("rollout_train_clip_fraction", "gauge", ("run",), "ratio", "share of tokens that the PPO clip would touch before any update", "clip_fraction"),
    MetricSpec("policy_ref_kl", "gauge", ("run",), "nats per token", "KL(policy || reference), k3 estimator, last closed step", "policy_ref_kl"),
    MetricSpec("kl_reward_ratio", "gauge", ("run",), "nats per unit of reward", "policy_ref_kl over the reward above its baseline", "kl_reward_ratio"),
    MetricSpec("rollout_train_step", "gauge", ("run",), "step", "the last closed step"),
    MetricSpec("rollout_train_verdict", "gauge", ("run", "verdict"), "0 or 1", "1 for the verdict of the last closed step, 0 for the others"),
    MetricSpec("rollout_train_cause_confidence", "gauge", ("run", "cause"), "probability", "confidence of each cause named for the last closed step"),
    MetricSpec("rollout_train_spike", "gauge", ("run",), "0 or 1", "1 while a spike alert fires"),
    MetricSpec("rollout_train_level_shift", "gauge", ("run",), "0 or 1", "1 while a level-shift alert fires, except of a level that fell"),
    MetricSpec("rollout_train_growth", "gauge", ("run",), "0 or 1", "1 while a growth alert fires"),
    MetricSpec("rollout_train_silence", "gauge", ("run",), "0 or 1", "1 while a silence alert fires: a side, the metric or the steps are missing"),
    MetricSpec("rollout_train_bypass", "gauge", ("run",), "0 or 1", "1 while a bypass alert fires: both sides are identical"),
    MetricSpec("rollout_train_spikes_total", "counter", ("run",), "alerts", "spike alerts so far"),
    MetricSpec("rollout_train_level_shifts_total", "counter", ("run",), "alerts", "level-shift alerts so far"),
    MetricSpec("rollout_train_level_shift_ratio", "gauge", ("run",), "ratio", "level after over level before, of the latest level shift"),
    MetricSpec("rollout_train_baseline_kl", "gauge", ("run",), "nats per token", "level before the latest level shift of rollout_train_kl"),
    MetricSpec("rollout_train_tokens_total", "counter", ("run", "kind"), "tokens", "tokens of closed steps by what became of them"),
)
OWN_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("twinscope_build_info", "gauge", ("version",), "1", "always 1; the version is in the label"),
    MetricSpec("twinscope_ready", "gauge", (), "0 or 1", "1 when the service takes batches"),
    MetricSpec("twinscope_http_requests_total", "counter", ("status",), "requests", "HTTP requests by class of status"),
    MetricSpec("twinscope_ingest_bytes_total", "counter", (), "bytes", "bytes of request bodies received"),
    MetricSpec("twinscope_inflight_bytes", "gauge", (), "bytes", "bytes of bodies being received or processed"),
    MetricSpec("twinscope_inflight_capacity_bytes", "gauge", (), "bytes", "beyond this bodies get 429"),
    MetricSpec("twinscope_inflight_refused_total", "counter", (), "bodies", "bodies refused because too much was in flight"),
    MetricSpec("twinscope_stage_seconds_total", "counter", ("stage",), "seconds", "time spent in each stage"),
    MetricSpec("twinscope_stage_errors_total", "counter", ("stage",), "crashes", "crashes of a stage; the steps concerned are `unknown`"),
    MetricSpec("twinscope_received_total", "counter", ("kind",), "batches or samples", "what came in, by what became of it"),
    MetricSpec("twinscope_join_waiting_samples", "gauge", (), "samples", "samples that wait for their other side"),
    MetricSpec("twinscope_join_capacity_samples", "gauge", (), "samples", "beyond this batches get 429"),
    MetricSpec("twinscope_join_waiting_tokens", "gauge", (), "tokens", "tokens that wait for their other side"),
    MetricSpec("twinscope_join_capacity_tokens", "gauge", (), "tokens", "beyond this batches get 429"),
    MetricSpec("twinscope_join_evicted_samples_total", "counter", ("reason",), "samples", "samples given up without their other side"),
    MetricSpec("twinscope_runs", "gauge", (), "runs", "runs with data in memory"),
    MetricSpec("twinscope_runs_capacity", "gauge", (), "runs", "beyond this new runs get 429"),
    MetricSpec("twinscope_open_steps", "gauge", (), "steps", "steps that are not closed yet"),
    MetricSpec("twinscope_inbox_bytes", "gauge", (), "bytes", "bodies kept until their steps close"),
    MetricSpec("twinscope_database_bytes", "gauge", (), "bytes", "size of the database"),
    MetricSpec("twinscope_notifications_total", "counter", ("target", "outcome"), "notifications", "alert notifications by what became of them; `failed` are attempts"),
    MetricSpec("twinscope_notifications_pending", "gauge", ("target",), "notifications", "alert notifications that a target has not taken yet"),
    MetricSpec("twinscope_engine_info", "gauge", ("engine", "device"), "1", "always 1 with an engine that runs on a device; a simulation or emulator is never called a board"),
    MetricSpec("twinscope_engine_fallback_total", "counter", ("reason",), "blocks", "blocks that the cpu engine measured because the device failed"),
    MetricSpec("twinscope_quarantined_bodies", "gauge", (), "bodies", "kept bodies that could not be read back"),
)
# fmt: on
METRICS: tuple[MetricSpec, ...] = RUN_METRICS + OWN_METRICS
METRIC_BY_NAME: dict[str, MetricSpec] = {spec.name: spec for spec in METRICS}


def render_page() -> str:
    """docs/metrics.md."""
    return "\n".join(
        (
            "# Prometheus metrics\n",
            "Generated from `twinscope_service/expose/catalogue.py`; do not edit.",
            "`GET /metrics` shows these and no others. A metric that is unknown for a run (nothing",
            "counted, no reference policy ...) is absent, never 0.\n",
            _section("Runs", RUN_METRICS),
            _section("The service itself", OWN_METRICS),
            "## Labels\n",
            "| label | values |",
            "| --- | --- |",
            *(f"| `{name}` | {meaning} |" for name, meaning in LABELS.items()),
            "",
        )
    )


def _section(title: str, specs: Sequence[MetricSpec]) -> str:
    lines = [f"## {title}\n", "| metric | type | labels | unit | meaning | in `analyze --json` |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for spec in specs:
        labels = ", ".join(f"`{label}`" for label in spec.labels)
        field = f"`metrics.{spec.metric}`" if spec.metric else ""
        help_text = spec.help.replace("|", "\\|")
        cells = (f"`{spec.name}`", spec.kind, labels, spec.unit, help_text, field)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join((*lines, ""))
