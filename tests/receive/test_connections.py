"""Bodies and headers that stall, lie or never end, sent over bare sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from waiting import eventually

from twinscope_service.receive.connection import BoundedConnection

Exchange = Callable[..., tuple[int, dict[str, str], bytes]]


def _head(**headers: Any) -> bytes:
    lines = ["POST /v1/batches HTTP/1.1", "host: x", "content-type: application/x-safetensors"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_ten_gigabytes_are_refused_before_a_byte_is_read(
    service: Any, exchange: Exchange, problem: Callable[[bytes], dict[str, Any]]
) -> None:
    """Content-Length alone is enough; the connection is closed."""
    with service.connect() as connection:
        status, headers, body = exchange(connection, _head(content_length=10 << 30))
        assert status == 413
        assert headers["connection"] == "close"
        assert problem(body)["fix"]
        assert connection.recv(1) == b""


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "9" * 30, "+5", "5, 5"])
def test_a_content_length_that_is_no_length_is_refused(
    service: Any, exchange: Exchange, problem: Callable[[bytes], dict[str, Any]], length: str
) -> None:
    """By the parser or by us: a problem document either way."""
    with service.connect() as connection:
        status, headers, body = exchange(connection, _head(content_length=length))
        assert 400 <= status < 500
        assert headers["content-type"] == "application/problem+json"
        assert {"field", "fix"} <= set(problem(body))
        assert connection.recv(1) == b""


def test_a_stalled_body_ends_with_408(
    service: Any, exchange: Exchange, problem: Callable[[bytes], dict[str, Any]]
) -> None:
    """Half a body, then silence; sized and chunked."""
    for framing, start in (({"content_length": 1000}, b"x" * 500), (CHUNKED, b"3\r\nabc\r\n")):
        with service.connect() as connection:
            status, headers, body = exchange(connection, _head(**framing), start)
            assert status == 408
            assert headers["connection"] == "close"
            assert problem(body)["field"] == "body"
    assert service.metric("twinscope_inflight_bytes") == 0


CHUNKED = {"transfer_encoding": "chunked"}


def test_a_chunked_body_without_end_is_cut_at_the_limit(service: Any) -> None:
    """It grows to the limit of 1 MiB and not further."""
    with service.connect() as connection:
        connection.sendall(_head(**CHUNKED))
        chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        with pytest.raises(OSError):  # noqa: PT012  (the refusal comes while we are sending)
            for _ in range(64):
                connection.sendall(chunk)
            while connection.recv(1 << 16):
                pass
            raise ConnectionError
    assert service.metric('twinscope_http_requests_total{status="4xx"}') >= 1
    assert service.metric("twinscope_inflight_bytes") == 0


def test_a_trickling_body_ends_with_408(service: Any) -> None:
    """A byte now and then is never silent, and still ends: it is too slow."""
    with service.connect() as connection:
        connection.sendall(_head(**CHUNKED))
        stop = threading.Event()

        def trickle() -> None:
            while not stop.wait(0.05):
                try:
                    connection.sendall(b"1\r\nx\r\n")
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert b" 408 " in connection.recv(100)
        finally:
            stop.set()
            thread.join()


def test_a_chunked_body_that_ends_is_read(
    service: Any, exchange: Exchange, batch: Callable[..., bytes]
) -> None:
    """A client that does not know the length is served all the same."""
    body = batch(q=[-1, -2], p=[-1, -2.5], run="chunked")
    pieces = (body[:9], body[9:200], body[200:])
    chunks = [f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces]
    with service.connect() as connection:
        status, _, _ = exchange(connection, _head(**CHUNKED), *chunks, b"0\r\n\r\n")
        assert status == 202
    assert service.get("/v1/runs/chunked").status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_stops_sending_hears_that_its_body_is_cut(
    service: Any,
    batch: Callable[..., bytes],
    exchange: Exchange,
    problem: Callable[[bytes], dict[str, Any]],
    chunked: bool,
) -> None:
    """Half a body and no more, the other direction still open."""
    body = batch(q=[-1, -2], p=[-1, -2.5], run="half")
    framing = CHUNKED if chunked else {"content_length": len(body)}
    start = f"{len(body):x}\r\n".encode() + body if chunked else body[:-3]
    with service.connect() as connection:
        connection.sendall(_head(**framing) + start)
        connection.shutdown(socket.SHUT_WR)
        status, _, answer = exchange(connection)
        assert status == 400
        assert problem(answer)["title"] == "The body is cut"
    assert service.get("/v1/runs/half").status_code == 404
    assert eventually(lambda: service.metric("twinscope_inflight_bytes") == 0)


def test_a_client_that_has_said_everything_hears_the_answer(
    service: Any, batch: Callable[..., bytes]
) -> None:
    """Two requests in one go, then its end of the connection is shut: both are answered."""
    body = batch(q=[-1, -2], p=[-1, -2.5], run="whole")
    with service.connect() as connection:
        connection.sendall(2 * (_head(content_length=len(body)) + body))
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as file:
            said = file.read()
    assert said.count(b"HTTP/1.1 202") == 2
    assert said.count(b'"duplicate":true') == 1


def test_a_client_that_leaves_stores_nothing(service: Any) -> None:
    """Half a body and a closed connection: what was claimed is released."""
    with service.connect() as connection:
        connection.sendall(_head(content_length=1000) + b"x" * 10)
    assert eventually(lambda: service.metric("twinscope_inflight_bytes") == 0)
    assert service.get("/healthz").status_code == 200


def test_bodies_in_flight_are_bounded(start: Callable[..., Any], exchange: Exchange) -> None:
    """Open uploads take their share; the next one gets 429 with Retry-After, then a place."""
    limit = 1 << 20
    service = start(max_body_bytes=limit, max_inflight_bytes=limit)
    with service.connect() as first:
        first.sendall(_head(content_length=limit - 10))
        assert eventually(lambda: service.metric("twinscope_inflight_bytes") > 0)
        with service.connect() as second:
            status, headers, _ = exchange(second, _head(content_length=100), bytes(100))
            assert status == 429
            assert int(headers["retry-after"]) >= 1
            assert service.metric("twinscope_inflight_refused_total") == 1
    assert eventually(lambda: service.metric("twinscope_inflight_bytes") == 0)
    assert service.send(bytes(100)).status_code == 422


def test_a_refused_small_body_leaves_the_connection_usable(
    service: Any, exchange: Exchange
) -> None:
    """A client with keep-alive gets its answer and goes on."""
    with service.connect() as connection:
        wrong = _head(content_length=5).replace(b"x-safetensors", b"pdf")
        assert exchange(connection, wrong, b"%PDF-")[0] == 415
        assert exchange(connection, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")[0] == 200


def test_endless_request_headers_are_refused(service: Any) -> None:
    """64 KiB of headers, then 431."""
    with service.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
        answer = b""
        try:
            for number in range(4000):
                connection.sendall(f"x-{number}: {'y' * 90}\r\n".encode())
        except OSError:
            pass
        with contextlib.suppress(ConnectionResetError):
            answer = connection.recv(1000)
        assert answer == b"" or b" 431 " in answer
    assert service.get("/healthz").status_code == 200


def test_a_request_header_that_never_ends_is_dropped(
    start: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    exchange: Exchange,
    problem: Callable[[bytes], dict[str, Any]],
) -> None:
    """A connection that says nothing, and one that stops inside its header."""
    monkeypatch.setattr(BoundedConnection, "header_seconds", 0.2)
    service = start()
    for text in (b"", b"GET / HTTP/1.1\r\nho"):
        with service.connect() as connection:
            connection.sendall(text)
            status, _, body = exchange(connection)
            assert status == 408
            assert problem(body)["field"] == "request header"
            assert connection.recv(1) == b""


@pytest.mark.parametrize(
    "text",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\0" * 100],
)
def test_what_is_no_http_is_refused(service: Any, text: bytes) -> None:
    """TLS to a plain port, noise: 400, closed, alive."""
    with service.connect() as connection:
        connection.sendall(text)
        assert b" 400 " in connection.recv(100)
    assert service.get("/healthz").status_code == 200
