# ruff: noqa: E501  (one query per line reads as the table it is)
"""What the Grafana dashboards show: panels and their queries, as plain values.

Metrics: docs/metrics.md. A counter that does not exist before something happened is joined with
`or vector(0)`, so that "nothing yet" is a line at 0, and "No data" always means a fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["lines", "number", "states", "bars", "table"]

RUN = '{run=~"$run"}'
PAGE = "http://localhost:8321"
PAGE_OF_RUN = "${twinscope}/#/runs/${__field.labels.run:percentencode}"


@dataclass(frozen=True)
class Query:
    """One PromQL expression. `ref` is unique within its panel."""

    expr: str
    legend: str
    ref: str = "A"


@dataclass(frozen=True)
class Panel:
    """One panel. `unit`: Grafana's name of it. `width` of 24, `height` in grid rows."""

    title: str
    description: str
    queries: tuple[Query, ...]
    kind: Kind = "lines"
    unit: str = "short"
    width: int = 12
    height: int = 8
    logarithmic: bool = False
    least: float | None = None
    link: str = ""


@dataclass(frozen=True)
class Board:
    """One dashboard. `by_run`: it has the variable `run`; `many_runs`: several at a time."""

    uid: str
    title: str
    description: str
    panels: tuple[Panel, ...] = field(default=())
    by_run: bool = True
    many_runs: bool = False
    page: str = PAGE
    link: str = "${twinscope}/"


def _queries(*pairs: tuple[str, str]) -> tuple[Query, ...]:
    return tuple(Query(expr, legend, "ABCDEFGH"[i]) for i, (expr, legend) in enumerate(pairs))


# fmt: off
VERDICT = "sum by (run) (rollout_train_verdict{run=~\"$run\",verdict=\"inconsistent\"}) + 2 * sum by (run) (rollout_train_verdict{run=~\"$run\",verdict=\"unknown\"})"

FLEET = Board(
    uid="twinscope-fleet", title="TwinScope: all runs", many_runs=True,
    description="Are sampler and trainer of each run still the same policy?",
    panels=(
        Panel("Runs", "Runs with a closed step.", _queries(("count(rollout_train_step)", "runs")), "number", width=6, height=4),
        Panel("Inconsistent", "Runs whose last step is inconsistent.", _queries(('sum(rollout_train_verdict{verdict="inconsistent"})', "inconsistent")), "number", width=6, height=4),
        Panel("Unknown", "Runs whose last step could not be judged: a side missing, too little data, a crash.", _queries(('sum(rollout_train_verdict{verdict="unknown"})', "unknown")), "number", width=6, height=4),
        Panel("Alarms that fire", "Level shifts, spikes, growth, silence and bypass, all runs.", _queries(("sum(rollout_train_level_shift) + sum(rollout_train_spike) + sum(rollout_train_growth) + sum(rollout_train_silence) + sum(rollout_train_bypass)", "firing")), "number", width=6, height=4),
        Panel("Verdict by run", "What the last closed step said.", _queries((VERDICT, "{{run}}")), "states", width=24, height=7, link=PAGE_OF_RUN),
        Panel("rollout_train_kl", "Mean k3 per token of the last closed step, log scale. Dense bf16 runs live between 1e-4 and 2e-3.", _queries((f"rollout_train_kl{RUN}", "{{run}}")), logarithmic=True, width=24, height=10, link=PAGE_OF_RUN),
        Panel("Level over the run's own baseline", "Level after over level before, of the latest level shift; 1 where none was reported.", _queries((f"rollout_train_level_shift_ratio{RUN} or rollout_train_step{RUN} * 0 + 1", "{{run}}")), logarithmic=True, link=PAGE_OF_RUN),
        Panel("Likeliest cause", "The cause named with the highest confidence, per run.", _queries((f"topk by (run) (1, rollout_train_cause_confidence{RUN})", "{{run}}: {{cause}}")), "bars", unit="percentunit"),
    ),
)

ONE_RUN = Board(
    uid="twinscope-run", title="TwinScope: one run", description="One run: how far sampler and trainer are apart, and what that does to training.",
    link="${twinscope}/#/runs/${run:percentencode}",
    panels=(
        Panel("Verdict", "What the last closed steps said.", _queries((VERDICT, "verdict")), "states", width=18, height=4),
        Panel("Step", "The last closed step.", _queries((f"rollout_train_step{RUN}", "step")), "number", width=6, height=4),
        Panel("rollout_train_kl", "Mean k3 per token, and the level before the latest level shift, log scale.", _queries((f"rollout_train_kl{RUN}", "rollout_train_kl"), (f"rollout_train_baseline_kl{RUN} or rollout_train_kl{RUN}", "level before the latest shift")), logarithmic=True, width=24, height=10, link=PAGE_OF_RUN),
        Panel("|Δ| per token", "Mean, 99th percentile and largest |p − q|, nats.", _queries((f"rollout_train_abs_logprob_diff{RUN}", "mean"), (f"rollout_train_abs_logprob_diff_p99{RUN}", "p99"), (f"rollout_train_abs_logprob_diff_max{RUN}", "max")), logarithmic=True),
        Panel("E[ρ]", "Mean train/rollout probability ratio. 1 if the rollout log-probs are those of the sampler.", _queries((f"rollout_train_ratio_mean{RUN}", "E[ρ]"))),
        Panel("Effective sample size and clip", "Share of the tokens that the batch is worth; share that the PPO clip touches before any update.", _queries((f"rollout_train_ess_ratio{RUN}", "effective sample size"), (f"rollout_train_clip_fraction{RUN}", "clipped before any update")), unit="percentunit", least=0),
        Panel("Confidence of causes", "Of the last closed step's diagnosis.", _queries((f"rollout_train_cause_confidence{RUN}", "{{cause}}")), unit="percentunit", least=0),
        Panel("Alarms", "1 while an alarm of the kind fires.", _queries(*((f"rollout_train_{kind}{RUN}", kind.replace("_", " ")) for kind in ("level_shift", "spike", "growth", "silence", "bypass"))), least=0),
        Panel("Tokens", "Tokens of closed steps per second, by what became of them.", _queries(('sum by (kind) (rate(rollout_train_tokens_total{run=~"$run"}[$__rate_interval]))', "{{kind}}")), unit="ops", least=0),
        Panel("KL(policy‖reference)", "The same ruler against the frozen reference, nats per token. Empty when no reference log-probs are sent.", _queries((f"policy_ref_kl{RUN}", "policy_ref_kl")), logarithmic=True),
        Panel("KL paid per reward", "policy_ref_kl over the reward above its baseline. Rising while the reward stalls: the policy drifts for nothing.", _queries((f"kl_reward_ratio{RUN}", "kl_reward_ratio"))),
    ),
)

HEALTH = Board(
    uid="twinscope-health", title="TwinScope: the service", by_run=False, link="${twinscope}/#/health", description="Queues beside their capacities, what was lost, where the time goes.",
    panels=(
        Panel("Ready", "1 when the service takes batches.", _queries(("twinscope_ready", "{{instance}}")), "number", width=6, height=4),
        Panel("Runs in memory", "Beyond the capacity new runs get 429.", _queries(("twinscope_runs", "runs"), ("twinscope_runs_capacity", "capacity")), "number", width=6, height=4),
        Panel("Open steps", "Steps that are not closed yet.", _queries(("twinscope_open_steps", "open steps")), "number", width=6, height=4),
        Panel("Version", "What runs.", _queries(("twinscope_build_info", "{{version}}")), "number", width=6, height=4),
        Panel("Requests", "By class of status. 4xx: senders that are refused; 5xx: faults of the service.", _queries(("sum by (status) (rate(twinscope_http_requests_total[$__rate_interval]))", "{{status}}")), unit="reqps", least=0),
        Panel("Received", "Bytes of bodies.", _queries(("rate(twinscope_ingest_bytes_total[$__rate_interval])", "{{instance}}")), unit="Bps", least=0),
        Panel("Waiting samples", "Samples without their other side, beside the capacity.", _queries(("twinscope_join_waiting_samples", "waiting"), ("twinscope_join_capacity_samples", "capacity")), least=0),
        Panel("Waiting tokens", "Tokens without their other side, beside the capacity.", _queries(("twinscope_join_waiting_tokens", "waiting"), ("twinscope_join_capacity_tokens", "capacity")), least=0),
        Panel("Bodies in flight", "Bytes being received or processed, beside the capacity.", _queries(("twinscope_inflight_bytes", "in flight"), ("twinscope_inflight_capacity_bytes", "capacity")), unit="bytes", least=0),
        Panel("Lost and refused", "Samples given up by reason, bodies refused, bodies that could not be read back.", _queries(("sum by (reason) (increase(twinscope_join_evicted_samples_total[$__rate_interval])) or vector(0)", "given up: {{reason}}"), ("increase(twinscope_inflight_refused_total[$__rate_interval])", "refused"), ("twinscope_quarantined_bodies", "unreadable")), least=0),
        Panel("Time by stage", "Seconds of work per second.", _queries(("sum by (stage) (rate(twinscope_stage_seconds_total[$__rate_interval]))", "{{stage}}")), unit="s", least=0),
        Panel("Crashes by stage", "The steps concerned are `unknown`.", _queries(("sum by (stage) (increase(twinscope_stage_errors_total[$__rate_interval])) or vector(0)", "{{stage}}")), least=0),
        Panel("What came in", "Batches and samples by what became of them.", _queries(("sum by (kind) (rate(twinscope_received_total[$__rate_interval]))", "{{kind}}")), least=0),
        Panel("Storage", "Bodies kept until their steps close, and the database.", _queries(("twinscope_inbox_bytes", "inbox"), ("twinscope_database_bytes", "database")), unit="bytes", least=0),
        Panel("Notifications", "Alerts on their way, and how sending went.", _queries(("sum(twinscope_notifications_pending) or vector(0)", "pending"), ("sum by (outcome) (rate(twinscope_notifications_total[$__rate_interval])) or vector(0)", "{{outcome}}")), least=0),
    ),
)
# fmt: on

BOARDS: tuple[Board, ...] = (FLEET, ONE_RUN, HEALTH)
