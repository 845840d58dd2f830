"""The probe: what a trainer or an engine calls.

Every public call copies out, enqueues and returns. It never raises, never does I/O and never
waits for the service. What the arrays hold is looked at later, on the sending thread; what could
not be used is counted (`stats()`), and the log says why, once per kind.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from twinscope.books import Count, Ledger, ProbeStats
from twinscope.clock import Clock, SystemClock
from twinscope.errors import WireError
from twinscope.fingerprint import describe_process, find_rank, identify_process
from twinscope.gate import Gate, ask_gate
from twinscope.guard import Guard
from twinscope.items import Item, Part, late_event, message
from twinscope.lifecycle import watch_exit, watch_fork
from twinscope.plain import finite_scalars, plain_object, read_step
from twinscope.raw_call import RawCall, take_call
from twinscope.settings import SETTINGS, ProbeSettings, resolve_settings
from twinscope.ship import Backoff, Shipper
from twinscope.sink import Sink
from twinscope.slabs import SlabPool

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from twinscope.arrays import Array
    from twinscope.fields import PairFields, RefFields, RolloutFields, TrainFields

P = ParamSpec("P")
R = TypeVar("R")
logger = logging.getLogger("twinscope")
EVENT_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")
POOL_SHARE = 8  # free warm memory is at most an eighth of the buffer
LARGE_SHARE = 2  # a call of half the buffer is unpacked at once: its copy would leave no room


class Meter:
    """Calls, the seconds they took and what they refused, from all of the host's threads."""

    def __init__(self) -> None:
        self.forget_after_fork()

    def forget_after_fork(self) -> None:
        """Begin at nothing, with a fresh lock: in a child, another thread may have held the old."""
        self._lock = threading.Lock()
        self.calls = 0
        self.seconds = 0.0
        self._refused: dict[str, int] = {}

    def refuse(self, reason: str, count: int = 1) -> None:
        """Something was turned down; `reason`: one of books.REFUSE_REASONS."""
        with self._lock:
            self._refused[reason] = self._refused.get(reason, 0) + count

    def refused(self) -> dict[str, int]:
        """How much was turned down, by reason."""
        with self._lock:
            return dict(self._refused)

    def add(self, seconds: float) -> None:
        """One call."""
        with self._lock:
            self.calls += 1
            self.seconds += max(0.0, seconds)


def guarded(
    neutral: R, *, timed: bool = True
) -> Callable[[Callable[Concatenate[Probe, P], R]], Callable[Concatenate[Probe, P], R]]:
    """A public call: nothing at all when the probe is off, guarded when it is on.

    `timed`: its time counts as the host's; not for calls that are asked to wait.
    """

    def decorate(
        method: Callable[Concatenate[Probe, P], R],
    ) -> Callable[Concatenate[Probe, P], R]:
        def attempt(self: Probe, /, *args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return method(self, *args, **kwargs)
            except (WireError, TypeError):  # a TypeError: positional, or not an argument at all
                self._meter.refuse("invalid")
                raise

        @functools.wraps(method)
        def call(self: Probe, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if not self.enabled:
                return neutral
            start = self._clock.monotonic()
            try:
                return self._guard.run(method.__name__, neutral, attempt, self, *args, **kwargs)
            finally:
                if timed:
                    self._meter.add(self._clock.monotonic() - start)

        return call

    return decorate


class Probe:
    """Captures log-probs here, delivers them to a TwinScope service in the background.

        probe = Probe("http://127.0.0.1:8321", "my-run")
        probe.train(step=3, logprobs=old_log_probs, token_ids=responses, mask=response_mask)

    Arguments win over the environment variables of `twinscope.settings.SETTINGS`. Without an
    address, or with TWINSCOPE_DISABLED=1, the probe is off and its calls do nothing. Raises
    ConfigError, here and nowhere else, when an argument cannot be used.

    `sink`, `clock` and `environment` are for tests: where posts go instead of HTTP, the time, and
    what to read instead of `os.environ`.
    """

    def __init__(
        self,
        url: str | None = None,
        run: str | None = None,
        *,
        token: str | None = None,
        disabled: bool | None = None,
        buffer_bytes: int | None = None,
        post_bytes: int | None = None,
        spool_dir: str | os.PathLike[str] | None = None,
        spool_bytes: int | None = None,
        timeout_s: float | None = None,
        retry_s: float | None = None,
        exit_timeout_s: float | None = None,
        heartbeat_s: float | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        send_hostname: bool | None = None,
        raise_errors: bool | None = None,
        sink: Sink | None = None,
        clock: Clock | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self._environment = os.environ if environment is None else environment
        self._settings = resolve_settings(given, self._environment)
        self._sink = sink
        self._clock = clock or SystemClock()
        self._guard = Guard(raise_errors=self._settings.raise_errors)
        self._meter = Meter()
        self.enabled = self._guard.run("start", False, self._start)

    def _start(self) -> bool:
        """Make what a living probe needs; False for one that is off."""
        for problem in self._settings.problems:
            self._guard.note(f"environment: {problem.partition(':')[0]}", problem)
        reason = self._settings.off_because
        if self._settings.disabled or (reason is not None and self._sink is None):
            logger.warning("twinscope: the probe is off (%s); its calls do nothing", reason)
            return False
        _load()
        self._rank = find_rank(self._environment)
        self._pool = SlabPool(self._settings.buffer_bytes // POOL_SHARE)
        self._shipper = Shipper(
            self._settings,
            guard=self._guard,
            clock=self._clock,
            make_sink=functools.partial(_make_sink, self._settings, self._sink),
            backoff=Backoff(),
            pool=self._pool,
            refuse=self._meter.refuse,
            identity=functools.partial(identify_process, self._environment),
        )
        self._unwatch_exit = watch_exit(self._shipper)
        watch_fork(self._shipper)
        watch_fork(self)
        # A probe that becomes garbage: what is left is still sent, nobody waits for it.
        finalizer = weakref.finalize(self, self._shipper.close_soon, self._settings.exit_timeout_s)
        finalizer.atexit = False
        self._index = 0  # of the captured batches
        self._announced = False
        self._announce()
        return True

    # ---- capturing calls ----

    @guarded(neutral=False)
    def rollout(
        self, *, logprobs: Array = None, step: int | None = None, **fields: Unpack[RolloutFields]
    ) -> bool:
        """The engine's log-probs of the sampled tokens (q, nats). `step` is a hint, if known.

        Returns whether it was taken; never raises. What is in the arrays is checked later: see
        `stats()`. Forms of `logprobs`: layout.py; other fields: fields.RolloutFields.
        """
        return self._capture("rollout", step, {"rollout_logprobs": logprobs}, fields)

    @guarded(neutral=False)
    def rollout_from(
        self,
        read: Callable[[], Mapping[str, Any]],
        *,
        step: int | None = None,
        **fields: Unpack[RolloutFields],
    ) -> bool:
        """`rollout(**read(), **fields)`, where reading what the engine returned is guarded too.

            probe.rollout_from(lambda: read_request_outputs(outputs, sampling=params), step=step)

        A reader refuses what it cannot read (hosts/); here that is counted, not raised.
        """
        given = {**self._read(read), **fields}
        logprobs = {"rollout_logprobs": given.pop("logprobs", None)}
        return self._capture("rollout", step, logprobs, given)

    @guarded(neutral=False)
    def pair_from(self, read: Callable[[], Mapping[str, Any]], *, step: int) -> bool:
        """`pair(**read(), step=step)`, where reading the trainer's batch is guarded too.

            probe.pair_from(lambda: read_batch(data.batch), step=step)

        A side that the batch lacks stays away: the other is sent alone (hosts/sides.py).
        """
        from twinscope.hosts.sides import choose, send

        call = choose(self._read(read))
        return send(self, call, step=step)

    def _read(self, read: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """`read()`; what it cannot read is in the books."""
        found: Mapping[str, Any] | None = None
        try:
            found = read()
        finally:
            if found is None:
                self._shipper.buffer.refuse(Count(batches=1), "invalid")
        return found

    @guarded(neutral=False)
    def train(
        self, *, step: int | None = None, logprobs: Array = None, **fields: Unpack[TrainFields]
    ) -> bool:
        """The trainer's log-probs of the same tokens (p, nats), before any update of this step.

        Other fields: fields.TrainFields.
        """
        return self._capture("train", step, {"train_logprobs": logprobs}, fields)

    @guarded(neutral=False)
    def ref(
        self, *, logprobs: Array = None, step: int | None = None, **fields: Unpack[RefFields]
    ) -> bool:
        """The frozen reference policy's log-probs of the same tokens, nats.

        A trainer that has them at hand passes `ref_logprobs` to `train` instead.
        """
        return self._capture("ref", step, {"ref_logprobs": logprobs}, fields)

    @guarded(neutral=False)
    def pair(
        self,
        *,
        step: int | None = None,
        rollout_logprobs: Array = None,
        train_logprobs: Array = None,
        **fields: Unpack[PairFields],
    ) -> bool:
        """Both sides at once, where one process holds both: nothing to join.

        Other fields: fields.PairFields.
        """
        both = {"rollout_logprobs": rollout_logprobs, "train_logprobs": train_logprobs}
        return self._capture("paired", step, both, fields)

    def _capture(
        self, side: str, step: int | None, logprobs: dict[str, Array], fields: Mapping[str, Any]
    ) -> bool:
        reason = "internal_error"
        try:
            part = {"index": self._index, **self._rank_field()}
            run = self._settings.run
            call = take_call(side, step, logprobs, fields=fields, run=run, part=part)
            found = self._copy_or_unpack(call)
            reason = ""
        except WireError:
            reason = "invalid"
            raise
        finally:
            if reason:
                self._shipper.buffer.refuse(Count(batches=1), reason)
        self._index += 1  # about: two threads may share one, it is carried, not interpreted
        if isinstance(found, RawCall):
            return self._submit_raw(found)
        taken = [self._submit(part) for part in found]  # all of them, even after a loss
        return all(taken)

    def _copy_or_unpack(self, call: RawCall) -> RawCall | list[Part]:
        """The copied call, for the sending thread; or its posts.

        Unpacked here is what is large, and everything when errors are to be raised.
        """
        settings = self._settings
        limit = settings.buffer_bytes // LARGE_SHARE
        if call.nbytes < limit:
            call = call.copied(self._pool)
        if call.nbytes < limit and not settings.raise_errors:
            return call
        return call.unpack(self._pool, settings.post_bytes)

    @guarded(neutral=None)
    def count_loss(self, *, tokens: int, reason: str) -> None:
        """A host hook lost a sample before it could hand it over: into the books, by reason."""
        self._shipper.buffer.refuse(Count(batches=1, tokens=tokens), reason)

    def _rank_field(self) -> dict[str, int]:
        return {} if self._rank is None else {"rank": self._rank}

    # ---- messages ----

    @guarded(neutral=False)
    def scalar(
        self,
        /,
        *,
        step: int | None = None,
        values: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> bool:
        """Numbers of a step: reward, baseline_reward, grad_norm, entropy, lr, kl_coef ...

        Values that are not finite cannot be sent as numbers: they are refused, and an event
        `scalar_not_finite` names them.
        """
        finite, strange = finite_scalars({**(values or {}), **named})
        at = read_step(step)
        taken = True
        if strange:
            self._meter.refuse("not_finite", len(strange))
            self._send_event("scalar_not_finite", at, {"names": strange})
        if finite:
            fields = {"run": self._settings.run, "step": at, "values": finite}
            taken = self._submit(message("/v1/scalars", fields))
        return taken and not strange

    @guarded(neutral=False)
    def event(self, /, kind: str, *, step: int | None = None, **fields: Any) -> bool:
        """Something happened: weight_sync, cache_flush, restart, config_change, checkpoint ..."""
        return self._send_event(kind, None if step is None else read_step(step), fields)

    def _send_event(self, kind: str, step: int | None, fields: Mapping[str, Any]) -> bool:
        if not isinstance(kind, str) or not EVENT_KIND.fullmatch(kind):
            raise WireError("kind", kind, "pass a word such as weight_sync: a-z, 0-9 and _")
        body: dict[str, Any] = {
            "run": self._settings.run,
            "kind": kind,
            "fields": plain_object("fields", fields),
        }
        if step is not None:
            body["step"] = step
        return self._submit(message("/v1/events", body))

    @guarded(neutral=False)
    def close_step(self, step: int) -> bool:
        """No more data for this step, from any process: the service may judge it now.

        It is sent after everything this process captured before; other ranks' data that is still
        on its way counts as late. With several ranks, prefer `expect=` and let the step complete.
        """
        from urllib.parse import quote

        path = f"/v1/runs/{quote(self._settings.run, safe='')}/steps/{read_step(step)}/close"
        return self._submit(message(path, {}))

    @guarded(neutral=Gate(reasons=("the probe is off",)), timed=False)
    def gate(self, timeout: float = 5.0) -> Gate:
        """Ask the service for its verdict on the last closed step; waits `timeout` s at most.

        The only call that does I/O, for a trainer that halts on it. What was captured just now may
        still be on its way: `flush` first, and look at `step`. No answer is `unknown`.
        """
        return ask_gate(self._settings, timeout_s=timeout)

    def _submit(self, item: Item) -> bool:
        if not self._announced:  # the first use in the child of a fork
            self._announce()
        return self._shipper.submit(item)

    def _submit_raw(self, call: RawCall) -> bool:
        if not self._announced:
            self._announce()
        return self._shipper.submit_raw(call)

    def _announce(self) -> None:
        """Tell the service that this process has a probe: 'no data' is not 'never loaded'."""
        self._announced = True
        environment, settings, shipper = self._environment, self._settings, self._shipper

        def describe() -> dict[str, Any]:
            facts = describe_process(environment, send_hostname=settings.send_hostname)
            return {**facts, **shipper.identify()}

        self._shipper.submit(late_event(settings.run, "probe_attached", describe))

    # ---- lifecycle ----

    @property
    def exit_timeout_s(self) -> float:
        """Longest wait when the interpreter exits, seconds."""
        return self._settings.exit_timeout_s

    @guarded(neutral=False, timed=False)
    def flush(self, timeout: float | None = 10.0) -> bool:
        """Wait until the service has acknowledged everything; False when `timeout` s pass first."""
        return self._shipper.flush(timeout)

    @guarded(neutral=None, timed=False)
    def close(self, timeout: float | None = None) -> None:
        """Take no more, wait at most `timeout` s (default: exit_timeout_s) for what is pending.

        What is left then goes to the spool, if there is one, or is counted as lost; what lies in
        the spool stays there for the next process (`flush` before it waits for that, too). Closing
        twice is harmless; calls after it return False.
        """
        self._unwatch_exit()
        self._shipper.close(self._settings.exit_timeout_s if timeout is None else timeout)

    def stats(self) -> ProbeStats:
        """The books and the costs, at this instant. Never raises."""
        off = ProbeStats(enabled=False, url=None, run=None,
                         config_problems=self._settings.problems)  # fmt: skip
        return self._guard.run("stats", off, self._read_stats) if self.enabled else off

    def _read_stats(self) -> ProbeStats:
        shipper, settings = self._shipper, self._settings

        def look(ledger: Ledger) -> ProbeStats:
            return ProbeStats(
                enabled=True,
                url=settings.url,
                run=settings.run,
                captured=ledger.captured,
                **ledger.columns,
                dropped=dict(ledger.dropped),
                recovered=ledger.recovered,
                buffer_bytes=shipper.buffer.bytes_held(),
                buffer_capacity_bytes=settings.buffer_bytes,
                spool_bytes=shipper.spool_bytes(),
                calls=self._meter.calls,
                host_seconds=self._meter.seconds,
                refused=self._meter.refused(),
                retries=shipper.retries,
                errors=self._guard.counts(),
                last_error=self._guard.last_error,
                config_problems=settings.problems,
            )

        return shipper.buffer.read(look)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget_after_fork(self) -> None:
        """In the child: renewed locks; the first call announces the child. Not for hosts."""
        self._meter.forget_after_fork()
        self._announced = False
        self._index = 0
        self._pool.forget_after_fork()

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, a probe becomes a new one there, with the same settings."""
        return _rebuild, (self._settings,)


def _rebuild(settings: ProbeSettings) -> Probe:
    return Probe(**{setting.name: getattr(settings, setting.name) for setting in SETTINGS})


def _load() -> None:
    """Load what the sending thread needs before there is one: a fork must not interrupt imports."""
    import twinscope.http_sink
    import twinscope.wire.codec  # noqa: F401


def _make_sink(settings: ProbeSettings, sink: Sink | None) -> Sink:
    if sink is not None:
        return sink
    from twinscope.http_sink import HttpSink  # loaded already, see _load

    return HttpSink(
        str(settings.url),
        token=settings.token,
        timeout_s=settings.timeout_s,
        ca_file=settings.ca_file,
    )
