"""vLLM's LLM class, real: its tokens through the probes, HTTP and the service, checked outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from float64_numbers import expected_metrics
from service_process import ServiceProcess, running_service

from twinscope.hosts.vllm import read_engine, read_request_outputs

# A shared prefix longer than the CPU build's cache block (128 tokens), then 1 to 16 own tokens.
PREFIX = [0, *(5 + 7 * i % 500 for i in range(160))]
PROMPTS = [{"prompt_token_ids": [*PREFIX, *range(20 + i, 21 + 2 * i)]} for i in range(16)]
STOP_TOKENS = [40, 41, 42]  # rare enough for long samples, common enough for ragged ones


@pytest.fixture(scope="module")
def engine(tiny_llama: Path) -> Iterator[Any]:
    """The engine as RL frameworks start it: log-probs of the density that is sampled."""
    from vllm import LLM

    llm = LLM(
        str(tiny_llama),
        logprobs_mode="processed_logprobs",
        enable_prefix_caching=True,
        enforce_eager=True,
        max_model_len=384,
        gpu_memory_utilization=0.2,  # on the CPU: of the machine's memory, and it must be free
        seed=1,
    )
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def policy(tiny_llama: Path) -> Any:
    """The trainer's copy of the same weights."""
    from transformers_scoring import load_model

    return load_model(tiny_llama)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One service for the module: every test has a run of its own."""
    with running_service(tmp_path_factory.mktemp("service")) as process:
        yield process


def _sampling(**changes: Any) -> Any:
    from vllm import SamplingParams

    settings = {"n": 2, "max_tokens": 96, "logprobs": 0, "stop_token_ids": STOP_TOKENS}
    return SamplingParams(**{**settings, "flat_logprobs": True, **changes})


def _sample(engine: Any, sampling: Any) -> dict[str, Any]:
    outputs = engine.generate(PROMPTS, sampling, use_tqdm=False)
    return read_request_outputs(outputs, sampling=sampling, engine=engine)


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "dictionaries"])
def test_reader_hands_over_what_the_caller_sees(engine: Any, *, flat: bool) -> None:
    """Values bit for bit, ids, prompts, in the order of the completions; top log-probs stay out."""
    sampling = _sampling(max_tokens=8, logprobs=3, flat_logprobs=flat)

    outputs = engine.generate(PROMPTS[:4], sampling, use_tqdm=False)
    found = read_request_outputs(outputs)

    completions = [completion for output in outputs for completion in output.outputs]
    assert found["token_ids"] == [list(completion.token_ids) for completion in completions]
    assert found["prompt_ids"] == [o.prompt_token_ids for o in outputs for _ in o.outputs]
    assert found["logprobs"] == [
        [c.logprobs[t][token].logprob for t, token in enumerate(c.token_ids)] for c in completions
    ]


def test_untouched_pair_is_ok_and_its_numbers_are_exact(
    engine: Any, policy: Any, service: ServiceProcess
) -> None:
    """n=2, ragged by stop tokens, joined by content: the service shows what float64 gives."""
    from transformers_scoring import score
    from twin import send_step

    rollout = _sample(engine, _sampling())
    train = score(policy, rollout["prompt_ids"], rollout["token_ids"])

    view = send_step(service, "untouched", 3, rollout=rollout, train=train)

    lengths = [len(ids) for ids in rollout["token_ids"]]
    assert len(set(lengths)) > 3
    assert view["coverage"]["received"] == view["coverage"]["counted"] == sum(lengths)
    assert view["samples"] == len(lengths) == 2 * len(PROMPTS)
    assert view["state"] == "closed"
    assert view["verdict"] == "ok", view["reasons"]
    expected = expected_metrics(rollout["logprobs"], train.rows())
    assert {name: view["metrics"][name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_temperature_that_the_trainer_forgot_is_inconsistent(
    engine: Any, policy: Any, service: ServiceProcess
) -> None:
    """T=0.7 on the engine, none in the trainer; restoring it makes the same samples agree."""
    from transformers_scoring import score
    from twin import send_step

    rollout = _sample(engine, _sampling(temperature=0.7))
    prompts, responses = rollout["prompt_ids"], rollout["token_ids"]
    forgotten, restored = (score(policy, prompts, responses, temperature=t) for t in (1.0, 0.7))

    wrong = send_step(service, "temperature-forgotten", 0, rollout=rollout, train=forgotten)
    right = send_step(service, "temperature-restored", 0, rollout=rollout, train=restored)

    expected = expected_metrics(rollout["logprobs"], forgotten.rows())
    assert wrong["metrics"]["k3_mean"] == pytest.approx(expected["k3_mean"], rel=1e-6)
    assert wrong["metrics"]["k3_mean"] > 0.01
    assert wrong["verdict"] == "inconsistent"
    assert right["verdict"] == "ok", right["reasons"]


def test_prefix_cache_hits_are_recorded_and_harmless(
    engine: Any, policy: Any, service: ServiceProcess
) -> None:
    """The second time the shared prefix comes from the cache: counted per sample, still exact."""
    from transformers_scoring import score
    from twin import send_step

    _sample(engine, _sampling(n=1, max_tokens=1))
    rollout = _sample(engine, _sampling())
    train = score(policy, rollout["prompt_ids"], rollout["token_ids"])

    view = send_step(service, "prefix-cache", 1, rollout=rollout, train=train)

    assert min(rollout["cached_tokens"]) >= 128
    assert view["verdict"] == "ok", view["reasons"]
    expected = expected_metrics(rollout["logprobs"], train.rows())
    assert view["metrics"]["k3_mean"] == pytest.approx(expected["k3_mean"], rel=1e-6)


def test_fingerprint_and_sampling_are_the_effective_ones(engine: Any) -> None:
    """vLLM raises a tiny temperature to 0.01 and drops top_p when greedy: that is recorded."""
    from vllm import SamplingParams

    from twinscope.hosts.sampling import read_sampling

    fingerprint = read_engine(engine)

    assert fingerprint["version"] == "0.32.0"
    assert fingerprint["logprobs_mode"] == "processed_logprobs"
    assert fingerprint["dtype"] == "bfloat16"
    assert fingerprint["prefix_caching"] is True
    assert fingerprint["rms_norm_eps"] == 1e-6
    assert fingerprint["rope_theta"] == 10000.0
    assert read_sampling(SamplingParams(temperature=0.001))["temperature"] == 0.01
    assert read_sampling(SamplingParams(temperature=0.0, top_p=0.5))["top_p"] == 1.0


def test_engine_that_was_not_asked_for_logprobs_says_how_to_ask(engine: Any) -> None:
    """A real output without log-probs ends in an error with the fix, not in zeros."""
    from vllm import SamplingParams

    from twinscope.errors import WireError

    outputs = engine.generate(PROMPTS[:1], SamplingParams(max_tokens=2), use_tqdm=False)

    with pytest.raises(WireError, match="logprobs=0"):
        read_request_outputs(outputs)
