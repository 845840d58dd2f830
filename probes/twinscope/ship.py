"""The sending thread: unpacks, encodes, posts, retries, spools, keeps the books.

One daemon thread per probe and process, started with the first item. It owns the sink and the
spool; the host's threads only put into the buffer. Order is kept: what cannot be sent waits at
the head (or goes to the spool, oldest first), and everything behind it waits too.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from twinscope.books import Count
from twinscope.buffer import Buffer
from twinscope.clock import Clock, Pause
from twinscope.errors import WireError
from twinscope.guard import Guard
from twinscope.items import Item, Message, late_event, new_id
from twinscope.lifecycle import watch_multiprocessing
from twinscope.raw_call import RawCall
from twinscope.settings import ProbeSettings
from twinscope.sink import Answer, Sink
from twinscope.slabs import SlabPool
from twinscope.spool import Spool, SpooledItem
from twinscope.unpack import Unpacker

logger = logging.getLogger("twinscope")

FIRST_DELAY_S, LONGEST_DELAY_S = 0.5, 30.0
SPOOL_RETRY_S = 30.0  # after a write to the spool failed (disk full, no permission)
SPOOL_ABOVE = 0.5  # of the buffer: beyond it even a living service's backlog goes to the spool
REPORT_EVERY_S = 30.0  # losses are reported at most this often
BROKEN_PAUSE_S = 1.0  # after an error of our own on the sending thread
EXIT_SHARE = 0.6  # of the time for closing is for sending; with a spool, the rest for writing
BROKEN = Answer("broken")


class Backoff:
    """Exponential delays with jitter, so that a thousand ranks do not return in one instant."""

    def __init__(self, jitter: Callable[[], float] | None = None) -> None:
        # A generator of our own: the host's seeded `random` must give what it gives without us.
        self._jitter = jitter or random.Random().random  # in [0, 1)
        self.failures = 0

    def next_delay(self, retry_after_s: float | None) -> float:
        """Seconds until the next attempt; at least what the service asked for."""
        delay = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return max(retry_after_s or 0.0, delay * (0.5 + 0.5 * self._jitter()))

    def reset(self) -> None:
        """The service is well again."""
        self.failures = 0


class Shipper:
    """Moves items from the buffer to the service. Public methods may be called by any thread."""

    def __init__(
        self,
        settings: ProbeSettings,
        *,
        guard: Guard,
        clock: Clock,
        make_sink: Callable[[], Sink],
        backoff: Backoff,
        pool: SlabPool,
        refuse: Callable[[str], None],
        identity: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.buffer: Buffer[RawCall] = Buffer(settings.buffer_bytes)
        self._unpacker = Unpacker(
            self.buffer, guard=guard, pool=pool, post_bytes=settings.post_bytes, refuse=refuse
        )
        self.retries = 0
        self._settings = settings
        self._guard = guard
        self._clock = clock
        self._identity = identity
        self._make_sink = make_sink
        self._backoff = backoff
        self._closing = False
        self._closing_time = Pause(clock)
        self._start_empty()

    def _start_empty(self) -> None:
        """The state of a process in which nothing has been sent yet."""
        self._sink: Sink | None = None
        self._spool: Spool | None = None
        self._spool_opened = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._pause = Pause(self._clock)  # after a failure: not before
        self._told_to_wait = False  # the pause is the service's wish (Retry-After)
        self._spool_pause = Pause(self._clock)
        self._last_try = False  # closing, and an attempt has failed since
        self._nudged = False
        self._warned = False
        self._reported = Count()  # losses that the service knows of
        self._report_pause = Pause(self._clock)
        self._failing: tuple[str, float] | None = None  # batch id, since when it gets errors
        self._process = new_id()  # of this process, among all of the job
        self._beat = Pause(self._clock)  # until the next sign of life
        self._beat.begin(self._settings.heartbeat_s)

    # ---- the host's side ----

    def submit(self, item: Item) -> bool:
        """Hand over one item; False when it was dropped. Never waits for I/O."""
        accepted = self.buffer.put(item)
        self._ensure_thread()
        return accepted

    def submit_raw(self, call: RawCall) -> bool:
        """Hand over one call, copied; False when it was dropped."""
        accepted = self.buffer.put_raw(call)
        self._ensure_thread()
        return accepted

    def _ensure_thread(self) -> None:
        """Start the thread with the first item; again if it should have died."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="twinscope-probe", daemon=True)
                thread.start()  # RuntimeError at interpreter shutdown: the guard counts it
                self._thread = thread
                watch_multiprocessing(self)

    def flush(self, timeout_s: float | None) -> bool:
        """Wait until the service has everything; False when time is over first."""
        with self.buffer.changed:
            self._nudge()
            return self.buffer.changed.wait_for(self._all_shipped, timeout_s)

    def _all_shipped(self) -> bool:
        return self.buffer.is_empty() and self.buffer.ledger.columns["spooled"] == Count()

    def close_soon(self, timeout_s: float) -> None:
        """Take no more, send what is left, end: without waiting for it (garbage collection).

        A service that fails meanwhile is tried again for `timeout_s` seconds at most.
        """
        with self.buffer.changed:
            if not self._closing:
                self._closing = True
                self._closing_time.begin(timeout_s)
                if self._thread is not None:
                    self.buffer.put(self._report("probe_detached"))
            self.buffer.close()
            self._nudge()

    def close(self, timeout_s: float) -> None:
        """Take no more and wait at most `timeout_s` for what is left; then count it as lost."""
        self.close_soon(timeout_s)
        thread = self._thread
        if thread is not None and thread.is_alive():
            spooling = self._spool is not None
            thread.join(timeout_s * (EXIT_SHARE if spooling else 1.0))
            if thread.is_alive():
                self._abort()
                thread.join(timeout_s * (1 - EXIT_SHARE) if spooling else 0.0)
            if thread.is_alive() and self._spool is not None:
                self._guard.run("spool", None, self._spool_rest)  # it hangs in connect()
        self.buffer.abandon("shutdown")
        self._warn_of_losses()

    def close_at_exit(self) -> None:
        """At the end of the process: a bounded wait."""
        self._guard.run("exit", None, lambda: self.close(self._settings.exit_timeout_s))

    def _warn_of_losses(self) -> None:
        """One line at the end, if anything was lost. Clean runs are silent."""
        lost = self.buffer.read(lambda ledger: dict(ledger.dropped))
        if lost and not self._warned:
            self._warned = True
            said = [
                f"{count.batches} batches, {count.tokens} tokens, {count.messages} messages: {name}"
                for name, count in lost.items()
            ]
            more = ". close(timeout=60) waits longer, a spool_dir keeps what is left"
            hint = more if "shutdown" in lost else ""
            logger.warning("twinscope: lost in this process: %s%s", "; ".join(said), hint)

    def _abort(self) -> None:
        """A send that is still waiting may stop waiting; it then counts as not sent."""
        with self.buffer.changed:
            self._last_try = True
            self.buffer.changed.notify_all()
        if self._sink is not None:
            self._sink.abort()

    def _spool_rest(self) -> None:
        """Write what is left, also what another thread has on its way: ids make that harmless."""
        self._unpacker.unpack_waiting()
        item = self.buffer.steal()
        while item is not None and self._spool is not None and self._spool.write(item):
            self.buffer.settle(item, "spooled")
            item = self.buffer.steal()

    def spool_bytes(self) -> int:
        """Bytes this process has in the spool."""
        return 0 if self._spool is None else self._spool.nbytes

    def forget_after_fork(self) -> None:
        """In the child: nothing waits, no thread runs, connections and files are the parent's."""
        self._guard.forget_after_fork()
        if self._sink is not None:
            self._sink.forget_after_fork()
        if self._spool is not None:
            self._spool.forget_after_fork()
        self.buffer.forget_after_fork()
        self.retries = 0
        self._backoff.reset()
        self._start_empty()

    # ---- the sending thread ----

    def _run(self) -> None:
        more: bool | None = True
        while more is not False:
            more = self._guard.run("sending thread", None, self._turn)
            if more is None:  # a mistake of ours: lose that item, not the thread, and do not spin
                self.buffer.drop_taken("internal_error")
                self._wait(BROKEN_PAUSE_S)
        if self._spool is not None:
            self._guard.run("spool", None, self._spool.close)
        if self._sink is not None:
            self._guard.run("close", None, self._sink.close)

    def _turn(self) -> bool:
        """One decision; False when the thread's work is done."""
        self._take_nudge()
        self._unpacker.unpack_waiting()
        self._open_spool()
        if self._closing and (self.buffer.is_empty() or self._gave_up_closing()):
            self.buffer.abandon_waiting("shutdown")  # one may be in close(), on its way to disk
            return False
        if self._should_beat():
            self._beat.begin(self._settings.heartbeat_s)
            self._guard.run("heartbeat", None, self._send_beat)
        if self._should_spool():
            self._spool_oldest()
        elif self._pause.left() > 0:
            self._wait(self._pause.left())
        else:
            item = self._next()
            if item is None:
                self._wait_for_work()
            else:
                self._settle(item, self._deliver(item))
        return True

    def _nudge(self) -> None:
        """Under the lock: have the thread look again now, and try a service that failed."""
        self._nudged = True
        self.buffer.changed.notify_all()

    def _take_nudge(self) -> None:
        with self.buffer.changed:
            if self._nudged and not self._told_to_wait:
                self._pause.end()
            self._nudged = False

    def _wait(self, limit_s: float) -> None:
        """Until something changes, at most `limit_s` seconds."""
        with self.buffer.changed:
            if not self._nudged:
                self.buffer.changed.wait(limit_s)

    def _wait_for_work(self) -> None:
        """Until something changes, or the next sign of life is due."""
        with self.buffer.changed:
            if self._nudged or (not self._closing and self.buffer.has_waiting()):
                return
            beats = self._settings.heartbeat_s > 0 and not self._closing
            self.buffer.changed.wait(self._beat.left() if beats else None)

    def _should_beat(self) -> bool:
        """Whether it is time, and the service is not known to be away."""
        due = self._settings.heartbeat_s > 0 and self._beat.left() <= 0
        return due and not self._closing and not self._backoff.failures

    def _send_beat(self) -> None:
        """This process lives. Not in the books, not tried again: the next one says the same."""
        if self._sink is None:
            self._sink = self._make_sink()
        self._sink.send(late_event(self._settings.run, "probe_alive", self.identify).post())

    def identify(self) -> dict[str, Any]:
        """Who speaks, and how often it will be heard from."""
        return {
            "process": self._process,
            "heartbeat_s": self._settings.heartbeat_s,
            **self._identity(),
        }

    def _gave_up_closing(self) -> bool:
        """Closing: no attempt is left that could succeed in time, and nowhere to put the rest."""
        left = self._closing_time.left()
        too_late = self._told_to_wait and self._pause.left() > left
        return (too_late or (self._last_try and left <= 0)) and not self._should_spool()

    def _next(self) -> Item | None:
        """The oldest there is: the spool's files are older than what waits in memory."""
        spooled = None if self._spool is None or self._closing else self._spool.oldest()
        return spooled or self.buffer.take()

    def _deliver(self, item: Item) -> Answer:
        """Encode and post one item."""

        def deliver() -> Answer:
            try:
                post = item.post()
            except (WireError, OSError) as error:
                spooled = isinstance(item, SpooledItem)
                self._guard.note("spool" if spooled else "encode", error)
                return Answer("broken", detail="spool_lost" if spooled else "invalid")
            self._remark(post.remarks)
            if self._sink is None:
                self._sink = self._make_sink()
            return self._sink.send(post)

        return self._guard.run("send", BROKEN, deliver)

    def _remark(self, remarks: Mapping[str, str]) -> None:
        for kind, text in remarks.items():
            self._guard.remark(kind, text)

    def _settle(self, item: Item, answer: Answer) -> None:
        """Book the outcome of an attempt."""
        if answer.outcome == "accepted":
            self._recover()
            self._remark(answer.remarks)
            self._report_losses()  # before the item leaves the books: a flush waits for it too
            self._book(item, "shipped")
        elif answer.outcome == "rejected":
            self._recover()
            about = f" ({answer.about})" if answer.about else ""
            self._guard.note(f"post refused with {answer.status}{about}", answer.detail)
            self._book(item, "rejected")
        elif answer.outcome == "broken":
            self._book(item, answer.detail or "internal_error")
        else:
            self._retry_later(item, answer)

    def _recover(self) -> None:
        if self._backoff.failures:
            logger.info("twinscope: the service at %s answers again", self._settings.url)
        self._backoff.reset()
        self._pause.end()
        self._told_to_wait = False
        self._failing = None

    def _retry_later(self, item: Item, answer: Answer) -> None:
        """Put the item back and pause; or give up on one that always breaks the service."""
        self.retries += 1
        self._last_try = self._closing
        if answer.outcome in ("failed", "foreign") and self._failing_too_long(item):
            self._guard.note(f"post failed with {answer.status}", answer.detail)
            self._failing = None
            self._book(item, "gave_up")
            return
        if not isinstance(item, SpooledItem):
            self.buffer.give_back(item)
        if answer.outcome == "foreign":
            self._guard.remark(
                "foreign",
                f"{self._settings.url} does not answer like TwinScope ({answer.status} "
                f"{answer.detail}): is the address right? Trying again, the host is not affected.",
            )
        elif not self._backoff.failures:
            logger.warning(
                "twinscope: no luck with the service at %s (%s %s); keeping up to %d bytes and "
                "trying again. The host is not affected.",
                self._settings.url, answer.status or answer.outcome, answer.detail,
                self._settings.buffer_bytes,
            )  # fmt: skip
        self._guard.last_error = f"post: {answer.status or answer.outcome} {answer.detail}"
        self._told_to_wait = answer.retry_after_s is not None
        self._pause.begin(self._backoff.next_delay(answer.retry_after_s))

    def _report_losses(self) -> None:
        """Now that the service listens: what it will never see, if there is anything new.

        Once the probe closes, the farewell tells it: nothing can be queued behind that.
        """
        with self.buffer.changed:
            lost = sum(self.buffer.ledger.dropped.values(), Count())
            if not self._closing and lost != self._reported and self._report_pause.left() <= 0:
                self._reported = lost
                self._report_pause.begin(REPORT_EVERY_S)
                self.buffer.put(self._report("probe_loss"))

    def _report(self, kind: str) -> Message:
        """An event with the books as they are when it is sent."""

        def books() -> dict[str, Any]:
            return self.buffer.read(
                lambda ledger: {
                    **self.identify(),
                    "captured": asdict(ledger.captured),
                    "dropped": {name: asdict(count) for name, count in ledger.dropped.items()},
                }
            )

        return late_event(self._settings.run, kind, books)

    def _failing_too_long(self, item: Item) -> bool:
        now = self._clock.monotonic()
        if self._failing is None or self._failing[0] != item.batch_id:
            self._failing = (item.batch_id, now)
        return now - self._failing[1] >= self._settings.retry_s

    def _book(self, item: Item, outcome: str) -> None:
        if not isinstance(item, SpooledItem):
            self.buffer.settle(item, outcome)
        elif self._spool is not None and self._spool.remove(item):
            self._move_spooled(item.count, outcome)

    def _move_spooled(self, count: Count, outcome: str) -> None:
        with self.buffer.changed:
            self.buffer.ledger.move(count, "spooled", outcome)
            self.buffer.changed.notify_all()

    # ---- the spool ----

    def _open_spool(self) -> None:
        """Once, on this thread: make the folder, and take over what dead processes left."""
        if self._spool_opened or self._settings.spool_dir is None:
            return
        self._spool_opened = True
        self._guard.run("spool", None, self._try_open_spool)

    def _try_open_spool(self) -> None:
        spool = Spool(
            Path(str(self._settings.spool_dir)),
            limit_bytes=self._settings.spool_bytes,
            clock=self._clock,
            lose=self._move_spooled,
        )
        found = spool.adopt()
        with self.buffer.changed:
            self.buffer.ledger.recover(found)
        self._spool = spool

    def _should_spool(self) -> bool:
        """Whether what waits in memory belongs on the disk."""
        if self._spool is None or self._spool_pause.left() > 0 or not self.buffer.has_waiting():
            return False
        away = self._pause.left() > 0 or self._last_try
        return away or self.buffer.bytes_held() > SPOOL_ABOVE * self.buffer.capacity_bytes

    def _spool_oldest(self) -> None:
        item = self.buffer.take()
        if item is None or self._spool is None:
            return
        outcome = self._guard.run("spool", None, functools.partial(self._write, item, self._spool))
        if outcome is not None:
            self.buffer.settle(item, outcome)
        else:
            self.buffer.give_back(item)
            self._spool_pause.begin(SPOOL_RETRY_S)

    def _write(self, item: Item, spool: Spool) -> str | None:
        """Where the item is now; None: still in memory."""
        try:
            return "spooled" if spool.write(item) else None
        except WireError as error:
            self._guard.note("encode", error)
            return "invalid"
