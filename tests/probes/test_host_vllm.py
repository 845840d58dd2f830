"""vLLM's output objects, by their documented shapes; tests/engines reads the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from twinscope import Probe
from twinscope.errors import WireError
from twinscope.hosts.vllm import observe, read_engine, read_request_outputs
from twinscope.testing import InMemorySink


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass
class Flat:
    """vLLM's FlatLogprobs: position i starts at start_indices[i], sampled token first."""

    start_indices: list[int]
    token_ids: list[int]
    logprobs: list[float]


@dataclass
class Completion:
    token_ids: list[int]
    logprobs: Any
    weight_versions: Any = None
    index: int = 0
    finish_reason: str | None = "length"


@dataclass
class Request:
    outputs: list[Completion]
    prompt_token_ids: list[int] | None = field(default_factory=lambda: [1, 2, 3])
    num_cached_tokens: int | None = 0
    finished: bool = True


def _spans(*versions: str) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(version=version, start=i, end=i + 1) for i, version in enumerate(versions)
    ]


def test_both_layouts_give_the_sampled_token_whatever_else_is_listed() -> None:
    """The sampled token is not always the likeliest; rank may not pick another one."""
    rows = [{7: Logprob(-2.5, 3), 4: Logprob(-0.1, 1)}, {9: Logprob(-0.25, 1), 4: Logprob(-3.0, 2)}]
    flat = Flat([0, 2], [7, 4, 9, 4], [-2.5, -0.1, -0.25, -3.0])
    single = Flat([0, 1], [7, 9], [-2.5, -0.25])

    found = read_request_outputs(
        [Request([Completion([7, 9], layout) for layout in (rows, flat, single)])]
    )

    assert found["logprobs"] == [[-2.5, -0.25]] * 3
    assert found["token_ids"] == [[7, 9]] * 3
    assert found["prompt_ids"] == [[1, 2, 3]] * 3


def test_growing_lists_are_copied() -> None:
    """vLLM's cumulative outputs alias lists that the engine goes on appending to."""
    flat = Flat([0], [7], [-2.5])
    completion = Completion([7], flat)

    found = read_request_outputs([Request([completion])])
    flat.logprobs.append(-1.0)
    completion.token_ids.append(8)

    assert found["logprobs"] == [[-2.5]]
    assert found["token_ids"] == [[7]]


def _observe(*pieces: Request) -> list[Any]:
    """The batches that a caller's loop over these outputs sends."""

    async def generate() -> AsyncGenerator[Request, None]:
        for piece in pieces:
            yield piece

    async def listen(probe: Probe) -> int:
        return len([piece async for piece in observe(generate(), probe)])

    sink = InMemorySink()
    with Probe(sink=sink) as probe:
        assert asyncio.run(listen(probe)) == len(pieces)
        probe.flush(10)
    return sink.batches()


def test_sample_that_ends_before_its_sibling_is_sent_with_it() -> None:
    """vLLM's last output holds one completion, or both, as fast as the caller reads."""
    first = Completion([7], Flat([0], [7], [-2.5]), index=1)
    growing = Completion([5], Flat([0], [5], [-0.5]), index=0, finish_reason=None)
    last = Completion([5, 6], Flat([0, 1], [5, 6], [-0.5, -1.5]), index=0)

    (apart,) = _observe(
        Request([growing], finished=False), Request([first], finished=False), Request([last])
    )
    (together,) = _observe(Request([growing], finished=False), Request([last, first]))

    for batch in (apart, together):
        assert batch.tensors["token_ids"].tolist() == [5, 6, 7]
        assert batch.tensors["rollout_logprobs"].tolist() == [-0.5, -1.5, -2.5]
        assert batch.offsets.tolist() == [0, 2, 3]


def test_request_with_an_aborted_sample_is_not_sent() -> None:
    """The rest of an aborted request is not what the trainer gets."""
    aborted = Completion([7], Flat([0], [7], [-2.5]), index=1, finish_reason="abort")
    last = Completion([5], Flat([0], [5], [-0.5]), index=0)

    assert _observe(Request([aborted], finished=False), Request([last])) == []


def test_logprobs_that_were_not_asked_for_are_named() -> None:
    """The message says which output, and which argument of the engine brings them."""
    outputs = [Request([Completion([1], Flat([0], [1], [-1.0]))]), Request([Completion([1], None)])]

    with pytest.raises(WireError, match=r"outputs\[1\]\.outputs\[0\]\.logprobs.*logprobs=0"):
        read_request_outputs(outputs)


def test_rows_and_tokens_of_different_length_are_refused() -> None:
    """Three rows for two tokens cannot be paired."""
    with pytest.raises(WireError, match=r"3 rows.*2 token ids"):
        read_request_outputs(
            [Request([Completion([1, 2], Flat([0, 1, 2], [1, 2, 3], [-1.0] * 3))])]
        )


def test_unfinished_request_is_refused() -> None:
    """A partial sample would be joined with nothing."""
    with pytest.raises(WireError, match=r"outputs\[0\]\.finished"):
        read_request_outputs([Request([Completion([1], [{1: Logprob(-1.0)}])], finished=False)])


@pytest.mark.parametrize(
    ("spans", "version", "changes"),
    [(_spans("12"), [12], None), (_spans("12", "13"), [12], [(0, 1, 13)]),
     (_spans("default"), None, None), (_spans("12", "default"), None, None), ([], None, None),
     (None, None, None)],
)  # fmt: skip
def test_weight_versions_are_numbers_or_unknown(spans: Any, version: Any, changes: Any) -> None:
    """A change inside a sample is a span; an unnamed version is unknown, not zero."""
    completion = Completion([1, 2], Flat([0, 1], [1, 2], [-1.0, -1.0]), weight_versions=spans)

    found = read_request_outputs([Request([completion])])

    assert found.get("version") == version
    assert found.get("version_spans") == changes


def test_unknown_prompt_or_cache_of_one_sample_leaves_the_column_out() -> None:
    """A column is known for every sample or absent."""
    known = Request([Completion([1], Flat([0], [1], [-1.0]))], num_cached_tokens=2)
    unknown = Request([Completion([1], Flat([0], [1], [-1.0]))], None, None)

    assert read_request_outputs([known])["cached_tokens"] == [2]
    assert {"cached_tokens", "prompt_ids"}.isdisjoint(read_request_outputs([known, unknown]))


def test_nothing_generated_reads_as_no_samples() -> None:
    """An empty list is an empty batch, not an error."""
    assert read_request_outputs([]) == {"logprobs": [], "token_ids": []}


def test_attention_backend_is_the_one_in_use_where_the_engine_runs_here() -> None:
    """Each layer group names its own; without a look into the engine, the one chosen by hand."""
    backends = [SimpleNamespace(get_name=lambda name=name: name) for name in ("MLA", "FLASH_ATTN")]
    groups = [[SimpleNamespace(backend=backend)] for backend in backends]
    path = ("model_runner", "worker", "driver_worker", "model_executor", "engine_core")
    inner = SimpleNamespace(attn_groups=groups)
    for name in path:
        inner = SimpleNamespace(**{name: inner})
    chosen = SimpleNamespace(attention_config=SimpleNamespace(backend="TRITON_ATTN"))

    here = SimpleNamespace(vllm_config=chosen, engine_core=inner)
    elsewhere = SimpleNamespace(vllm_config=chosen, engine_core=SimpleNamespace())

    assert read_engine(here)["attention_backend"] == "FLASH_ATTN+MLA"
    assert read_engine(elsewhere)["attention_backend"] == "TRITON_ATTN"


def test_engine_fingerprint_says_what_q_means() -> None:
    """The mode, dtype, cache and model numerics come from the configuration; the rest is absent."""
    model = SimpleNamespace(
        dtype="torch.bfloat16",
        logprobs_mode="processed_logprobs",
        hf_text_config=SimpleNamespace(
            model_type="llama",
            rms_norm_eps=1e-6,
            rope_parameters={"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0},
        ),
    )
    config = SimpleNamespace(
        model_config=model,
        parallel_config=SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(cache_dtype="fp8", enable_prefix_caching=True),
        speculative_config=None,
    )

    offline = read_engine(SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=config)))

    assert offline == read_engine(SimpleNamespace(vllm_config=config))
    assert offline == {
        "name": "vllm", "dtype": "bfloat16", "logprobs_mode": "processed_logprobs",
        "tp": 2, "pp": 1, "kv_cache_dtype": "fp8", "prefix_caching": True, "model_type": "llama",
        "rms_norm_eps": 1e-6, "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    }  # fmt: skip


def test_host_is_not_hurt_by_an_output_that_cannot_be_read() -> None:
    """`rollout_from` counts what the reader refuses and answers False: the run goes on."""
    sink = InMemorySink()
    with Probe(sink=sink, environment={}) as probe:
        taken = probe.rollout_from(lambda: read_request_outputs([Request([Completion([1], None)])]))
        stats = probe.stats()

    assert not taken
    assert stats.dropped["invalid"].batches == 1
    assert "logprobs=0" in (stats.last_error or "")
    assert sink.batches() == []


def test_what_was_read_arrives_with_what_the_caller_adds() -> None:
    """Ids, values, prompts, versions and the caller's step, as the service decodes them."""
    flat = Flat([0, 1], [7, 9], [-2.5, -0.25])
    outputs = [Request([Completion([7, 9], flat, _spans("3"))])]
    sink = InMemorySink()
    with Probe(sink=sink, environment={}) as probe:
        assert probe.rollout_from(
            lambda: read_request_outputs(outputs, sampling={"temperature": 0.7}), step=4
        )
        assert probe.flush(10)

    batch = sink.batches()[0]
    assert (batch.step, batch.sampling) == (4, {"temperature": 0.7})
    assert batch.tensors["rollout_logprobs"].tolist() == [-2.5, -0.25]
    assert batch.tensors["token_ids"].tolist() == [7, 9]
    assert batch.tensors["prompt_ids"].tolist() == [1, 2, 3]
    assert batch.tensors["rollout_version"].tolist() == [3]
