"""vLLM without code in the caller: every finished request that carries log-probs is captured.

vLLM loads the entry point `vllm.general_plugins: twinscope` in all of its processes. It does
nothing unless TWINSCOPE_VLLM is set (attach.py). Then it wraps two methods of the front end, where
the offline LLM class, AsyncLLM inside RL frameworks and the HTTP servers meet:

OutputProcessor.add_request         which engine and which effective sampling parameters
RequestState.make_request_output    the finished request: all its tokens, whatever was streamed

Which weights made a sample is known from vLLM 0.32 on, where the request's state keeps the spans of
its weight versions; the greeting says where it is not (`not_seen`).

Aborted requests are left out: nobody trains on them as they are. Log-probs are never switched on
for traffic that did not ask, except for a share the user sets: TWINSCOPE_VLLM_SHARE=0.01, chosen by
a hash of the request id; callers do not see those log-probs.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

from twinscope.errors import DidNotAttach
from twinscope.hosts.attach import Attachment, Host, minors, when_imported, wrap
from twinscope.hosts.collector import Collector
from twinscope.hosts.sampling import read_sampling
from twinscope.hosts.vllm import read_engine, read_request_outputs

logger = logging.getLogger("twinscope")

VLLM = Host("vllm", "TWINSCOPE_VLLM", versions=minors(0, 23, 33))
SHARE = "TWINSCOPE_VLLM_SHARE"
REPLICA = "TWINSCOPE_REPLICA"
FRONT_END = "vllm.v1.engine.output_processor"
ENGINES = (("vllm.v1.engine.llm_engine", "LLMEngine"), ("vllm.v1.engine.async_llm", "AsyncLLM"))
# What the wraps rely on: parameters of these methods, attributes that these constructors set.
PARAMETERS = {
    "RequestState.make_request_output": ("new_token_ids", "pooling_output", "finish_reason"),
    "RequestState.__init__": ("prompt_token_ids", "logprobs_processor", "detokenizer"),
    "OutputProcessor.add_request": ("request", "prompt", "parent_req"),
}
VERSIONS = "weight_version_starts"  # of RequestState: (version, first response token) of each span
COLUMNS = {"logprobs": "float32", "token_ids": "int32", "prompt_ids": "int32"}
SILENT_AFTER = 32  # requests without log-probs and none with: say so once


def register() -> None:
    """What the entry point calls (entry.py); imports nothing of vLLM."""
    attachment = Attachment(VLLM)
    if attachment.switch != "off":
        attachment.guard.run("register", None, lambda: _register(attachment))


def _register(attachment: Attachment) -> None:
    version = getattr(sys.modules.get("vllm"), "__version__", None)
    attachment.attach(version, lambda: install(Tap(attachment, version)))


def install(tap: Tap) -> None:
    """Wrap the front end now or when it is imported: engine processes never import it."""
    when_imported(FRONT_END, functools.partial(_wrap_front_end, tap))
    for module_name, class_name in ENGINES:
        when_imported(module_name, functools.partial(_wrap_engine, tap, class_name))


def self_test(front_end: ModuleType) -> None:
    """Raise DidNotAttach when the front end is not the one that the wraps were written for."""
    for path, expected in PARAMETERS.items():
        class_name, method = path.split(".")
        function = getattr(getattr(front_end, class_name, None), method, None)
        found = inspect.signature(function).parameters if function is not None else {}
        missing = [name for name in expected if name not in found]
        if missing:
            raise DidNotAttach(f"vllm: {path} has no {', '.join(missing)}; update twinscope")


def keeps_versions(front_end: ModuleType) -> bool:
    """Whether the constructor of RequestState sets what the weight versions are read from."""
    constructor = inspect.unwrap(front_end.RequestState.__init__)
    return VERSIONS in constructor.__code__.co_names


def _wrap_front_end(tap: Tap, front_end: ModuleType) -> None:
    def install() -> None:
        self_test(front_end)
        if not keeps_versions(front_end):
            tap.not_seen.append("weight_version")
        wrap(front_end.OutputProcessor, "add_request", tap.wrap_add)
        wrap(front_end.RequestState, "make_request_output", tap.wrap_output)

    tap.attach(install)


def _wrap_engine(tap: Tap, class_name: str, module: ModuleType) -> None:
    wrap(getattr(module, class_name), "__init__", tap.wrap_engine)


@dataclass(frozen=True)
class Engine:
    """What one engine object of this process said of itself when it was made."""

    fingerprint: Mapping[str, Any]
    replica: str


@dataclass(frozen=True)
class Request:
    """What is remembered of a request while it runs."""

    engine: Engine | None  # None: made before the hook came
    params: Any  # vLLM's SamplingParams, with the engine's defaults filled in
    hidden: bool  # log-probs that only we asked for


@dataclass(frozen=True)
class Finished:
    """One sample, still in vLLM's lists and layout; reads as a RequestOutput."""

    request: Request
    size: int  # response tokens at the end; the lists below may be longer by now
    token_ids: list[int]
    logprobs: Any
    prompt_token_ids: list[int] | None
    num_cached_tokens: int | None
    weight_versions: Sequence[Any]
    finish_reason: str
    lora: str

    @property
    def outputs(self) -> tuple[Finished]:
        """Itself: vLLM keeps one state per sample, also with n > 1."""
        return (self,)

    @property
    def tokens(self) -> int:
        """Response tokens."""
        return self.size

    @property
    def kind(self) -> Hashable:
        """Samples of one batch share the engine, the sampling and what is known of them."""
        sampling = sorted(read_sampling(self.request.params).items())
        known = (self.prompt_token_ids is None, self.num_cached_tokens is None)
        numbered = all(span.version.isdecimal() for span in self.weight_versions)
        return id(self.request.engine), repr(sampling), known, numbered, not self.weight_versions


class Tap:
    """The wraps of one process and what they have seen."""

    def __init__(self, attachment: Attachment, version: str | None) -> None:
        self._attachment = attachment
        self._version = version
        self._guard = attachment.guard
        self._share = _read_share(attachment.environment)
        self._collector: Collector | None = None  # None: no engine in this process yet
        self.seen: Counter[str] = Counter()  # finished requests: captured, or why not
        self.not_seen: list[str] = []  # fields of a batch that this vLLM does not tell

    def attach(self, install: Callable[[], None]) -> None:
        """An import must not fail because a hook does."""
        self._guard.run("attach", False, lambda: self._attachment.attach(self._version, install))

    # ---- the wraps ----

    def wrap_engine(self, original: Callable[..., None]) -> Callable[..., None]:
        """Around the constructors of LLMEngine and AsyncLLM."""

        def __init__(engine: Any, *args: Any, **kwargs: Any) -> None:
            original(engine, *args, **kwargs)
            self._guard.run("engine", None, lambda: self._greet(engine))

        return __init__

    def wrap_add(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around OutputProcessor.add_request."""

        def add_request(
            processor: Any, request: Any, prompt: Any, parent_req: Any = None,
            *args: Any, **kwargs: Any,
        ) -> Any:  # fmt: skip
            hidden = self._guard.run("share", False, lambda: self._ask(request, parent_req))
            result = original(processor, request, prompt, parent_req, *args, **kwargs)
            self._guard.run("request", None, lambda: _remember(processor, request, hidden=hidden))
            return result

        return add_request

    def wrap_output(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Around RequestState.make_request_output, which runs at every step of every request."""

        def make_request_output(
            state: Any, new_token_ids: Any, pooling_output: Any, finish_reason: Any,
            *args: Any, **kwargs: Any,
        ) -> Any:  # fmt: skip
            result = original(state, new_token_ids, pooling_output, finish_reason, *args, **kwargs)
            request: Request | None = getattr(state, "twinscope", None)
            if request is not None and request.hidden and result is not None:
                self._guard.run("hide", None, lambda: _hide(result))
            if request is not None and finish_reason is not None:
                reason = str(finish_reason)
                self._guard.run("finish", None, lambda: self.finish(state, request, reason))
            return result

        return make_request_output

    # ---- what they do ----

    def _greet(self, engine: Any) -> None:
        """A new engine: keep its fingerprint, say that the hook is in place."""
        if not self._attachment.probe().enabled:
            return
        found = Engine(fingerprint_of(engine), _replica(self._attachment.environment))
        engine.output_processor.twinscope = found
        self.listen()
        facts = {"not_seen": self.not_seen} if self.not_seen else {}
        self._attachment.announce(
            self._version,
            engine=found.fingerprint,
            replica=found.replica,
            share=self._share,
            **facts,
        )

    def listen(self) -> None:
        """Be ready for samples. Before it nothing is taken."""
        probe = self._attachment.probe()  # first: exit hooks run in reverse, ours hands over to its
        if self._collector is None:
            self._collector = Collector(
                self.deliver, lose=self._lose, guard=self._guard, exit_s=probe.exit_timeout_s
            )

    def _ask(self, request: Any, parent: Any) -> bool:
        """Switch log-probs on for the share of the requests that did not ask. True: done.

        With n > 1 the samples share one copy of the parent's parameters: the parent's tell who
        asked.
        """
        params = request.sampling_params
        asked = params if parent is None else parent.sampling_params
        if self._collector is None or params is None or asked.logprobs is not None:
            return False
        digest = hashlib.blake2b(str(request.external_req_id).encode(), digest_size=8).digest()
        if int.from_bytes(digest, "big") >= self._share * 2.0**64:
            return False
        params.logprobs = 0
        return True

    def finish(self, state: Any, request: Request, reason: str) -> None:
        """A request is over: hand it over if it can be used, count it in any case."""
        if self._collector is None:
            return
        logprobs = state.logprobs_processor.logprobs if state.logprobs_processor else None
        word = _skip_because(state, logprobs, reason)
        if word is None:
            self._collector.add(_hand_over(state, request, logprobs, reason))
        self.seen[word or "captured"] += 1
        if self.seen["no_logprobs"] == SILENT_AFTER and not self.seen["captured"]:
            self._attachment.probe().event("host_no_logprobs", host="vllm", **self.seen)

    def _lose(self, sample: Any) -> None:
        self.seen["no_room"] += 1
        self._attachment.probe().count_loss(tokens=sample.tokens, reason="buffer_full")

    def deliver(self, samples: list[Finished]) -> None:
        """One batch to the probe; on the collector's thread."""
        request, probe = samples[0].request, self._attachment.probe()
        groups = {
            "finish_reason": [sample.finish_reason for sample in samples],
            "lora": [sample.lora for sample in samples],
        }
        facts: dict[str, Any] = {}
        if request.engine is not None:
            facts["fingerprint"] = request.engine.fingerprint
            groups["replica"] = [request.engine.replica] * len(samples)
        probe.rollout_from(lambda: _read(samples, request.params), groups=groups, **facts)

    def drain(self, timeout: float | None = None) -> bool:
        """Hand everything finished so far to the probe; False when the time was over first."""
        return self._collector is None or self._collector.drain(timeout)


def fingerprint_of(engine: Any) -> dict[str, Any]:
    """`read_engine`, and what only the process itself knows."""
    config = engine.vllm_config
    speculative = getattr(config, "speculative_config", None)
    found = {
        **read_engine(engine),
        "model": getattr(config.model_config, "model", None),
        "generation_config": getattr(config.model_config, "generation_config", None),
        "chunked_prefill": getattr(config.scheduler_config, "enable_chunked_prefill", None),
        "rejection_method": getattr(speculative, "rejection_sample_method", None),
        "batch_invariant": os.environ.get("VLLM_BATCH_INVARIANT"),
        "front_end": type(engine).__name__,
    }
    return {name: value for name, value in found.items() if value is not None}


def _read(samples: Sequence[Finished], params: Any) -> dict[str, Any]:
    """Arguments of `Probe.rollout`, as arrays where numpy is loaded: cheaper to copy."""
    found = read_request_outputs([_cut(sample) for sample in samples], sampling=params)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        for name, dtype in COLUMNS.items():
            if name in found:
                found[name] = [numpy.asarray(row, dtype) for row in found[name]]
    return found


def _skip_because(state: Any, logprobs: Any, reason: str) -> str | None:
    """Why a finished request is left out; None: it is not."""
    if logprobs is None:
        return "no_logprobs"
    if reason in ("abort", "error"):
        return "aborted"
    if getattr(state, "streaming_input", False):
        return "streaming_input"  # the prompt grows while the request lives
    return None if len(logprobs) else "empty"


def _hand_over(state: Any, request: Request, logprobs: Any, reason: str) -> Finished:
    """What vLLM will not touch any more, by reference: the cost does not grow with the sample."""
    ids = state.detokenizer.output_token_ids
    spans = getattr(state, VERSIONS, ())
    return Finished(
        request=request,
        size=len(ids),
        token_ids=ids,
        logprobs=logprobs,
        prompt_token_ids=state.prompt_token_ids,
        num_cached_tokens=state.num_cached_tokens,
        weight_versions=[SimpleNamespace(version=str(v), start=first) for v, first in spans],
        finish_reason=reason,
        lora=getattr(state, "lora_name", None) or "",
    )


def _cut(sample: Finished) -> Finished:
    """Without what the caller, who owns the same lists, may have appended since."""
    size, logprobs = sample.size, sample.logprobs
    starts = getattr(logprobs, "start_indices", None)
    if starts is None:
        logprobs = logprobs[:size]
    elif len(starts) > size:
        end = starts[size]
        logprobs = SimpleNamespace(start_indices=starts[:size], logprobs=logprobs.logprobs[:end])
    return replace(sample, token_ids=sample.token_ids[:size], logprobs=logprobs)


def _remember(processor: Any, request: Any, *, hidden: bool) -> None:
    """Tie the request's state to its engine and its effective parameters."""
    state = processor.request_states.get(request.request_id)
    if state is not None and request.sampling_params is not None:
        engine = getattr(processor, "twinscope", None)
        state.twinscope = Request(engine, request.sampling_params, hidden)


def _hide(output: Any) -> None:
    """Nobody but us asked for these log-probs."""
    for completion in output.outputs:
        completion.logprobs = None
        completion.cumulative_logprob = None


def _read_share(environment: Mapping[str, str]) -> float:
    """0 for what is not a share: a launcher's mistake does not switch anything on."""
    text = environment.get(SHARE, "").strip() or "0"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if 0.0 <= share <= 1.0:
        return share
    logger.warning("twinscope: %s=%s: use a number from 0 to 1; taken as 0", SHARE, text)
    return 0.0


def _replica(environment: Mapping[str, str]) -> str:
    """Tells engines of one run apart: a fault in one of many hides in the mean of all."""
    return environment.get(REPLICA, "").strip()[:64] or f"pid{os.getpid()}"
