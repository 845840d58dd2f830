"""/metrics shows the catalogue, with the numbers of the last closed step, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from twinscope_service.expose.catalogue import (
    LABELS,
    METRIC_BY_NAME,
    METRICS,
    RUN_METRICS,
    render_page,
)
from twinscope_service.expose.metrics import alert_samples
from twinscope_service.views import AlertView

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def _families(service: Any) -> dict[str, Any]:
    text = service.get("/metrics").text
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.fixture
def scraped(start: Callable[..., Any], batch: Callable[..., bytes]) -> tuple[Any, dict[str, Any]]:
    """A service with one closed step of two tokens, and its metrics."""
    service = start()
    assert service.send(batch(q=[-1.0, -2.0], p=[-1.0, -2.5], run="r/1")).status_code == 202
    assert service.post("/v1/runs/r/1/steps/0/close").status_code == 200
    return service, _families(service)


def test_what_is_exported_is_catalogued(scraped: tuple[Any, dict[str, Any]]) -> None:
    """Name, type, help and labels of every family are those of the catalogue."""
    for family in scraped[1].values():
        suffix = "_total" if family.type == "counter" else ""
        spec = METRIC_BY_NAME[family.name + suffix]
        assert family.type == spec.kind
        assert family.documentation == spec.help
        for sample in family.samples:
            assert set(sample.labels) == set(spec.labels)


def test_what_is_catalogued_is_exported(scraped: tuple[Any, dict[str, Any]]) -> None:
    """All of the service's own; of a run, all but what its data cannot tell."""
    shown = {name.removesuffix("_total") for name in scraped[1]}
    missing = {spec.name for spec in METRICS if spec.name.removesuffix("_total") not in shown}
    assert missing <= {
        "policy_ref_kl",  # no reference log-probs
        "kl_reward_ratio",
        "rollout_train_level_shift_ratio",  # no shift so far
        "rollout_train_baseline_kl",
        "rollout_train_cause_confidence",  # too little data for a cause
        "twinscope_stage_errors_total",  # nothing crashed
        "twinscope_join_evicted_samples_total",  # nothing given up
        "twinscope_notifications_total",  # nobody to tell
        "twinscope_notifications_pending",
        "twinscope_engine_info",  # the cpu engine runs on no device
        "twinscope_engine_fallback_total",
    }


def test_the_gauges_show_hand_worked_numbers(scraped: tuple[Any, dict[str, Any]]) -> None:
    """Δ is 0 and -0.5: k3 of -0.5 is e^-0.5 - 1 + 0.5; means over two tokens."""
    values = {
        family.name: family.samples[0].value
        for family in scraped[1].values()
        if family.name.startswith("rollout_train")
    }
    assert values["rollout_train_kl"] == pytest.approx((math.exp(-0.5) - 0.5) / 2, rel=1e-12)
    assert values["rollout_train_k1"] == pytest.approx(0.25, rel=1e-12)
    assert values["rollout_train_abs_logprob_diff"] == pytest.approx(0.25, rel=1e-12)
    assert values["rollout_train_abs_logprob_diff_max"] == 0.5
    assert values["rollout_train_ratio_mean"] == pytest.approx((1 + math.exp(-0.5)) / 2)
    assert values["rollout_train_step"] == 0


def test_one_verdict_is_1_and_the_others_are_0(scraped: tuple[Any, dict[str, Any]]) -> None:
    """Two tokens are too few to say anything: unknown."""
    samples = scraped[1]["rollout_train_verdict"].samples
    assert {s.labels["verdict"]: s.value for s in samples} == {
        "ok": 0,
        "inconsistent": 0,
        "unknown": 1,
    }


def test_token_counts_add_up(scraped: tuple[Any, dict[str, Any]]) -> None:
    """Each received token is in exactly one class."""
    counts = {s.labels["kind"]: s.value for s in scraped[1]["rollout_train_tokens"].samples}
    classes = ("counted", "masked_out", "nonfinite", "sentinel", "positive")
    assert counts["received"] == 2 == sum(counts[name] for name in classes)


def test_the_api_and_metrics_show_the_same_number(scraped: tuple[Any, dict[str, Any]]) -> None:
    """Bit for bit: both are the float64 of the closed step."""
    service, families = scraped
    metrics = service.get("/v1/runs/r/1/steps/0").json()["metrics"]
    for spec in RUN_METRICS:
        if spec.metric and metrics.get(spec.metric) is not None:
            assert families[spec.name].samples[0].value == metrics[spec.metric], spec.name


def test_openmetrics_is_served_to_those_who_ask(scraped: tuple[Any, dict[str, Any]]) -> None:
    """Prometheus negotiates; both forms end well."""
    accept = {"accept": "application/openmetrics-text;version=1.0.0"}
    answer = scraped[0].get("/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_alerts_show_as_flags_and_counts() -> None:
    """One spike that fires, one level shift that is over: factor 4 from 1e-3."""
    spike = AlertView(2, "spike", "firing", "k3", 9, 9, 1e-3, 1e-2, 10.0, "")
    shift = AlertView(1, "level_shift", "resolved", "k3", 8, 5, 1e-3, 4e-3, 4.0, "")
    shown = {
        name: next(iter(samples))[1] for name, samples in alert_samples("r", [spike, shift]).items()
    }
    assert shown == {
        "rollout_train_spike": 1,
        "rollout_train_level_shift": 0,
        "rollout_train_growth": 0,
        "rollout_train_silence": 0,
        "rollout_train_bypass": 0,
        "rollout_train_spikes_total": 1,
        "rollout_train_level_shifts_total": 1,
        "rollout_train_level_shift_ratio": 4,
        "rollout_train_baseline_kl": 1e-3,
    }


def test_names_and_labels_follow_the_rules() -> None:
    """Counters end in _total, nothing else does; every label is declared as a closed set."""
    for spec in METRICS:
        assert (spec.kind == "counter") == spec.name.endswith("_total")
        assert spec.name.startswith(("rollout_train_", "twinscope_", "policy_ref_", "kl_reward_"))
        assert set(spec.labels) <= set(LABELS)
        assert spec.help
        assert spec.unit
    assert len(METRIC_BY_NAME) == len(METRICS)


def test_the_metrics_page_is_current() -> None:
    """docs/metrics.md is rendered from the catalogue (`make docs`)."""
    assert PAGE.read_text(encoding="utf-8") == render_page()


def test_a_run_of_many_labels_does_not_break_the_page(
    start: Callable[..., Any], batch: Callable[..., bytes]
) -> None:
    """Quotes, backslashes and Chinese in a run's name survive the text format."""
    name = 'a"b\\c {x="y"} 运行'
    service = start()
    service.send(batch(q=[-1.0], p=[-1.5], run=name))
    service.post("/v1/runs/" + "a%22b%5Cc%20%7Bx=%22y%22%7D%20运行" + "/steps/0/close")
    samples = _families(service)["rollout_train_kl"].samples
    assert [sample.labels["run"] for sample in samples] == [name]
    assert np.isfinite(samples[0].value)
