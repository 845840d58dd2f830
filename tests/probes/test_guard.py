"""The guard: everything that goes wrong is counted, logged once, and answered neutrally."""

from __future__ import annotations

import logging

import pytest

from twinscope.errors import WireError
from twinscope.guard import MOST_KINDS, Guard


def _break() -> str:
    raise RuntimeError("the disk is on fire")


def test_an_error_becomes_the_neutral_value() -> None:
    """The host gets what it can go on with."""
    guard = Guard()

    assert guard.run("train", "neutral", _break) == "neutral"
    assert guard.run("train", "neutral", lambda: "fine") == "fine"
    assert guard.last_error == "train: RuntimeError: the disk is on fire"


def test_each_kind_is_logged_once_and_always_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A million failing calls are one line, not a million."""
    guard = Guard()
    with caplog.at_level(logging.WARNING, "twinscope"):
        for _ in range(100):
            guard.run("train", None, _break)
        guard.run("rollout", None, _break)

    assert guard.counts() == {"train: RuntimeError": 100, "rollout: RuntimeError": 1}
    assert len(caplog.records) == 2


def test_a_second_mistake_in_the_same_call_is_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Told apart by the argument, whichever the sample: fixing the first shows the second."""
    guard = Guard()
    for sample in range(10):
        guard.note("train", WireError(f"token_ids[{sample}]", "x", "pass integers"))
    guard.note("train", WireError("mask", 0.5, "pass 0 or 1"))

    assert guard.counts() == {"train: token_ids": 10, "train: mask": 1}
    assert [record.message.partition(". The host")[0] for record in caplog.records] == [
        "twinscope: train: token_ids[0]: got 'x'; pass integers",
        "twinscope: train: mask: got 0.5; pass 0 or 1",
    ]


def test_a_remark_is_said_once_and_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """It is worth a line, not a count."""
    guard = Guard()
    for _ in range(10):
        guard.remark("late", "came late")
    guard.remark("unmasked", "no mask")

    messages = [record.message for record in caplog.records]
    assert messages == ["twinscope: came late", "twinscope: no mask"]
    assert guard.counts() == {}
    assert guard.last_error is None


def test_what_belongs_to_the_host_passes_through() -> None:
    """Ctrl-C and exit are not errors of the probe."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard().run("train", None, interrupt)


def test_in_tests_of_the_probe_errors_are_raised_again() -> None:
    """So that a mistake cannot hide behind its own guard."""
    guard = Guard(raise_errors=True)

    with pytest.raises(RuntimeError, match="on fire"):
        guard.run("train", None, _break)
    assert guard.counts() == {"train: RuntimeError": 1}


def test_kinds_are_bounded() -> None:
    """Error texts come from outside; the table of kinds does not grow with them."""
    guard = Guard()
    for number in range(1000):
        guard.note(f"kind {number}", "x" * 10_000)

    counts = guard.counts()
    assert len(counts) == MOST_KINDS + 1
    assert sum(counts.values()) == 1000
    assert len(guard.last_error or "") < 1000


def test_a_broken_log_filter_is_not_the_host_s_problem() -> None:
    """Logging runs the host's code, which may raise."""

    def explode(record: logging.LogRecord) -> bool:
        raise ValueError("filter")

    logger = logging.getLogger("twinscope")
    logger.addFilter(explode)
    try:
        assert Guard().run("train", 7, lambda: int("x")) == 7
    finally:
        logger.removeFilter(explode)
