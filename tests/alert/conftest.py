"""A store with alerts in it, without a service around."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from twinscope_service.clock import ManualClock
from twinscope_service.store.outbox import record_alerts
from twinscope_service.store.sqlite import SqliteStore
from twinscope_service.views import AlertView

TEMPERATURE = {
    "cause": "temperature_not_restored",
    "confidence": 0.93,
    "evidence": "T = 0.70 explains all of it",
    "fix": "divide the logits by the sampling temperature",
    "runbook": "causes/temperature_not_restored.md",
    "group": [],
}


def alert(state: str = "firing", **changes: Any) -> AlertView:
    """A level shift of k3 at step 100."""
    usual: dict[str, Any] = {
        "id": 0, "kind": "level_shift", "series": "k3", "step": 103, "onset_step": 100,
        "before": 1e-4, "after": 2e-3, "ratio": 20.0, "causes": (),
        "message": "k3 shifted at step 100: 0.0001 to 0.002 (x20)",
    }  # fmt: skip
    return AlertView(state=state, **{**usual, **changes})


class Desk:
    """A store, and what a closing step writes to it."""

    def __init__(self, path: Path, targets: Sequence[str]) -> None:
        self.path, self.clock = path, ManualClock()
        self.targets = tuple(targets)
        self.store = SqliteStore(path, power_safe=False)

    def say(self, *alerts: AlertView, run: str = "r", diagnosis: Sequence[Any] = ()) -> None:
        """One step's alerts, in one transaction; time goes on by a second."""
        self.clock.advance(1.0)
        with self.store.transaction() as db:
            record_alerts(
                db, run, alerts,
                diagnosis=diagnosis, targets=self.targets, at=self.clock.time(),
            )  # fmt: skip

    def reopen(self) -> None:
        """As after a restart of the process."""
        self.store.close()
        self.store = SqliteStore(self.path, power_safe=False)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A store that tells `ops`."""
    made = Desk(tmp_path / "store.sqlite", ["ops"])
    yield made
    made.store.close()


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[Callable[[Sequence[str]], Desk]]:
    """A store with targets of the test's own."""
    made: list[Desk] = []

    def make(targets: Sequence[str]) -> Desk:
        made.append(Desk(tmp_path / f"store{len(made)}.sqlite", targets))
        return made[-1]

    yield make
    for one in made:
        one.store.close()
