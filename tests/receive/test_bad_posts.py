"""Bad input over real HTTP: a 4xx that names field, value and fix; nothing stored; healthy."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

JSON = "application/json"
BINARY = "application/x-safetensors"
GOOD_JSON: dict[str, Any] = {
    "schema": 1,
    "run": "r",
    "step": 0,
    "sample_ids": ["a", "b"],
    "rollout_logprobs": [[-1.0, -2.0], [-3.0]],
    "train_logprobs": [[-1.0, -2.5], [-3.0]],
}


@pytest.fixture(autouse=True)
def _nothing_stored(service: Any) -> Iterator[None]:
    """After every test of this module: no run, no waiting data, nothing in flight, and alive."""
    yield
    assert service.get("/v1/runs").json()["runs"] == []
    assert service.get("/healthz").status_code == 200
    ready = service.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["waiting_samples"] == 0
    assert ready.json()["inbox_bytes"] == 0
    assert service.metric("twinscope_inflight_bytes") == 0


def _assert_refused(answer: Any, status: int, field: str) -> None:
    document = answer.json()
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert document["status"] == status
    assert field in document["field"]
    assert "value" in document  # null where nothing, or null, was sent
    assert document["fix"]
    assert len(answer.content) < 4000


def _layout(body: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    length = int.from_bytes(body[:8], "little")
    entries = json.loads(body[8 : 8 + length])
    change(entries)
    head = json.dumps(entries).encode()
    return len(head).to_bytes(8, "little") + head + body[8 + length :]


def _set(name: str, key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(entries: dict[str, Any]) -> None:
        entries[name][key] = value

    return change


def test_a_truncated_body_is_refused(service: Any, batch: Callable[..., bytes]) -> None:
    """Complete as HTTP, cut as a batch."""
    body = batch(q=[-1, -2], p=[-1, -2])
    for length in (0, 7, 8, 100, len(body) - 1):
        _assert_refused(service.send(body[:length]), 422, "")


def test_a_header_longer_than_the_body_is_refused(
    service: Any, batch: Callable[..., bytes]
) -> None:
    """The length field says more than was sent."""
    body = batch(q=[-1, -2], p=[-1, -2])
    for length in (len(body), 2**63, 2**64 - 1):
        spoilt = length.to_bytes(8, "little") + body[8:]
        _assert_refused(service.send(spoilt), 422, "header length")


def test_a_header_that_is_no_json_is_refused(service: Any) -> None:
    """Bytes where JSON should be."""
    _assert_refused(service.send((4).to_bytes(8, "little") + b"\x80\x04K\x01"), 422, "header")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("offsets", "dtype", "I32"),
        ("train_logprobs", "dtype", "BF16"),
        ("train_logprobs", "shape", [-2]),
        ("train_logprobs", "shape", [2**62]),
        ("train_logprobs", "shape", [3]),
        ("train_logprobs", "data_offsets", [0, 8]),
        ("train_logprobs", "data_offsets", [-8, 0]),
    ],
)
def test_a_lying_layout_is_refused(
    service: Any, batch: Callable[..., bytes], name: str, key: str, value: Any
) -> None:
    """Wrong dtype, negative or disagreeing lengths, overlaps."""
    body = _layout(batch(q=[-1, -2], p=[-1, -2]), _set(name, key, value))
    _assert_refused(service.send(body), 422, "")


@pytest.mark.parametrize("offsets", [[0, 3], [0, 1], [1, 2], [2, 0], [0, -1]])
def test_offsets_that_do_not_fit_are_refused(
    service: Any, batch: Callable[..., bytes], offsets: list[int]
) -> None:
    """Beyond N, short of N, not from 0, decreasing, negative."""
    body = batch(q=[-1, -2], p=[-1, -2])
    at = len(body) - 2 * 8 - 3 * 8  # offsets come first: before three tensors of two 4-byte items
    assert np.frombuffer(body, np.int64, 2, at).tolist() == [0, 2]
    spoilt = body[:at] + np.array(offsets, np.int64).tobytes() + body[at + 16 :]
    _assert_refused(service.send(spoilt), 422, "offsets[")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", 2),
        ("step", -1),
        ("step", 2**63),
        ("run", "a\nb"),
        ("run", "x" * 10_000),
        ("sample_ids", ["a", "a"]),
        ("surprise", 1),
        ("sampling", {"temperature": "hot"}),
        ("train_logprobs", [[-1.0], [-2.0]]),
        ("train_logprobs", [[-1.0, None], [-2.0]]),
        ("schema", None),
        ("step", None),
        ("mask", [[1, 2], [1]]),
    ],
)
def test_a_bad_field_is_refused_in_json(service: Any, field: str, value: Any) -> None:
    """The header checks, through the JSON form."""
    text = json.dumps({**GOOD_JSON, field: value})
    answer = service.post("/v1/batches", content=text, headers={"content-type": JSON})
    _assert_refused(answer, 422, field)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_nan_in_json_is_refused(service: Any, token: str) -> None:
    """In batches and in scalars."""
    text = json.dumps(GOOD_JSON).replace("-2.5", token)
    answer = service.post("/v1/batches", content=text, headers={"content-type": JSON})
    _assert_refused(answer, 422, "train_logprobs[0][1]")
    text = f'{{"run": "r", "step": 0, "values": {{"reward": {token}}}}}'
    answer = service.post("/v1/scalars", content=text, headers={"content-type": JSON})
    _assert_refused(answer, 422, "values.reward")


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/v1/scalars", {"run": "r", "step": 0, "values": {"a": 1}, "extra": 1}, "extra"),
        ("/v1/scalars", {"run": "r", "step": -1, "values": {"a": 1}}, "step"),
        ("/v1/scalars", {"run": "r", "step": True, "values": {"a": 1}}, "step"),
        ("/v1/scalars", {"run": "r\x00", "step": 0, "values": {"a": 1}}, "run"),
        ("/v1/scalars", {"run": "r", "step": 0, "values": {}}, "values"),
        ("/v1/scalars", {"run": "r", "step": 0, "values": {"a": "1"}}, "values.a"),
        ("/v1/scalars", {"run": "r", "step": 0}, "values"),
        ("/v1/scalars", [1], "body"),
        ("/v1/events", {"run": "r", "kind": "Weight Sync"}, "kind"),
        ("/v1/events", {"run": "r", "kind": "restart", "fields": {"n": 2**70}}, "fields"),
        ("/v1/events", {"run": "r", "kind": "restart", "fields": {"a": "\ud800"}}, "fields"),
        ("/v1/events", {"kind": "restart"}, "run"),
    ],
)
def test_a_bad_message_is_refused(service: Any, path: str, fields: Any, field: str) -> None:
    """Scalars and events: unknown fields, wrong types, names that nobody could print."""
    headers = {"content-type": JSON}
    _assert_refused(service.post(path, content=json.dumps(fields), headers=headers), 422, field)


def test_compressed_bodies_are_refused(service: Any, batch: Callable[..., bytes]) -> None:
    """Whatever the header calls it; no decompressor, no bomb."""
    bomb = gzip.compress(bytes(50 << 20))
    for coding, body in (("gzip", bomb), ("deflate", zlib.compress(b"x")), ("br", b"x")):
        _assert_refused(service.send(body, content_encoding=coding), 415, "Content-Encoding")
    _assert_refused(service.send(bomb), 422, "header length")


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/octet-stream", "multipart/form-data"]
)
def test_other_content_types_are_refused(service: Any, kind: str) -> None:
    """Two kinds of body are read, and the answer names them."""
    headers = {"content-type": kind} if kind else {}
    answer = service.post("/v1/batches", content=b"x", headers=headers)
    _assert_refused(answer, 415, "Content-Type")
    assert BINARY in answer.json()["fix"]


def test_a_body_over_the_limit_is_refused(service: Any) -> None:
    """1 MiB here, for binary; 64 KiB for JSON."""
    _assert_refused(service.send(bytes((1 << 20) + 1)), 413, "body")
    text = json.dumps({**GOOD_JSON, "run": "x" * (1 << 16)})
    answer = service.post("/v1/batches", content=text, headers={"content-type": JSON})
    _assert_refused(answer, 413, "body")


@pytest.mark.parametrize("name", ["x" * 300, "a%00b", "a%0Ab", "%2e%2e", "a%ED%A0%80"])
def test_a_bad_run_in_an_address_is_refused(service: Any, name: str) -> None:
    """The same rules for names wherever they come in."""
    answer = service.get(f"/v1/runs/{name}/gate")
    assert answer.status_code in (404, 422)
    assert answer.json()["fix"]


@pytest.mark.parametrize("step", ["-1", "x", "1.5", "9007199254740992", "9" * 400, "\u0663"])
def test_a_bad_step_in_an_address_is_refused(service: Any, step: str) -> None:
    """Digits of ASCII, below 2^53."""
    _assert_refused(service.get(f"/v1/runs/r/steps/{step}"), 422, "step")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=x", "after=-2"])
def test_a_bad_page_is_refused(service: Any, query: str) -> None:
    """Pages are bounded."""
    name = query.partition("=")[0]
    _assert_refused(service.get(f"/v1/runs/r/steps?{query}"), 422, name)


def test_a_bad_batch_id_is_refused(service: Any, batch: Callable[..., bytes]) -> None:
    """The idempotency key is a name too."""
    body = batch(q=[-1, -2], p=[-1, -2])
    answer = service.send(body, x_twinscope_batch_id="x" * 201)
    _assert_refused(answer, 422, "X-TwinScope-Batch-Id")


def test_unknown_things_are_404_and_405(service: Any) -> None:
    """Unknown run, unknown address, wrong method: problem documents too."""
    _assert_refused(service.get("/v1/runs/nobody"), 404, "run")
    _assert_refused(service.get("/v2/batches"), 404, "path")
    _assert_refused(service.get("/v1/batches"), 405, "method")
    close = "/v1/runs/a%0Ab/steps/1/close"  # no address has a line break: no call is found
    _assert_refused(service.post(close), 404, "path")


def test_the_fix_says_what_to_do(service: Any) -> None:
    """No echo of a validator: an absent field is asked for, a number too long is shown."""
    headers = {"content-type": JSON}
    absent = service.post("/v1/scalars", content='{"run":"r","values":{"a":1}}', headers=headers)
    _assert_refused(absent, 422, "step")
    assert absent.json()["value"] is None
    assert absent.json()["fix"] == "send it; the fields are run, step, values"
    text = json.dumps(GOOD_JSON).replace('"step": 0', '"step": 1' + "0" * 60)
    long = service.post("/v1/batches", content=text, headers=headers)
    _assert_refused(long, 422, "step")
    assert "1000" in long.json()["value"]
    assert "digits" in long.json()["fix"]
