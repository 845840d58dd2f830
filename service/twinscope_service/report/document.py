"""A run as one HTML file: what is wrong, since when, why, what to do, and the plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any
from xml.etree.ElementTree import Element

from twinscope_service.client import Timeline
from twinscope_service.detect.words import series_words
from twinscope_service.report.kept import excerpt, gaps, parts
from twinscope_service.report.markup import Child, number, serialise, table, tag
from twinscope_service.report.plots import distribution_plot, profile_plot, timeline_plot
from twinscope_service.views import AlertView, StepView

STYLE = """
:root { color-scheme: light dark; --text: #1b2430; --muted: #5c6773; --line: #d5dae1; --bg: #fff;
  --accent: #1f5fbf; --ok: #1a7a3c; --bad: #c02231; --unknown: #8a5a00; --warm: #c4501b; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e9ef; --muted: #9aa7b5; --line: #2c3744;
  --bg: #10151c; --accent: #6ea8ff; --ok: #4cc26f; --bad: #ff7a80; --unknown: #e0aa3e;
  --warm: #ff9560; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--bg); color: var(--text); }
table { border-collapse: collapse; margin: .5rem 0; } th, td { text-align: left; font-weight: 400;
  padding: .25rem 1rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th, .quiet { color: var(--muted); } svg { width: 100%; height: auto; } svg text {
  font-size: 12px; fill: var(--muted); } .grid { stroke: var(--line); }
.curve { fill: none; stroke: var(--accent); stroke-width: 1.6; } .bar { fill: var(--accent); }
.band { fill: var(--muted); fill-opacity: .3; } .alarm { fill: var(--bad); fill-opacity: .1; }
.side { fill: none; stroke-width: 1.6; } .negative { stroke: var(--warm); }
.positive { stroke: var(--accent); } svg .bad { fill: var(--bad); }
circle.ok { fill: var(--accent); } circle.inconsistent { fill: var(--bad); }
circle.unknown { fill: var(--unknown); } .ok { color: var(--ok); } .inconsistent {
  color: var(--bad); } .unknown { color: var(--unknown); } code { font-size: .9em; }
bdi { white-space: pre-wrap; overflow-wrap: anywhere; } mark { background: var(--bad);
  color: var(--bg); }
"""
WORST_TOKENS, WORST_SAMPLES = 12, 8  # shown of each
KEY = (
    ("k3_mean", "rollout_train_kl, nats per token"),
    ("abs_mean", "mean |Δ|, nats"),
    ("abs_p99", "99th percentile of |Δ|, nats"),
    ("abs_max", "largest |Δ|, nats"),
    ("rho_mean", "E[ρ]"),
    ("inv_rho_mean", "E[1/ρ]"),
    ("ess_ratio", "effective sample size, share of tokens"),
    ("clip_fraction", "clipped before any update, share of tokens"),
    ("pearson_prob", "correlation of the probabilities"),
    ("policy_ref_kl", "KL(policy‖reference), nats per token"),
)


@dataclass(frozen=True)
class Subject:
    """What a report is about. `statistics`: GET .../profiles, None: not kept any more.

    `kept`: GET .../evidence, the worst tokens and the kept samples.
    """

    timeline: Timeline
    step: StepView
    statistics: Mapping[str, Any] | None
    made_at: str
    kept: Mapping[str, Any] = field(default_factory=dict)


def render(subject: Subject) -> str:
    """The whole file. No script, no address of another machine; text of strangers is text."""
    step = subject.step
    title = f"{step.run}, step {step.step}: {step.verdict}"
    body = tag(
        "body",
        tag("h1", f"{step.run} ", tag("span", step.verdict, class_=step.verdict)),
        tag("p", f"Step {step.step}, {step.samples} samples, {step.tokens} tokens. TwinScope "
            f"{version('twinscope')}, {subject.made_at}.", class_="quiet"),
        *_reasons(step), *_causes(step),
        *_plot("rollout_train_kl over the run", timeline_plot(subject.timeline)),
        *_alerts(subject.timeline.alerts), *_shapes(subject.statistics),
        *_worst_samples(subject.kept.get("samples", ())),
        *_worst_tokens(subject.kept.get("worst_tokens", ())),
        *_numbers(step),
    )  # fmt: skip
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", STYLE),
    )
    return serialise(tag("html", head, body, lang="en"))


def _reasons(step: StepView) -> list[Element]:
    return [tag("ul", *(tag("li", reason) for reason in step.reasons))] if step.reasons else []


def _causes(step: StepView) -> list[Element]:
    parts = [tag("h2", "Causes")]
    if not step.diagnosis:
        return [*parts, tag("p", "None was named for this step.", class_="quiet")]
    for cause in step.diagnosis:
        after = cause.get("k3_after")
        source = f" ({cause['k3_after_is']})" if cause.get("k3_after_is") else ""
        remains = f"Without it the level would be {number(after)}{source}." if after else None
        named = cause.get("estimate_in_words") or ()
        estimate = ", ".join(f"{one['title']} {_plain(one['value'])}" for one in named)
        parts += [
            tag("h3", f"{cause['cause']}, confidence {100 * cause['confidence']:.0f} %"),
            tag("p", cause["evidence"]),
            *([tag("p", estimate, class_="quiet")] if estimate else []),
            *([tag("p", remains)] if remains and cause["family"] != "none" else []),
            tag("p", tag("strong", "Do: "), cause["fix"]),
        ]
    return parts


def _plain(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _plot(title: str, picture: Element | None) -> list[Element]:
    return [] if picture is None else [tag("h2", title), picture]


def _alerts(alerts: Iterable[AlertView]) -> list[Element]:
    """What fires first, and of that what speaks of the level."""
    order = sorted(alerts, key=lambda one: (one.state == "resolved", one.came_down,
                                            one.series != "k3"))  # fmt: skip
    rows: list[tuple[Child, ...]] = [
        (f"{alert.kind.replace('_', ' ')}: {series_words(alert.series)}", alert.standing,
         str(alert.step if alert.onset_step is None else alert.onset_step),
         number(alert.before), number(alert.after), number(alert.ratio))
        for alert in order
    ]  # fmt: skip
    head = ("alert", "state", "since step", "before", "after", "ratio")
    return [tag("h2", "Alerts"), table(head, rows[:100])] if rows else []


def _shapes(statistics: Mapping[str, Any] | None) -> list[Element]:
    if statistics is None:
        return []
    return [
        *_plot("Distribution of |Δ| (orange p < q, blue p > q)", distribution_plot(statistics)),
        *_plot("Mean k3 by position", profile_plot(statistics, "position")),
    ]


def _worst_samples(samples: Sequence[Mapping[str, Any]]) -> list[Element]:
    """What adds most to the mean, each with the text around its worst token."""
    rows: list[tuple[Child, ...]] = []
    for sample in parts(samples, chosen="worst")[:WORST_SAMPLES]:
        found, lag = gaps(sample), sample.get("lag")
        around = excerpt(sample)
        shown = None
        if around is not None:
            shown = tag("bdi", around[0], tag("mark", around[1]), around[2])
        rows.append((
            sample.get("sample_id") or "—", str(sample["tokens"]), number(found.abs_mean),
            number(found.abs_max), "—" if lag is None else str(lag), shown,
        ))  # fmt: skip
    head = ("sample", "tokens", "mean |Δ|", "largest |Δ|", "lag", "around its worst token")
    return [tag("h2", "Worst samples"), table(head, rows)] if rows else []


def _worst_tokens(tokens: Sequence[Mapping[str, Any]]) -> list[Element]:
    """The largest |Δ| of the step."""
    rows: list[tuple[Child, ...]] = []
    for token in tokens[:WORST_TOKENS]:
        known = "—" if token["token_id"] is None else f"#{token['token_id']}"
        text = token.get("text")
        rows.append((
            tag("bdi", text) if text is not None else known, number(token["p"] - token["q"]),
            number(token["q"]), number(token["p"]), str(token["position"]),
            token["sample_id"] or token["sample_key"][:8],
        ))  # fmt: skip
    head = ("token", "Δ = p − q", "q", "p", "position", "sample")
    return [tag("h2", "Worst tokens"), table(head, rows)] if rows else []


def _numbers(step: StepView) -> list[Element]:
    key: list[tuple[Child, ...]] = [
        (title, number(step.metrics[name])) for name, title in KEY if step.metrics.get(name)
    ]
    coverage: list[tuple[Child, ...]] = [(name, str(n)) for name, n in step.coverage.items()]
    rest: list[tuple[Child, ...]] = [
        (tag("code", name), number(value))
        for name, value in (*step.metrics.items(), *step.scalars.items())
    ]
    return [
        tag("h2", "Numbers"), table(("metric", "value"), key),
        tag("h2", "Coverage"), table(("tokens", "count"), coverage),
        tag("details", tag("summary", "All metrics"), table(("name", "value"), rest)),
    ]  # fmt: skip
