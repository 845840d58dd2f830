"""AsyncLLM, real, with the explicit wrapper: what the caller sees, and what the probe sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope import Probe
from twinscope.hosts.vllm import observe
from twinscope.testing import InMemorySink

Use = Callable[[Any, Probe], Coroutine[Any, Any, Any]]


@pytest.fixture(scope="module")
def seen(tiny_llama: Path) -> dict[str, Any]:
    """One engine in one event loop for everything: (answer, batches, stats) of each use."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(
        str(tiny_llama), logprobs_mode="processed_logprobs", enforce_eager=True,
        max_model_len=384, gpu_memory_utilization=0.2, seed=1,
    )  # fmt: skip

    async def run() -> dict[str, Any]:
        engine = AsyncLLM.from_engine_args(arguments)
        try:
            return {use.__name__: await _with_probe(engine, use) for use in USES}
        finally:
            engine.shutdown()

    return asyncio.run(run())


async def _with_probe(engine: Any, use: Use) -> tuple[Any, list[Any], Any]:
    sink = InMemorySink()
    with Probe(sink=sink, raise_errors=False) as probe:
        answer = await use(engine, probe)
        probe.flush(10)
        return answer, sink.batches(), probe.stats()


def _generate(engine: Any, probe: Probe, **sampling: Any) -> Any:
    from vllm import SamplingParams

    params = SamplingParams(**{"max_tokens": 16, "logprobs": 0, "seed": 3, **sampling})
    prompt = {"prompt_token_ids": [0, 20, 21, 22]}
    outputs = engine.generate(prompt, params, f"request-{id(params)}")
    return observe(outputs, probe, sampling=params, engine=engine, version=7)


async def to_the_end(engine: Any, probe: Probe) -> Any:
    """The last state of each of two samples; the one that ends first may come in its own output."""
    completions = {}
    async for output in _generate(engine, probe, n=2, temperature=0.7):
        completions |= {completion.index: completion for completion in output.outputs}
    return [completions[index] for index in sorted(completions)]


async def left_early(engine: Any, probe: Probe) -> bool:
    """Whether the engine forgot the request when the caller stopped listening."""
    outputs = _generate(engine, probe, max_tokens=300, ignore_eos=True)
    await anext(outputs)
    await outputs.aclose()
    return not engine.output_processor.has_unfinished_requests()


async def in_pieces(engine: Any, probe: Probe) -> int:
    """Tokens that a streaming caller got."""
    from vllm.sampling_params import RequestOutputKind

    pieces = _generate(engine, probe, output_kind=RequestOutputKind.DELTA, ignore_eos=True)
    return sum([len(piece.outputs[0].token_ids) async for piece in pieces])


USES: tuple[Use, ...] = (to_the_end, left_early, in_pieces)


def test_finished_request_is_sent_as_the_caller_sees_it(seen: dict[str, Any]) -> None:
    """n=2: ids, values bit for bit, effective parameters, the caller's version, the runner."""
    completions, (batch,), _ = seen["to_the_end"]

    wanted = [
        (list(c.token_ids), [c.logprobs[t][token].logprob for t, token in enumerate(c.token_ids)])
        for c in completions
    ]
    at = batch.offsets
    found = [
        (
            batch.tensors["token_ids"][at[s] : at[s + 1]].tolist(),
            batch.tensors["rollout_logprobs"][at[s] : at[s + 1]].tolist(),
        )
        for s in range(batch.samples)
    ]
    assert found == [(ids, np.float32(values).tolist()) for ids, values in wanted]
    assert batch.sampling["temperature"] == 0.7
    assert batch.tensors["rollout_version"].tolist() == [7, 7]
    assert batch.rollout["logprobs_mode"] == "processed_logprobs"
    assert batch.rollout["runner"] in ("v1", "v2")


def test_request_that_the_caller_leaves_is_aborted_and_not_sent(seen: dict[str, Any]) -> None:
    """Closing the wrapper closes vLLM's generator, which ends the request in the engine."""
    forgotten, batches, _ = seen["left_early"]

    assert forgotten
    assert batches == []


def test_pieces_reach_the_caller_and_are_refused_by_the_probe(seen: dict[str, Any]) -> None:
    """DELTA outputs lack what came before: counted as invalid, the log names the way out."""
    tokens, batches, stats = seen["in_pieces"]

    assert tokens == 16
    assert batches == []
    assert stats.dropped["invalid"].batches == 1
    assert "output_kind" in stats.last_error
