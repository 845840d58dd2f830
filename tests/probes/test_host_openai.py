"""Answers of a real vLLM server, recorded, become arguments of `probe.rollout`."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from twinscope.errors import WireError
from twinscope.hosts.openai import read_completion, read_completions

ANSWERS = Path(__file__).resolve().parents[1] / "vectors/answers"


def _answer(name: str) -> Any:
    return json.loads((ANSWERS / f"vllm_{name}.json").read_text())


def test_completion_with_token_ids_gives_one_sample_per_choice() -> None:
    """Two prompts, n=2: each choice brings its prompt, ids and values, in the server's order."""
    found = read_completion(_answer("completions_token_ids"))

    assert found["prompt_ids"] == [[0, 5, 6, 7], [0, 5, 6, 7], [0, 9, 9], [0, 9, 9]]
    assert found["token_ids"][2] == [286, 306, 128, 433]
    assert found["logprobs"][2][2] == -6.2891106605529785
    assert [len(sample) for sample in found["logprobs"]] == [4, 4, 4, 4]


def test_token_strings_are_read_where_ids_are_missing() -> None:
    """`token_id:N` strings give the ids; the prompt stays unknown, not empty."""
    found = read_completion(_answer("completions_token_strings"))

    assert found["token_ids"] == [[139, 241, 93, 2], [395, 291, 79, 116]]
    assert found["logprobs"][0][0] == -5.151985168457031
    assert "prompt_ids" not in found


def test_chat_answer_shares_its_prompt_among_choices() -> None:
    """/v1/chat/completions puts the prompt beside the choices and log-probs into entries."""
    found = read_completion(_answer("chat_token_ids"))

    assert found["prompt_ids"] == [[5, 6], [5, 6]]
    assert found["token_ids"] == [[137, 118, 344], [137, 498, 480]]
    assert found["logprobs"][1] == [-0.9535559415817261, -3.8880410194396973, -2.3620946407318115]


def test_text_alone_is_refused_never_tokenised_again() -> None:
    """Without ids the error names the first token and the flag that brings ids."""
    with pytest.raises(WireError, match=r"choices\[0\].*tokens\[0\].*'t380'.*return_token_ids"):
        read_completion(_answer("completions_text_only"))


def test_answer_without_logprobs_says_how_to_ask() -> None:
    """The fix for both endpoints is in the message."""
    with pytest.raises(WireError, match=r'responses\[0\]\.choices\[0\]\.logprobs.*"logprobs"'):
        read_completion(_answer("chat_no_logprobs"))


def test_error_answer_is_not_a_completion() -> None:
    """The server's own message is shown."""
    with pytest.raises(WireError, match="does not exist"):
        read_completion(_answer("error"))


def test_null_becomes_nan_and_sentinel_travels_as_it_is() -> None:
    """What the server could not say must reach the service under its own name."""
    answer = copy.deepcopy(_answer("completions_token_ids"))
    answer["choices"][0]["logprobs"]["token_logprobs"][1] = None
    answer["choices"][0]["logprobs"]["token_logprobs"][2] = -9999.0

    first = read_completion(answer)["logprobs"][0]

    assert math.isnan(first[1])
    assert first[2] == -9999.0


def test_ids_and_values_of_different_length_are_refused() -> None:
    """Speculative decoding once returned more rows than tokens: nothing is paired by guesswork."""
    answer = copy.deepcopy(_answer("completions_token_ids"))
    answer["choices"][1]["token_ids"].pop()

    with pytest.raises(WireError, match=r"choices\[1\]\.logprobs.*4 values.*3 ids"):
        read_completion(answer)


def test_sampling_is_what_the_request_said_and_nothing_more() -> None:
    """Unset parameters stay unknown: the model's generation_config may have set them."""
    request = {"temperature": 0.7, "top_p": None, "max_tokens": 5, "logit_bias": {"17": 2}}

    found = read_completion(
        _answer("completions_token_ids"), request=request, logprobs_mode="raw_logprobs"
    )

    assert found["sampling"] == {"temperature": 0.7, "logit_bias": {"17": 2.0}}
    assert found["fingerprint"] == {
        "name": "vllm",
        "version": "0.32.0",
        "system_fingerprint": "vllm-0.32.0-091ddf79",
        "logprobs_mode": "raw_logprobs",
    }


def test_many_answers_read_as_one_batch() -> None:
    """Samples keep the order of the answers; two different servers are both named."""
    other = {**_answer("completions_token_ids"), "system_fingerprint": "vllm-0.33.0-00000000"}

    found = read_completions([_answer("completions_token_ids"), other])

    assert len(found["token_ids"]) == 8
    assert found["fingerprint"]["system_fingerprint"] == "vllm-0.32.0-091ddf79,vllm-0.33.0-00000000"
    assert "version" not in found["fingerprint"]


def test_cached_tokens_are_known_only_where_they_are_one_samples_own() -> None:
    """`usage` counts a whole answer: with one choice it is the sample's, with several nobody's."""
    single = copy.deepcopy(_answer("completions_token_ids"))
    single["choices"] = single["choices"][:1]
    single["usage"]["prompt_tokens_details"]["cached_tokens"] = 3

    assert read_completion(single)["cached_tokens"] == [3]
    assert "cached_tokens" not in read_completion(_answer("completions_token_ids"))
