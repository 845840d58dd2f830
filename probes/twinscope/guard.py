"""The one place that catches everything: a probe may lose data, it may never hurt its host.

Every public call and every turn of the sending thread runs inside a Guard. What goes wrong is
counted by kind, logged once per kind, and answered with a neutral value. A kind is the call and
the argument it could not use (`train: token_ids`), or the call and the type of the error.
`Exception` only: KeyboardInterrupt, SystemExit and cancellation belong to the host and pass
through.

Re-raising is switched on by TWINSCOPE_RAISE=1 and not by the mere presence of pytest: people test
their trainers with pytest too, and there the promise must hold as it does in a run. Our own tests
set the variable, so that a mistake in the probe cannot hide; fault tests take it away again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from twinscope.errors import WireError

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("twinscope")

LONGEST_DETAIL = 500  # characters of an error message that are kept and logged
MOST_KINDS = 64  # of errors that are told apart: a host in trouble must not grow the probe


class Guard:
    """Counts and silences errors. Thread-safe."""

    def __init__(self, *, raise_errors: bool = False) -> None:
        self.raise_errors = raise_errors
        self.last_error: str | None = None  # None: nothing has gone wrong yet
        self._counts: dict[str, int] = {}
        self._remarks: set[str] = set()
        self._lock = threading.Lock()

    def run(
        self, where: str, neutral: T, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What `call` returns, or `neutral` when it raises."""
        try:
            return call(*args, **kwargs)
        except Exception as error:  # the only broad except of the probes
            self.note(where, error)
            if self.raise_errors:
                raise
            return neutral

    def note(self, where: str, error: Exception | str) -> None:
        """Count an error, and log it the first time its kind occurs."""
        kind = where if isinstance(error, str) else f"{where}: {_name(error)}"
        label = where if isinstance(error, WireError) else kind  # its text begins with the field
        detail = str(error)[:LONGEST_DETAIL]
        with self._lock:
            if kind not in self._counts and len(self._counts) >= MOST_KINDS:
                kind = "other"
            self._counts[kind] = self._counts.get(kind, 0) + 1
            first = self._counts[kind] == 1
            self.last_error = f"{label}: {detail}"
        if first:
            self._log(label, detail, error)

    def remark(self, kind: str, text: str) -> None:
        """Log something worth knowing that is no error, once per kind (few, named in the code)."""
        with self._lock:
            if kind in self._remarks:
                return
            self._remarks.add(kind)
        _warn("twinscope: %s", text)

    def counts(self) -> dict[str, int]:
        """How often each kind of error occurred."""
        with self._lock:
            return dict(self._counts)

    def forget_after_fork(self) -> None:
        """A fresh lock in the child: another thread may have held the old one."""
        self._lock = threading.Lock()
        self._counts = {}
        self._remarks = set()
        self.last_error = None

    @staticmethod
    def _log(label: str, detail: str, error: Exception | str) -> None:
        """One line, with the traceback at debug level."""
        trace: Any = error if isinstance(error, Exception) else None
        _warn(
            "twinscope: %s: %s. The host is not affected; from now on this kind of error is only "
            "counted, see Probe.stats().",
            label,
            detail,
            trace=trace,
        )


def _name(error: Exception) -> str:
    """What tells two mistakes in one call apart: the argument (not which sample), or the type."""
    if isinstance(error, WireError):
        return error.field.partition("[")[0]
    return type(error).__name__


def _warn(text: str, *values: object, trace: Any = None) -> None:
    """Log; a broken handler is not our error."""
    try:
        logger.warning(text, *values)
        if trace is not None:
            logger.debug("twinscope: %s", values[0], exc_info=trace)
    except Exception:  # noqa: BLE001 - handlers are the host's code, filters may raise
        return
