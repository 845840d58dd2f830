"""Finished samples from an engine's threads, made into batches on a thread of their own.

An engine finishes its requests one by one, on the thread that serves all of them. There a sample
is put into a queue, and nothing else; reading log-probs out of the engine's layout, and making one
batch of many samples, happens here.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol

from twinscope.guard import Guard
from twinscope.lifecycle import watch_exit, watch_fork

GATHER_S = 0.25  # after the first sample, wait this long for more
MOST_SAMPLES = 512  # of one batch
CAPACITY_TOKENS = 4_000_000  # about 100 MB of an engine's Python numbers
EXIT_S = 2.0  # longest wait at exit; hooks take their probe's exit_timeout_s


class Waiting(Protocol):
    """What can wait here. `kind`: samples of one batch have the same."""

    @property
    def tokens(self) -> int:
        """Response tokens."""
        ...

    @property
    def kind(self) -> Hashable:
        """What samples of one batch share."""
        ...


class Collector:
    """`deliver(samples)` is called with up to MOST_SAMPLES of one kind, in order of arrival.

    Bounded: beyond `capacity_tokens` the newest sample is refused, and `lose(sample)` counts it.
    """

    def __init__(
        self,
        deliver: Callable[[list[Any]], None],
        *,
        lose: Callable[[Waiting], None],
        guard: Guard,
        capacity_tokens: int = CAPACITY_TOKENS,
        gather_s: float = GATHER_S,
        exit_s: float = EXIT_S,
    ) -> None:
        self._deliver = deliver
        self._lose = lose
        self._guard = guard
        self._capacity = capacity_tokens
        self._gather_s = gather_s
        self._exit_s = exit_s
        self._start_empty()
        watch_exit(self)
        watch_fork(self)

    def _start_empty(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Waiting] = deque()
        self._tokens = 0
        self._busy = False  # a batch is being delivered
        self._hurry = False  # somebody waits: gather no longer
        self._thread: threading.Thread | None = None  # None: nothing has arrived yet

    def add(self, sample: Waiting) -> bool:
        """Called on the host's thread. False: no room, counted."""
        with self._changed:
            room = self._tokens + sample.tokens <= self._capacity
            if room:
                self._queue.append(sample)
                self._tokens += sample.tokens
                self._start_thread()
                if len(self._queue) in (1, MOST_SAMPLES):
                    self._changed.notify_all()
        if not room:
            self._lose(sample)
        return room

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="twinscope-collect", daemon=True)
            self._thread.start()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until everything added so far has been delivered; False when time is over first."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self._queue and not self._busy, timeout)
            self._hurry = False
            return done

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue))
                self._changed.wait_for(self._is_due, self._gather_s)
                samples, self._queue = self._queue, deque()
                self._busy = True
            self._guard.run("collect", None, functools.partial(self._deliver_all, samples))
            with self._changed:
                self._tokens -= sum(sample.tokens for sample in samples)
                self._busy = False
                self._changed.notify_all()

    def _is_due(self) -> bool:
        return self._hurry or len(self._queue) >= MOST_SAMPLES

    def _deliver_all(self, samples: Iterable[Waiting]) -> None:
        """Batches of one kind each. Not under the lock: the host's thread never waits for it."""
        kinds: dict[Hashable, list[Waiting]] = {}
        for sample in samples:
            kinds.setdefault(sample.kind, []).append(sample)
        for group in kinds.values():
            for first in range(0, len(group), MOST_SAMPLES):
                batch = group[first : first + MOST_SAMPLES]
                self._guard.run("deliver", None, functools.partial(self._deliver, batch))

    def close_at_exit(self) -> None:
        """The process is about to end; the probe's own exit hook runs after this one.

        What is still here then is lost, and counted: the probe says so.
        """
        if self.drain(self._exit_s):
            return
        with self._changed:
            left, self._queue = self._queue, deque()
        for sample in left:
            self._lose(sample)

    def forget_after_fork(self) -> None:
        """In the child: what waits here is the parent's, and so is the thread."""
        self._start_empty()
