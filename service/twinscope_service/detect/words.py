"""What a finding says to a person, in one line: what, how much, since when."""

from __future__ import annotations

import re

from twinscope_service.detect.findings import Finding

# Names as on the dashboards and in /metrics, not as the code calls its series.
SERIES = {
    "k3": "rollout_train_kl",
    "abs_p50": "the median of |Δ|",
    "abs_p99": "the 99th percentile of |Δ|",
    "rho_excess": "E[ρ] − 1",
    "surprise": "E[−p] less the entropy",
    "nonfinite_share": "the share of tokens with NaN or infinity",
    "sentinel_share": "the share of tokens with a fill value",
    "positive_share": "the share of tokens with a log-prob above 0",
    "zero_rollout_share": "the share of tokens with a rollout log-prob of exactly 0",
    "zero_train_share": "the share of tokens with a train log-prob of exactly 0",
    "delta_zero_share": "the share of tokens on which both sides are equal",
    "clamped_share": "the share of tokens beyond the clamp",
}
GROUP = re.compile(r"k3\{(.*)\}")


def series_words(series: str) -> str:
    """`k3{replica=3}` -> `rollout_train_kl of replica=3`."""
    group = GROUP.fullmatch(series)
    return f"{SERIES['k3']} of {group.group(1)}" if group else SERIES.get(series, series)


def describe(finding: Finding, *, over: str = "", relative: bool = False) -> str:
    """The line. `over`: how it ended; `relative`: levels are in units of the median group."""
    name, since = series_words(finding.series), finding.onset_step
    if finding.state == "resolved":
        kind = finding.kind.replace("_", " ")
        return f"{name}: the {kind} of step {since} {over} (step {finding.step})"
    times = "" if finding.ratio is None else f" (x{finding.ratio:.3g})"
    unit = " times the median of all" if relative else ""
    change = f"{finding.before:.3g} to {finding.after:.3g}{unit}{times}"
    if finding.kind == "spike":
        return f"{name} spiked at step {finding.step}: {change}"
    if finding.kind == "growth":
        doubling = finding.evidence["doubling_steps"]
        return f"{name} doubles every {doubling:.0f} steps since about step {since}: {change}"
    verb = "may have shifted" if finding.state == "provisional" else "shifted"
    return f"{name} {verb} at step {since}: {change}"
