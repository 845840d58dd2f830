"""The same numbers beside the user's own curves: closed steps copied to TensorBoard or W&B.

`copy(client, run, write, after=...)` sends every closed step beyond `after`, once and in order; the
writers know the target. Both targets are optional: extras `tensorboard` and `wandb`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from twinscope.errors import ConfigError
from twinscope_service.client import Client
from twinscope_service.views import StepView

PREFIX = "twinscope"
METRICS = (
    "k3_mean", "k1_mean", "abs_mean", "abs_p99", "abs_max", "rho_mean", "inv_rho_mean", "ess_ratio",
    "clip_fraction", "pearson_prob", "ppl_ratio", "policy_ref_kl", "kl_reward_ratio",
)  # fmt: skip
VERDICTS = {"ok": 0.0, "inconsistent": 1.0, "unknown": math.nan}  # nan: a gap in the curve


class Target(Protocol):
    """Where curves go."""

    def write(self, step: int, values: Mapping[str, float], *, at: float) -> None:
        """The values of one step. `at`: seconds since the epoch."""
        ...

    def close(self) -> None:
        """Everything written is on its way."""
        ...


def copy(client: Client, run: str, target: Target, *, after: int = -1) -> int:
    """Write the closed steps beyond `after`; the last one written (or `after`)."""
    for step in client.steps(run, after=after):
        if step.state == "closed":
            target.write(step.step, curves(step), at=step.closed_at or 0.0)
            after = step.step
    return after


def curves(step: StepView) -> dict[str, float]:
    """What is written of a step: known metrics, the verdict as 0 or 1, confidence of the cause."""
    found = {f"{PREFIX}/{name}": step.metrics.get(name) for name in METRICS}
    found[f"{PREFIX}/inconsistent"] = VERDICTS[step.verdict]
    for cause in step.diagnosis[:1]:
        found[f"{PREFIX}/cause/{cause['cause']}"] = float(cause["confidence"])
    return {k: v for k, v in found.items() if v is not None and math.isfinite(v)}


class TensorBoard:
    """Event files that TensorBoard reads, without torch or TensorFlow."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise ConfigError("--tensorboard: pip install 'twinscope[tensorboard]'") from None
        self._event, self._summary = Event, Summary
        self._file = EventFileWriter(str(folder))

    def write(self, step: int, values: Mapping[str, float], *, at: float) -> None:
        """One event per step."""
        points = [self._summary.Value(tag=name, simple_value=x) for name, x in values.items()]
        summary = self._summary(value=points)
        self._file.add_event(self._event(step=step, wall_time=at, summary=summary))

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


class WeightsAndBiases:
    """A run in W&B. `session`: what `wandb.init(...)` gave."""

    def __init__(self, session: Any) -> None:
        self._session = session
        session.define_metric(f"{PREFIX}/step")
        session.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")

    def write(self, step: int, values: Mapping[str, float], *, at: float) -> None:
        """One row; its own axis, because the trainer's steps belong to the trainer."""
        self._session.log({**values, f"{PREFIX}/step": step})

    def close(self) -> None:
        """Finish the session."""
        self._session.finish()


def open_wandb(project: str, run: str, *, ident: str | None = None) -> WeightsAndBiases:
    """Start a W&B run of the same name, in the mode that WANDB_MODE says. Raises ConfigError.

    `ident`: the id of a W&B run to go on with, the trainer's own for example, which keeps its name.
    """
    try:
        import wandb
    except ImportError:
        raise ConfigError("--wandb: pip install 'twinscope[wandb]'") from None
    which: dict[str, Any] = {"name": run}
    if ident:
        # Another process may be writing this run: it stays the one that says how the run ended.
        settings = wandb.Settings(x_primary=False, x_update_finish_state=False)
        which = {"id": ident, "resume": "allow", "settings": settings}
    return WeightsAndBiases(wandb.init(project=project, **which))


def follow(client: Client, run: str, target: Target, *, wait: Callable[[], bool]) -> None:
    """Copy what is there, then what comes, until `wait` returns False."""
    after = copy(client, run, target)
    while wait():
        after = copy(client, run, target, after=after)
