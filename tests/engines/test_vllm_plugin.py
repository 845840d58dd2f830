"""The vLLM plugin, real: installed, switched on by its variable, no code in the caller.

The engine runs in a process of its own, started as a user starts it; what the caller saw comes
back as JSON and is compared with what the service side received, bit for bit.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plugged_server import PluggedServer, plugged_server
from service_process import ROOT
from waiting import eventually

from twinscope.testing import SinkServer
from twinscope.wire.batch import Batch

LONGEST = 300  # tokens
CALLER = Path(__file__).parent / "plugin_caller.py"
ON = {"TWINSCOPE_VLLM": "1", "TWINSCOPE_RUN": "plugged", "TWINSCOPE_REPLICA": "engine-7"}
ARRIVAL_S = 120.0  # a sample is on its way for a quarter of a second, if the machine has time


def _call(script: str, url: str, model: Path, **environment: str) -> dict[str, Any]:
    """What the caller printed last, as JSON. Its process ends when everything has been sent."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TWINSCOPE_")}
    clean["TWINSCOPE_EXIT_TIMEOUT_S"] = str(ARRIVAL_S)
    done = subprocess.run(
        [sys.executable, str(CALLER), script, str(model)], cwd=ROOT,
        env={**clean, "TWINSCOPE_URL": url, **environment},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    loaded: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**loaded, "stderr": done.stderr}


@pytest.fixture(scope="module")
def offline(tiny_llama: Path) -> Iterator[tuple[dict[str, Any], SinkServer]]:
    """Several kinds of requests through LLM.generate, and what arrived."""
    with SinkServer() as sink:
        yield _call("offline", sink.url, tiny_llama, **ON), sink


def _arrive(sink: SinkServer, samples: int, before: int) -> bool:
    """Whether that many come in batches after the first `before`."""
    return eventually(
        lambda: sum(batch.samples for batch in sink.batches()[before:]) >= samples,
        timeout_s=ARRIVAL_S,
    )


def _answers(sink: SinkServer, before: int) -> list[tuple[int, ...]]:
    """The token ids of each sample in batches after the first `before`."""
    return [ids for _, ids in _rows(sink.batches()[before:])]


def _rows(batches: list[Batch]) -> dict[tuple[tuple[int, ...], ...], list[list[float]]]:
    """(prompt, response) -> the log-probs that arrived for it."""
    found: dict[tuple[tuple[int, ...], ...], list[list[float]]] = {}
    for batch in batches:
        tensors, at, prompt_at = batch.tensors, batch.offsets, batch.tensors["prompt_offsets"]
        for s in range(batch.samples):
            prompt = tensors["prompt_ids"][prompt_at[s] : prompt_at[s + 1]].tolist()
            ids = tensors["token_ids"][at[s] : at[s + 1]].tolist()
            values = tensors["rollout_logprobs"][at[s] : at[s + 1]].tolist()
            found.setdefault((tuple(prompt), tuple(ids)), []).append(values)
    return found


def test_every_completion_with_logprobs_arrives_bit_for_bit(
    offline: tuple[dict[str, Any], SinkServer],
) -> None:
    """n=2, both layouts, top-p, penalties, stop tokens, cached prefixes: as the caller saw them."""
    seen, sink = offline

    arrived = _rows(sink.batches())

    wanted: dict[Any, list[list[float]]] = {}
    for sample in seen["samples"]:
        key = (tuple(sample["prompt"]), tuple(sample["ids"]))
        wanted.setdefault(key, []).append([float(np.float32(v)) for v in sample["logprobs"]])
    assert {key: sorted(rows) for key, rows in arrived.items()} == {
        key: sorted(rows) for key, rows in wanted.items()
    }


def test_parameters_and_cache_hits_are_those_of_the_engine(
    offline: tuple[dict[str, Any], SinkServer],
) -> None:
    """Effective sampling per batch; cached prefix per sample."""
    seen, sink = offline

    batches = sink.batches()

    by_top_p = {batch.sampling["top_p"]: batch for batch in batches if batch.sampling}
    assert set(by_top_p) == {0.8, 1.0}
    assert by_top_p[0.8].sampling is not None
    assert by_top_p[0.8].sampling["repetition_penalty"] == 1.1
    cached = np.concatenate([batch.tensors["cached_tokens"] for batch in batches])
    assert sorted(cached.tolist()) == sorted(sample["cached"] for sample in seen["samples"])
    assert cached.max() >= 128


def test_weight_versions_arrive_or_the_greeting_says_that_this_vllm_keeps_none(
    offline: tuple[dict[str, Any], SinkServer],
) -> None:
    """The version that the trainer set on its samples; before vLLM 0.32 no sample has one."""
    seen, sink = offline

    found = {v for b in sink.batches() for v in b.tensors.get("rollout_version", np.array([]))}
    (attached,) = sink.events("host_attached")

    assert found == ({12} if seen["tells_versions"] else set())
    not_seen = attached["fields"].get("not_seen", [])
    assert not_seen == ([] if seen["tells_versions"] else ["weight_version"])


def test_fingerprint_and_groups_name_the_engine(
    offline: tuple[dict[str, Any], SinkServer],
) -> None:
    """Each batch carries the engine's facts; the heartbeat carries them before any data."""
    seen, sink = offline

    batch = sink.batches()[0]
    attached = sink.events("host_attached")

    assert len(attached) == 1
    assert attached[0]["fields"]["engine"]["logprobs_mode"] == "processed_logprobs"
    assert batch.rollout is not None
    assert batch.rollout["version"] == seen["version"]
    assert batch.rollout["runner"] in ("v1", "v2")
    assert set(batch.groups["replica"]) == {"engine-7"}
    assert {label for b in sink.batches() for label in b.groups["finish_reason"]} == {
        "stop", "length",
    }  # fmt: skip


def test_requests_that_did_not_ask_stay_without_logprobs(
    offline: tuple[dict[str, Any], SinkServer],
) -> None:
    """The plugin asks for nothing by itself, and nothing of such a request arrives."""
    seen, _ = offline

    assert seen["unasked_logprobs"] == [None, None]


def test_installed_but_not_switched_on_patches_nothing(tiny_llama: Path) -> None:
    """Without the variable the classes are vLLM's own and the service hears nothing."""
    with SinkServer() as sink:
        seen = _call("patched", sink.url, tiny_llama)
        assert sink.posts == []

    assert seen["wrapped"] == []
    assert seen["loaded_modules"] == []


def test_unknown_version_is_refused_by_name(tiny_llama: Path) -> None:
    """The engine works, the log and the service name the version; `untested` insists."""
    with SinkServer() as sink:
        refused = _call("other_version", sink.url, tiny_llama, **ON)
        events = sink.events("host_refused")
    with SinkServer() as sink:
        on = {**ON, "TWINSCOPE_VLLM": "untested"}
        insisted = _call("other_version", sink.url, tiny_llama, **on)

    assert refused["wrapped"] == []
    assert "0.99" in events[0]["fields"]["reason"]
    assert "TWINSCOPE_VLLM=untested" in refused["stderr"]
    assert "OutputProcessor.add_request" in insisted["wrapped"]


def test_share_is_captured_and_hidden_from_the_caller(tiny_llama: Path) -> None:
    """With a share of 1 everything arrives; the caller still sees no log-probs.

    The engine runs in the caller's process, as trainers with a colocated one start it: there the
    attention backend that vLLM picked by itself can be seen, too.
    """
    alone = {"TWINSCOPE_VLLM_SHARE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with SinkServer() as sink:
        seen = _call("share", sink.url, tiny_llama, **ON, **alone)
        arrived = _rows(sink.batches())
        (attached,) = sink.events("host_attached")

    assert attached["fields"]["engine"]["attention_backend"] == "CPU_ATTN"
    assert seen["logprobs"] == [None] * 4
    assert sorted(ids for _, ids in arrived) == sorted(tuple(ids) for ids in seen["ids"])
    assert all(len(rows[0]) == len(ids) for (_, ids), rows in arrived.items())


@pytest.fixture(scope="module")
def served(
    tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PluggedServer, SinkServer]]:
    """vLLM's HTTP server, switched on by the environment; the model brings sampling defaults."""
    folder = tmp_path_factory.mktemp("served")
    model = shutil.copytree(tiny_llama, folder / "model")
    defaults = json.loads((model / "generation_config.json").read_text())
    defaults |= {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    (model / "generation_config.json").write_text(json.dumps(defaults))
    with (
        SinkServer() as sink,
        plugged_server(
            model, folder, environment={**ON, "TWINSCOPE_URL": sink.url}, generation_config="auto"
        ) as server,
    ):
        yield server, sink


def test_served_streaming_and_whole_answers_arrive(
    served: tuple[PluggedServer, SinkServer],
) -> None:
    """A whole answer and a streamed one, both with log-probs: ids and values as in the JSON."""
    server, sink = served
    before = len(sink.batches())
    body = {
        "prompt": [0, 20, 21, 22], "max_tokens": 12, "logprobs": 0, "temperature": 1.0,
        "return_token_ids": True,
    }  # fmt: skip

    whole = server.post("/v1/completions", body)["choices"][0]
    parts = [chunk["choices"][0] for chunk in server.stream("/v1/completions", body)]

    streamed_ids = [token for part in parts for token in part["token_ids"] or []]
    streamed = [value for part in parts for value in part["logprobs"]["token_logprobs"]]
    wanted = {
        tuple(whole["token_ids"]): np.float32(whole["logprobs"]["token_logprobs"]).tolist(),
        tuple(streamed_ids): np.float32(streamed).tolist(),
    }
    assert _arrive(sink, 2, before)
    arrived = _rows(sink.batches()[before:])
    assert {ids: rows[0] for (_, ids), rows in arrived.items()} == wanted


def test_parameters_that_the_client_left_to_the_model_arrive_as_they_were_used(
    served: tuple[PluggedServer, SinkServer],
) -> None:
    """Temperature and top-p from the model's generation_config.json; the client's own win."""
    server, sink = served
    before = len(sink.batches())
    body = {"prompt": [0, 40, 41], "max_tokens": 4, "logprobs": 0}

    server.post("/v1/completions", body)
    server.post("/v1/completions", {**body, "temperature": 0.9})

    assert _arrive(sink, 2, before)
    used = [batch.sampling or {} for batch in sink.batches()[before:]]
    assert {(s["temperature"], s["top_p"]) for s in used} == {(0.6, 0.9), (0.9, 0.9)}


def test_aborted_stream_is_left_out_and_the_server_lives(
    served: tuple[PluggedServer, SinkServer],
) -> None:
    """The client hangs up after the first token: the next request is served and arrives.

    A busy machine may notice the hang-up when the answer is complete: such a one was not aborted
    and arrives whole. Three clients hang up.
    """
    server, sink = served

    others = [_arrived_beside_the_next(server, sink) for _ in range(3)]

    assert all(len(ids) == LONGEST for answers in others for ids in answers)
    assert [] in others


def _arrived_beside_the_next(server: PluggedServer, sink: SinkServer) -> list[tuple[int, ...]]:
    """Hang up, ask for something short and wait for it: the other answers that have arrived."""
    before = len(sink.batches())
    body = {
        "prompt": [0, 30, 31], "max_tokens": LONGEST, "logprobs": 0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    next(iter(server.stream("/v1/completions", body)))
    after = server.post("/v1/completions", {**body, "max_tokens": 5})["choices"][0]
    wanted = tuple(after["token_ids"])
    assert eventually(lambda: wanted in _answers(sink, before), timeout_s=ARRIVAL_S)
    return [ids for ids in _answers(sink, before) if ids != wanted]
