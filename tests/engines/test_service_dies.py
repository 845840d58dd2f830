"""The service is killed under a serving engine: the engine's users notice nothing, nothing is lost.

A real vLLM server with the plugin, a real service, kill -9. Requests go one by one with seeds of
their own, so that the same request twice is the same computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from plugged_server import PluggedServer, plugged_server
from service_process import ServiceProcess, free_port, running_service
from waiting import eventually

RUN = "plugged"
REQUESTS, TOKENS = 24, 24
BACK_S = 240.0  # the probe tries again after 30 s at most; the machine may be busy


@dataclass(frozen=True)
class Answers:
    """What the engine's user got."""

    samples: list[tuple[list[int], list[float]]]  # ids and log-probs, as in the JSON

    @property
    def tokens(self) -> int:
        """Response tokens."""
        return sum(len(ids) for ids, _ in self.samples)


def _ask(
    server: PluggedServer, *, first_prompt_token: int, pace: Callable[[int], bool] | None = None
) -> Answers:
    """REQUESTS completions with log-probs; other prompts for another `first_prompt_token`.

    `pace(n)` waits until the service has n samples of them.
    """
    samples: list[tuple[list[int], list[float]]] = []
    for number in range(REQUESTS):
        answer = server.post(
            "/v1/completions",
            {
                "prompt": [0, first_prompt_token, 20 + number], "seed": number, "logprobs": 0,
                "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True,
            },
        )  # fmt: skip
        (choice,) = answer["choices"]
        samples.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
        assert pace is None or pace(len(samples))
    return Answers(samples)


@dataclass(frozen=True)
class Outage:
    """A service, then none, then the same again; an engine that served all the time."""

    warm: Answers
    before: Answers
    during: Answers
    again: Answers  # the requests of `before`, while there was no service
    service: ServiceProcess  # the one that came back

    @property
    def tokens(self) -> int:
        """Everything that the engine sampled."""
        return sum(a.tokens for a in (self.warm, self.before, self.during, self.again))


def _outage(model: Path, folder: Path, **settings: str) -> Iterator[Outage]:
    port = free_port()
    environment = {
        "TWINSCOPE_VLLM": "1", "TWINSCOPE_RUN": RUN, "TWINSCOPE_URL": f"http://127.0.0.1:{port}",
    }  # fmt: skip
    with plugged_server(model, folder, environment={**environment, **settings}) as server:
        with running_service(folder, port=port) as service:
            # Each is there before the next is asked for: room for few is then room enough.
            warm = _ask(server, first_prompt_token=9, pace=partial(_has, service))
            before = _ask(server, first_prompt_token=10, pace=lambda n: _has(service, REQUESTS + n))
            service.process.kill()
            service.process.wait()
        again = _ask(server, first_prompt_token=10)
        during = _ask(server, first_prompt_token=11)
        with running_service(folder, port=port) as service:
            yield Outage(warm, before, during, again, service)


@pytest.fixture(scope="module")
def spooled(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """With a spool."""
    folder = tmp_path_factory.mktemp("spooled")
    yield from _outage(tiny_llama, folder, TWINSCOPE_SPOOL_DIR=str(folder / "spool"))


@pytest.fixture(scope="module")
def cramped(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    """Without one, and with room for few samples in memory."""
    folder = tmp_path_factory.mktemp("cramped")
    yield from _outage(tiny_llama, folder, TWINSCOPE_BUFFER_BYTES="6000")


def _run(service: ServiceProcess) -> dict[str, Any]:
    """The run as the service has it; empty before its first data."""
    runs = {run["run"]: run for run in service.get("/v1/runs")["runs"]}
    return dict(runs.get(RUN, {}))


def _waiting(service: ServiceProcess) -> int:
    """Tokens that arrived; all of them wait for a trainer that this test has not."""
    return int(_run(service).get("waiting_tokens", 0))


def _has(service: ServiceProcess, samples: int) -> bool:
    """Whether that many arrive."""
    return eventually(lambda: _waiting(service) == TOKENS * samples, timeout_s=BACK_S)


def _losses(service: ServiceProcess) -> list[dict[str, Any]]:
    """What the probe reported as lost, per report: the books' `dropped`."""
    events = service.get(f"/v1/runs/{RUN}/events") if _run(service) else []
    return [event["fields"]["dropped"] for event in events if event["kind"] == "probe_loss"]


def test_answers_do_not_change_when_the_service_is_gone(spooled: Outage) -> None:
    """Same seeds, same tokens, same log-probs, bit for bit (its speed: `twinscope bench probe`)."""
    assert spooled.again.samples == spooled.before.samples


def test_with_a_spool_everything_is_there_after_the_service_is_back(spooled: Outage) -> None:
    """Every token of the outage, and of the time before it, once; no loss is reported."""
    assert eventually(lambda: _waiting(spooled.service) >= spooled.tokens, timeout_s=BACK_S)
    assert _waiting(spooled.service) == spooled.tokens
    assert _losses(spooled.service) == []


def test_without_a_spool_losses_are_counted_by_reason(cramped: Outage) -> None:
    """What did not fit into memory is reported as buffer_full: arrived and lost make everything."""
    assert cramped.again.samples == cramped.before.samples
    assert eventually(lambda: _losses(cramped.service), timeout_s=BACK_S)

    def all_told() -> bool:
        lost = _losses(cramped.service)[-1]["buffer_full"]["tokens"]
        return _waiting(cramped.service) + lost == cramped.tokens

    assert eventually(all_told, timeout_s=BACK_S)
    assert {reason for lost in _losses(cramped.service) for reason in lost} == {"buffer_full"}
