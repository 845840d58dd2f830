"""The vLLM plugin on stand-ins with the front end's shapes; tests/engines runs the real one."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from twinscope import Probe
from twinscope.hosts import vllm_plugin
from twinscope.hosts.attach import Attachment, is_wrapped, unwrap
from twinscope.hosts.vllm_plugin import SILENT_AFTER, VLLM, Tap, install
from twinscope.testing import InMemorySink

WRAPS = (("OutputProcessor", "add_request"), ("RequestState", "make_request_output"))
numpy = pytest.importorskip("numpy")


@dataclass
class Params:
    """vLLM's SamplingParams."""

    logprobs: int | None = 0
    temperature: float = 0.7
    top_p: float = 1.0


class RequestState:
    """One sample in flight."""

    def __init__(self, request: Any, prompt_token_ids: Any, logprobs_processor: Any,
                 detokenizer: Any) -> None:  # fmt: skip
        self.prompt_token_ids = prompt_token_ids
        self.logprobs_processor = logprobs_processor
        self.detokenizer = detokenizer
        self.num_cached_tokens = 4
        self.weight_version_starts = [("3", 0)]
        self.lora_name = None

    def make_request_output(
        self, new_token_ids: Any, pooling_output: Any, finish_reason: Any, stop_reason: Any = None
    ) -> Any:
        """The output; `logprobs` is what the caller sees."""
        completion = SimpleNamespace(
            logprobs=self.logprobs_processor.logprobs, cumulative_logprob=-1.0
        )
        return SimpleNamespace(outputs=[completion])


class OutputProcessor:
    """The table of requests in flight."""

    def __init__(self) -> None:
        self.request_states: dict[str, RequestState] = {}

    def add_request(
        self, request: Any, prompt: Any, parent_req: Any = None, index: int = 0
    ) -> None:
        """A new one, with its log-probs as they will be at its end."""
        self.request_states[request.request_id] = RequestState(
            request, request.prompt_token_ids, SimpleNamespace(logprobs=request.answer),
            SimpleNamespace(output_token_ids=request.ids),
        )  # fmt: skip


class LLMEngine:
    """The engine whose construction is the greeting."""

    def __init__(self) -> None:
        self.output_processor = OutputProcessor()
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(model="m", logprobs_mode="processed_logprobs"),
            scheduler_config=SimpleNamespace(), use_v2_model_runner=False,
        )  # fmt: skip


@dataclass
class Flat:
    """vLLM's FlatLogprobs with logprobs=0."""

    logprobs: list[float]
    start_indices: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start_indices = list(range(len(self.logprobs)))

    def __len__(self) -> int:
        return len(self.start_indices)


def _request(name: str, ids: list[int], answer: Any, params: Params | None = None) -> Any:
    return SimpleNamespace(
        request_id=name, external_req_id=name, ids=ids, answer=answer, prompt_token_ids=[1, 2],
        sampling_params=params or Params(),
    )  # fmt: skip


@dataclass
class Plugged:
    """An engine with the plugin in place."""

    engine: Any
    tap: Tap
    sink: InMemorySink
    probe: Probe

    def finish(self, request: Any, reason: str = "stop", parent: Any = None) -> Any:
        """Add, run one step, end; the output of the end."""
        processor = self.engine.output_processor
        processor.add_request(request, None, parent)
        state = processor.request_states.pop(request.request_id)
        state.make_request_output([5], None, None)
        return state.make_request_output([6], None, reason)

    def arrived(self) -> list[Any]:
        """Everything so far, delivered."""
        assert self.tap.drain(10)
        assert self.probe.flush(10)
        return self.sink.batches()


@pytest.fixture
def front_end(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The modules that the plugin waits for, with fresh classes."""
    module = ModuleType(vllm_plugin.FRONT_END)
    module.RequestState = type("RequestState", (RequestState,), dict(vars(RequestState)))  # type: ignore[attr-defined]
    module.OutputProcessor = type(
        "OutputProcessor", (OutputProcessor,), dict(vars(OutputProcessor))
    )  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, vllm_plugin.FRONT_END, module)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return module


@pytest.fixture
def plugged(front_end: Any, monkeypatch: pytest.MonkeyPatch, closing: list[Probe]) -> Any:
    """`make(share=...)` an engine of vLLM 0.33 with the plugin switched on."""

    def make(share: str = "0") -> Plugged:
        sink = InMemorySink()
        probe = Probe(sink=sink)
        closing.append(probe)
        environment = {VLLM.variable: "1", vllm_plugin.SHARE: share, "TWINSCOPE_RAISE": "1",
                       vllm_plugin.REPLICA: "e1"}  # fmt: skip
        tap = Tap(Attachment(VLLM, environment=environment, make_probe=lambda: probe), "0.33.0")
        engine_class = type("LLMEngine", (LLMEngine,), dict(vars(LLMEngine)))
        engines = ModuleType("vllm.v1.engine.llm_engine")
        engines.LLMEngine = engine_class  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, engines.__name__, engines)
        install(tap)
        # The stand-ins find each other by name, as vLLM's modules do.
        monkeypatch.setattr(sys.modules[__name__], "RequestState", front_end.RequestState)
        monkeypatch.setattr(sys.modules[__name__], "OutputProcessor", front_end.OutputProcessor)
        return Plugged(engine_class(), tap, sink, probe)

    return make


def test_finished_samples_of_one_kind_share_a_batch(plugged: Any) -> None:
    """Ids, values, prompts, versions, cached tokens, labels; another temperature, another batch."""
    running = plugged()
    for name in ("a", "b"):
        running.finish(_request(name, [5, 6], Flat([-1.0, -2.0])))
    running.finish(
        _request("c", [7], [{7: SimpleNamespace(logprob=-3.0)}], Params(0, 1.0)), "length"
    )

    batches = running.arrived()

    assert sorted(batch.samples for batch in batches) == [1, 2]
    two = next(batch for batch in batches if batch.samples == 2)
    assert two.tensors["rollout_logprobs"].tolist() == [-1, -2, -1, -2]
    assert two.tensors["prompt_ids"].tolist() == [1, 2, 1, 2]
    assert two.tensors["rollout_version"].tolist() == [3, 3]
    assert two.tensors["cached_tokens"].tolist() == [4, 4]
    assert two.sampling["temperature"] == 0.7
    assert two.groups["replica"] == ("e1", "e1")
    assert two.groups["finish_reason"] == ("stop", "stop")
    assert two.rollout["runner"] == "v1"
    assert running.tap.seen == {"captured": 3}


def test_greeting_says_that_an_older_engine_keeps_no_weight_versions(
    front_end: Any, plugged: Any
) -> None:
    """As before vLLM 0.32: the samples arrive, without a version, and the event names the field."""

    def construct(state: Any, request: Any, prompt_token_ids: Any, logprobs_processor: Any,
                  detokenizer: Any) -> None:  # fmt: skip
        state.prompt_token_ids, state.num_cached_tokens = prompt_token_ids, 0
        state.logprobs_processor, state.detokenizer = logprobs_processor, detokenizer

    newer = plugged()
    front_end.RequestState.__init__ = construct
    for owner, name in WRAPS:
        unwrap(getattr(front_end, owner), name)
    older = plugged()
    older.finish(_request("a", [5], Flat([-1.0])))

    (batch,) = older.arrived()
    assert "rollout_version" not in batch.tensors
    assert older.sink.events("host_attached")[0]["fields"]["not_seen"] == ["weight_version"]
    assert newer.arrived() == []
    assert "not_seen" not in newer.sink.events("host_attached")[0]["fields"]


def test_caller_may_go_on_with_lists_that_it_owns_too(plugged: Any) -> None:
    """What is appended after the end stays out; a shortened list is lost and counted."""
    running = plugged()
    ids, flat, rows = [5, 6], Flat([-1.0, -2.0]), [{7: SimpleNamespace(logprob=-3.0)}]
    short = [8, 9]
    running.tap._guard.raise_errors = running.probe._guard.raise_errors = False
    running.finish(_request("a", ids, flat))
    ids.append(9)
    flat.logprobs.append(-9.0)
    flat.start_indices.append(2)
    running.finish(_request("b", [7], rows), "length")
    rows.append({1: SimpleNamespace(logprob=-9.0)})
    (batch,) = running.arrived()
    running.finish(_request("c", short, Flat([-1.0, -2.0])))
    short.pop()

    assert batch.tensors["token_ids"].tolist() == [5, 6, 7]
    assert batch.tensors["rollout_logprobs"].tolist() == [-1, -2, -3]
    assert len(running.arrived()) == 1
    assert running.probe.stats().dropped["invalid"].batches == 1


def test_what_cannot_be_used_is_counted_by_reason(plugged: Any) -> None:
    """Aborted, without log-probs, empty: nothing arrives, the counts say why."""
    running = plugged()
    running.finish(_request("a", [5], Flat([-1.0])), "abort")
    running.finish(_request("b", [5], None, Params(logprobs=None)))
    running.finish(_request("c", [], Flat([])))

    assert running.arrived() == []
    assert running.tap.seen == {"aborted": 1, "no_logprobs": 1, "empty": 1}


def test_traffic_without_logprobs_is_told_once(plugged: Any) -> None:
    """'Attached and no data' has its own event."""
    running = plugged()
    for number in range(2 * SILENT_AFTER):
        running.finish(_request(str(number), [5], None, Params(logprobs=None)))

    running.arrived()
    assert len(running.sink.events("host_no_logprobs")) == 1
    assert len(running.sink.events("host_attached")) == 1


def test_share_asks_for_nobody_who_asked_and_hides_what_it_asked_for(plugged: Any) -> None:
    """n=2 shares one parameter object: both samples are captured, neither is shown."""
    running = plugged(share="1")
    parent = SimpleNamespace(sampling_params=Params(logprobs=None))
    shared = Params(logprobs=None)

    outputs = [
        running.finish(_request(f"{i}_a", [5], Flat([-1.0]), shared), parent=parent)
        for i in range(2)
    ]
    asked = running.finish(_request("b", [6], Flat([-2.0])))

    assert [output.outputs[0].logprobs for output in outputs] == [None, None]
    assert asked.outputs[0].logprobs is not None
    assert sum(batch.samples for batch in running.arrived()) == 3


@pytest.mark.parametrize("share", ["lots", "-1", "2", "nan"])
def test_share_that_is_none_switches_nothing_on(plugged: Any, share: str) -> None:
    """A launcher's mistake is logged, not obeyed."""
    running = plugged(share=share)
    running.finish(_request("a", [5], None, Params(logprobs=None)))

    assert running.tap.seen == {"no_logprobs": 1}


def test_front_end_of_another_shape_is_refused_and_left_alone(
    front_end: Any, closing: list[Probe]
) -> None:
    """A renamed parameter: nothing is wrapped, the event names the method."""
    sink = InMemorySink()
    closing.append(Probe(sink=sink))
    attachment = Attachment(
        VLLM, environment={VLLM.variable: "untested"}, make_probe=lambda: closing[0]
    )
    front_end.RequestState.make_request_output = lambda self, tokens, reason: None

    install(Tap(attachment, "0.71.0"))

    assert not is_wrapped(front_end.OutputProcessor, "add_request")
    assert closing[0].flush(10)
    assert (
        "RequestState.make_request_output" in (sink.events("host_refused")[0]["fields"]["reason"])
    )


def test_capture_that_fails_never_reaches_the_engine(plugged: Any) -> None:
    """As in a run, without TWINSCOPE_RAISE: the output is vLLM's own, the error is counted."""
    running = plugged()
    running.tap._guard.raise_errors = False
    request = _request("a", [5], Flat([-1.0]))
    request.prompt_token_ids = None

    broken = SimpleNamespace(logprobs=object())
    running.engine.output_processor.add_request(request, None)
    state = running.engine.output_processor.request_states["a"]
    state.logprobs_processor = broken
    output = state.make_request_output([5], None, "stop")

    assert output.outputs[0].logprobs is broken.logprobs
    assert sum(running.tap._guard.counts().values()) == 1
