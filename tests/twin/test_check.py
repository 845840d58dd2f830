"""The twin test against a stand-in server whose policy is known exactly; real vLLM: tests/engines.

The "model" is a table: the next token depends on the last one only, so both sides can be computed
by hand, and a fault is a change of the table, the temperature or the cache.
"""

from __future__ import annotations

import functools
import json
import math
import random
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest

from twinscope.errors import ConfigError
from twinscope_service.config import load_settings
from twinscope_service.twin.cached import Cached
from twinscope_service.twin.cells import Result, cells, judge, repeat, repeat_engine
from twinscope_service.twin.engine import Engine, request, served_model
from twinscope_service.twin.report import Report, junit, picture, table

VOCABULARY = 40
LENGTH = 80
PROMPTS = [[i % VOCABULARY, (7 * i) % VOCABULARY] for i in range(1, 21)]


@functools.cache
def _logits(last: int, *, sharpness: float = 1.0) -> list[float]:
    table = random.Random(last)
    return [sharpness * table.gauss(0.0, 1.5) for _ in range(VOCABULARY)]


@functools.cache
def _logprobs(last: int, temperature: float, *, sharpness: float = 1.0) -> list[float]:
    scaled = [x / temperature for x in _logits(last, sharpness=sharpness)]
    top = max(scaled)
    total = math.log(sum(math.exp(x - top) for x in scaled)) + top
    return [x - total for x in scaled]


def score(
    prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], *, temperature: float
) -> list[list[float]]:
    """The trainer, with the true table and a little rounding noise of its own."""
    rows = []
    for prompt, response in zip(prompts, responses, strict=True):
        context = [prompt[-1], *response[:-1]]
        noise = random.Random(str((prompt, response)))
        rows.append([
            _logprobs(last, temperature)[token] + noise.gauss(0.0, 0.003)
            for last, token in zip(context, response, strict=True)
        ])  # fmt: skip
    return rows


class Table(BaseHTTPRequestHandler):
    """A server of the table's policy: /v1/models, /v1/completions; log-probs are processed ones."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # one segment per answer: two would wait for each other (Nagle)
    sharpness = 1.0
    offers_prefill = True
    offers_chosen_ids = True
    decode_sharpness = 1.0  # of single tokens after a long prompt only
    caches = True  # all but the last token of a prompt that came before under the same salt
    cached_sharpness = 1.0  # of what is decoded after a cached prefix
    tells = "usage"  # what was cached: "usage" in each answer, "counter" at /metrics, or "nothing"
    seen: set[str]
    hits: list[int]

    def do_GET(self) -> None:
        if self.path == "/metrics" and self.tells == "counter":
            self._send(
                f'vllm:prefix_cache_hits_total{{engine="0"}} {float(sum(self.hits))}\n'
                'vllm:prefix_cache_hits_created{engine="0"} 1.7e9\n'.encode()
            )
        else:
            self._answer({"data": [{"id": "table", "max_model_len": 4096}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompts = body["prompt"]
        prompts = prompts if isinstance(prompts[0], list) else [prompts]
        cached = [self._cached(body, prompt) for prompt in prompts]
        choices = [
            {"index": n, **self._choice(body, prompt, cached=cached[n] > 0)}
            for n, prompt in enumerate(prompts)
        ]
        answer: dict[str, Any] = {"choices": choices[::-1]}  # in no order that may be relied on
        if self.tells == "usage":  # of the last prompt only, as vLLM does it
            answer["usage"] = {"prompt_tokens_details": {"cached_tokens": cached[-1]}}
        self._answer(answer)

    def _cached(self, body: dict[str, Any], prompt: list[int]) -> int:
        """Tokens of the prompt that are cached; from now on it is."""
        key = json.dumps([body.get("cache_salt"), prompt])
        known = self.caches and key in self.seen and "cache_salt" in body
        self.seen.add(key)
        self.hits.append(len(prompt) - 1 if known else 0)
        return self.hits[-1]

    def _choice(self, body: dict[str, Any], prompt: list[int], *, cached: bool) -> dict[str, Any]:
        draw = random.Random(json.dumps([body.get("cache_salt"), prompt, body["temperature"]]))
        ids, values, last = [], [], prompt[-1]
        noise = random.Random(str(prompt))
        sharpness = self.cached_sharpness if cached else self.sharpness
        for _ in range(body["max_tokens"]):
            row = _logprobs(last, body["temperature"] or 1.0, sharpness=sharpness)
            if body["temperature"]:
                last = draw.choices(range(VOCABULARY), [math.exp(x) for x in row])[0]
            else:
                last = row.index(max(row))
            ids.append(last)
            values.append(row[last] + noise.gauss(0.0, 1e-4))  # no two places are bitwise equal
        choice = {
            "token_ids": ids, "prompt_token_ids": prompt,
            "logprobs": {"tokens": [f"token_id:{i}" for i in ids], "token_logprobs": values},
        }  # fmt: skip
        if "logprob_token_ids" in body and self.offers_chosen_ids:
            row = _logprobs(prompt[-1], 1.0, sharpness=self.sharpness * self.decode_sharpness)
            asked = {f"token_id:{i}": row[i] for i in body["logprob_token_ids"]}
            choice["logprobs"]["top_logprobs"] = [asked]
        if "prompt_logprobs" in body and self.offers_prefill:
            choice["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": _logprobs(last, 1.0, sharpness=self.sharpness)[token]}}
                for last, token in pairwise(prompt)
            ]
        return choice

    def _answer(self, body: dict[str, Any]) -> None:
        self._send(json.dumps(body).encode())

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


class Server(ThreadingHTTPServer):
    """Takes as many callers at once as a real one."""

    request_queue_size = 128


@pytest.fixture
def server() -> Iterator[tuple[str, type[Table]]]:
    """(address, the handler class, whose attributes are the faults)."""
    handler = type("Handler", (Table,), {"seen": set(), "hits": []})
    httpd = Server(("127.0.0.1", 0), handler)
    httpd.daemon_threads = True  # kept connections
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}", handler
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def _check(url: str, *, temperature: float = 1.0, trainer_temperature: float = 1.0) -> Report:
    with Engine(
        url, served_model(url).name, {"temperature": temperature}, LENGTH,
        logprobs_mode="processed_logprobs",
    ) as engine:  # fmt: skip
        made = cells(engine, score, PROMPTS, trainer_temperature=trainer_temperature, salt="s")
        found = list(made)
        engine_again = repeat_engine(engine, found[0].samples)
    again = repeat(score, found[0], temperature=trainer_temperature)
    return Report(tuple(judge(found, load_settings())), again, engine_again)


def _verdicts(report: Report) -> dict[str, str]:
    return {result.cell.name: result.verdict for result in report.results}


def test_equal_policies_are_ok_in_every_cell(server: tuple[str, type[Table]]) -> None:
    """Sampled, from the cache, alone, greedy, prefill, and the trainer against itself."""
    report = _check(server[0])

    assert _verdicts(report) == dict.fromkeys(
        ("sampled", "warm cache", "alone", "greedy", "prefill", "forced decode", "engine alone",
         "trainer alone"), "ok",
    )  # fmt: skip
    assert report.verdict == "ok"
    assert report.reading() == []
    assert report.repeatability.differing == 0
    assert report.engine_repeatability is not None
    assert (report.engine_repeatability.tokens, report.engine_repeatability.differing) == (1600, 0)


def _warm(report: Report) -> Result:
    return next(result for result in report.results if result.cell.name == "warm cache")


@pytest.mark.parametrize(("tells", "prompts"), [("usage", 20), ("counter", None)])
def test_the_share_that_came_from_the_cache_is_told(
    tells: str, prompts: int | None, server: tuple[str, type[Table]]
) -> None:
    """One of the two tokens of every prompt: by each answer, or by the server's counter."""
    url, handler = server
    handler.tells = tells

    report = _check(url)

    assert _warm(report).cell.cached == Cached(20, 40, 20, prompts)
    assert _warm(report).verdict == report.verdict == "ok"
    assert "warm cache: 50% of the prompt tokens came from it (20 of 40" in report.looked_at()[0]


@pytest.mark.parametrize(
    ("tells", "caches", "said"),
    [("usage", False, "it is off"), ("counter", False, "it is off"),
     ("nothing", True, "--enable-prompt-tokens-details")],
)  # fmt: skip
def test_a_cache_that_was_not_seen_is_unknown(
    tells: str, caches: bool, said: str, server: tuple[str, type[Table]]
) -> None:
    """Equal numbers say nothing about a cache that gave nothing, or of which nothing is told."""
    url, handler = server
    handler.tells, handler.caches = tells, caches

    report = _check(url)

    assert _warm(report).verdict == report.verdict == "unknown"
    assert any(said in reason for reason in _warm(report).reasons)
    assert {v for name, v in _verdicts(report).items() if name != "warm cache"} == {"ok"}
    (skipped,) = ElementTree.fromstring(junit(report)).iter("skipped")
    assert said in skipped.get("message", "")


def test_prefixes_of_other_weights_are_found_where_they_are_used(
    server: tuple[str, type[Table]],
) -> None:
    """Only what was decoded after a cached prefix differs."""
    url, handler = server
    handler.cached_sharpness = 0.6

    report = _check(url)

    wrong = {name for name, verdict in _verdicts(report).items() if verdict == "inconsistent"}
    assert wrong == {"warm cache"}
    assert any(text.startswith("only with a warm prefix cache") for text in report.reading())


def test_forgotten_temperature_is_told_from_other_weights(
    server: tuple[str, type[Table]],
) -> None:
    """Sampled differs, prefill and greedy do not: the weights are the same."""
    report = _check(server[0], temperature=0.7, trainer_temperature=1.0)

    verdicts = _verdicts(report)
    assert verdicts["sampled"] == "inconsistent"
    assert verdicts["prefill"] == verdicts["trainer alone"] == verdicts["forced decode"] == "ok"
    assert any("the weights are the same" in text for text in report.reading())
    assert any("not the decode path" in text for text in report.reading())
    causes = [cause["cause"] for cause in report.results[0].view.diagnosis]
    assert causes[0] == "temperature_not_restored"


def test_other_weights_differ_in_prefill_too(server: tuple[str, type[Table]]) -> None:
    """A model that is not the trainer's is inconsistent in every way of asking it."""
    url, handler = server
    handler.sharpness = 0.6

    report = _check(url)

    verdicts = _verdicts(report)
    assert verdicts["sampled"] == verdicts["prefill"] == "inconsistent"
    assert any(text.startswith("prefill and decoding both") for text in report.reading())


def test_broken_decode_path_is_told_from_other_weights(
    server: tuple[str, type[Table]],
) -> None:
    """Given tokens, decoded, differ from the trainer and from the engine's own prefill of them."""
    url, handler = server
    handler.decode_sharpness = 0.8

    report = _check(url)

    verdicts = _verdicts(report)
    assert verdicts["forced decode"] == verdicts["engine alone"] == "inconsistent"
    assert verdicts["prefill"] == verdicts["trainer alone"] == "ok"
    assert any("fault of the decode path" in text for text in report.reading())


def test_server_that_scores_no_chosen_tokens_is_checked_without_them(
    server: tuple[str, type[Table]],
) -> None:
    """No cell rather than one that compares something else."""
    url, handler = server
    handler.offers_chosen_ids = False

    assert not {"forced decode", "engine alone"} & set(_verdicts(_check(url)))


def test_server_without_prefill_scores_is_checked_without_them(
    server: tuple[str, type[Table]],
) -> None:
    """SGLang's OpenAI route has none: the other cells stand."""
    url, handler = server
    handler.offers_prefill = False

    assert "prefill" not in _verdicts(_check(url))


def test_reports_say_the_same_in_every_form(server: tuple[str, type[Table]]) -> None:
    """Table, JSON, JUnit and picture of one check."""
    report = _check(server[0], temperature=0.7, trainer_temperature=1.0)

    suite = ElementTree.fromstring(junit(report))
    dots = ElementTree.fromstring(picture(report.results[0].cell)).iter()
    loaded = json.loads(json.dumps(report.as_json(), allow_nan=False))

    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    wrong = [name for name, verdict in _verdicts(report).items() if verdict == "inconsistent"]
    assert failed == wrong
    assert suite.get("failures") == str(len(wrong))
    assert [cell["verdict"] for cell in loaded["cells"]] == list(_verdicts(report).values())
    assert loaded["verdict"] == "inconsistent"
    assert sum(element.tag.endswith("circle") for element in dots) == 20 * LENGTH
    assert all(name in table(report) for name in _verdicts(report))


def test_server_that_is_away_is_named_with_its_address() -> None:
    """One line, with what to look at."""
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9/v1/models.*is the server up"):
        request("http://127.0.0.1:9/v1/models", None, api_key=None)
