"""vLLM's OpenAI-compatible server, real: its JSON carries enough for an exact comparison."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from float64_numbers import expected_metrics
from service_process import ROOT, ServiceProcess, free_port, running_service, stop, wait_until_up

from twinscope.hosts.openai import read_completion, read_completions

START_SECONDS = 240.0
# Chat messages are rendered as their bare text, so that prompts are words of the tokenizer.
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
PROMPTS = [[0, *range(20 + i, 24 + 2 * i)] for i in range(16)]


@dataclass(frozen=True)
class Server:
    """An engine that answers /health."""

    url: str

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON answer to POST `path`."""
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps({"model": "tiny", **body}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=240) as answer:
            loaded: dict[str, Any] = json.load(answer)
        return loaded


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server with vLLM's defaults: raw log-probs, prefix caching."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    template, log = folder / "chat.jinja", folder / "server.log"
    template.write_text(TEMPLATE)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(tiny_llama), "--served-model-name", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--chat-template", str(template)]
    command += ["--enforce-eager", "--max-model-len", "384", "--seed", "1"]
    command += ["--generation-config", "vllm", "--gpu-memory-utilization", "0.2"]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_up(f"{url}/health", process, log=log, seconds=START_SECONDS)
        yield Server(url)
    finally:
        stop(process)


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


def _body(**changes: Any) -> dict[str, Any]:
    body = {"prompt": PROMPTS, "n": 2, "max_tokens": 64, "logprobs": 0, "return_token_ids": True}
    return {**body, "temperature": 1.0, **changes}


def test_served_completions_are_ok_and_exact(
    server: Server, policy: Any, service: ServiceProcess
) -> None:
    """One request, sixteen prompts, n=2, a stop string: JSON loses no bit that is needed."""
    from transformers_scoring import score
    from twin import send_step

    body = _body(stop=["t77"])
    rollout = read_completion(
        server.post("/v1/completions", body), request=body, logprobs_mode="raw_logprobs"
    )
    train = score(policy, rollout["prompt_ids"], rollout["token_ids"])

    view = send_step(service, "served", 0, rollout=rollout, train=train)

    assert rollout["prompt_ids"] == [prompt for prompt in PROMPTS for _ in range(2)]
    assert view["samples"] == 2 * len(PROMPTS)
    assert view["verdict"] == "ok", view["reasons"]
    expected = expected_metrics(rollout["logprobs"], train.rows())
    assert {name: view["metrics"][name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_raw_logprobs_against_a_tempered_trainer_are_inconsistent(
    server: Server, policy: Any, service: ServiceProcess
) -> None:
    """The default mode ignores T: a trainer that restores T=0.7 compares two densities."""
    from transformers_scoring import score
    from twin import send_step

    body = _body(temperature=0.7)
    rollout = read_completion(server.post("/v1/completions", body), request=body)
    train = score(policy, rollout["prompt_ids"], rollout["token_ids"], temperature=0.7)

    view = send_step(service, "served-raw", 0, rollout=rollout, train=train)

    expected = expected_metrics(rollout["logprobs"], train.rows())
    assert view["metrics"]["k3_mean"] == pytest.approx(expected["k3_mean"], rel=1e-6)
    assert view["metrics"]["k3_mean"] > 0.01
    assert view["verdict"] == "inconsistent"


def test_chat_answers_and_token_strings_join_the_same_trainer(
    server: Server, policy: Any, service: ServiceProcess
) -> None:
    """Sixteen chats, one answer each with two choices, read as one batch: same exact numbers."""
    from transformers_scoring import score
    from twin import send_step

    body = {"n": 2, "max_tokens": 64, "logprobs": True, "return_token_ids": True}
    chats = [" ".join(["<s>", *(f"t{token}" for token in prompt[1:])]) for prompt in PROMPTS]
    answers = [
        server.post(
            "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": chat}]}
        )
        for chat in chats
    ]
    rollout = read_completions(answers, request=body)
    train = score(policy, rollout["prompt_ids"], rollout["token_ids"])

    view = send_step(service, "chats", 0, rollout=rollout, train=train)

    assert rollout["prompt_ids"][0] == PROMPTS[0]
    assert view["verdict"] == "ok", view["reasons"]
    expected = expected_metrics(rollout["logprobs"], train.rows())
    assert view["metrics"]["k3_mean"] == pytest.approx(expected["k3_mean"], rel=1e-6)


def test_token_strings_equal_token_ids(server: Server) -> None:
    """Greedy twice: the ids in `token_id:N` strings are those that `return_token_ids` gives."""
    body = _body(prompt=PROMPTS[0], n=1, max_tokens=12, temperature=0.0)

    by_ids = read_completion(server.post("/v1/completions", body))
    strings = {**body, "return_token_ids": False, "return_tokens_as_token_ids": True}
    by_strings = read_completion(server.post("/v1/completions", strings))

    assert by_strings["token_ids"] == by_ids["token_ids"]
    assert by_strings["logprobs"] == by_ids["logprobs"]


def test_server_example_prints_the_verdict(
    server: Server, tiny_llama: Path, service: ServiceProcess
) -> None:
    """examples/vllm_server.py against this server, as a user runs it."""
    command = [sys.executable, str(ROOT / "examples/vllm_server.py")]
    command += ["--server", server.url, "--url", service.url, "--run", "server-example"]
    command += ["--model", str(tiny_llama), "--logprobs-mode", "raw_logprobs"]

    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert printed.strip().splitlines()[-1].startswith("ok, rollout_train_kl")
