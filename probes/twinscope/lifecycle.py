"""The process's own events: fork, exit, and the end of a multiprocessing child.

Hooks hold their target weakly. They cannot be taken back everywhere (`os.register_at_fork` has no
opposite), so a hook whose target is gone does nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import Protocol


class Closable(Protocol):
    """What the exit hooks act on."""

    def close_at_exit(self) -> None:
        """The process is about to end."""
        ...


class Forgetful(Protocol):
    """What the fork hook acts on."""

    def forget_after_fork(self) -> None:
        """This is the child of a fork."""
        ...


def watch_exit(target: Closable) -> Callable[[], None]:
    """Close `target` when the interpreter exits; returns what takes the hook back."""
    at_exit = _exit_hook(target)
    atexit.register(at_exit)
    return lambda: atexit.unregister(at_exit)


def watch_fork(target: Forgetful) -> None:
    """Have `target` start afresh in every child that this process forks."""
    reference = weakref.ref(target)

    def in_child() -> None:
        living = reference()
        if living is not None:
            living.forget_after_fork()

    if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
        os.register_at_fork(after_in_child=in_child)


def watch_multiprocessing(target: Closable) -> None:
    """Children of `multiprocessing` leave by os._exit: atexit does not run there, Finalize does.

    To be called when a process first uses the target. While it sets a child up, `multiprocessing`
    clears the finalizers; a target that came with the child's arguments is older than that, so it
    also registers to be told when the child is set up.
    """
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if process is None or util is None:
        return

    def finish(target: Closable) -> None:
        util.Finalize(None, _exit_hook(target), exitpriority=100)

    util.register_after_fork(target, finish)
    if process.parent_process() is not None:
        finish(target)


def _exit_hook(target: Closable) -> Callable[[], None]:
    reference = weakref.ref(target)

    def at_exit() -> None:
        living = reference()
        if living is not None:
            living.close_at_exit()

    return at_exit
