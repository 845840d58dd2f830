"""What the service raises, below `twinscope.errors.TwinScopeError`.

The HTTP edge turns each into a problem document:

ServiceError
├── Conflict     409  a re-send that contradicts what was accepted; nothing of it is stored
├── Overloaded   429  a limit of waiting data is reached; retry after `retry_after_s`
├── UnknownRun   404
├── UnknownStep  404
├── UnknownSilence 404
└── StoreError   507  the data directory cannot take or give what was asked (full, unreadable)
"""

from __future__ import annotations

from typing import ClassVar

from twinscope.errors import TwinScopeError


class ServiceError(TwinScopeError):
    """Refused, with a reason for the caller. `status` and `title` are of the problem document.

    `field` is where, `value` what was found, `fix` what to do; None where there is no such thing.
    """

    status: ClassVar[int] = 500
    title: ClassVar[str] = "The service failed"
    retry_after_s: float | None = None  # None: retrying does not help

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        value: object = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail, self.field, self.fix = detail, field, fix
        self.value = None if value is None else shorten(value)

    def __str__(self) -> str:
        return f"{self.detail}; {self.fix}" if self.fix else self.detail


class Conflict(ServiceError):
    """The same batch id or sample id came again with other content."""

    status = 409
    title = "Contradicts what was accepted before"


class Overloaded(ServiceError):
    """Too many tokens wait for their other side."""

    status = 429
    title = "Too much is waiting"

    def __init__(
        self, detail: str, *, retry_after_s: float, field: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(detail, field=field, fix=fix)
        self.retry_after_s = retry_after_s


class UnknownRun(ServiceError):
    """No batch, scalar or event of that run was ever accepted, or its history was removed."""

    status = 404
    title = "No such run"

    def __init__(self, run: str) -> None:
        super().__init__(
            f"no data of run {shorten(run)}", field="run", value=run, fix="GET /v1/runs lists them"
        )


class UnknownStep(ServiceError):
    """Nothing of that step was accepted, or it was removed by retention."""

    status = 404
    title = "No such step"

    def __init__(self, run: str, step: int) -> None:
        super().__init__(
            f"no data of step {step} in run {shorten(run)}",
            field="step",
            value=step,
            fix="GET /v1/runs/{run}/steps lists them",
        )


class UnknownSilence(ServiceError):
    """It never was, or it ended a week ago."""

    status = 404
    title = "No such silence"

    def __init__(self, number: int) -> None:
        super().__init__(
            f"no silence {number}", field="number", value=number, fix="GET /v1/silences lists them"
        )


class StoreError(ServiceError):
    """The data directory failed: nothing of the request was kept."""

    status = 507
    title = "The data directory failed"
    retry_after_s = 30.0  # space may be freed, retention runs meanwhile


def shorten(value: object) -> str:
    """A value as a message shows it."""
    shown = repr(value)
    return shown if len(shown) <= 120 else shown[:117] + "..."
