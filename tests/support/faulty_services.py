"""Services that misbehave, on real sockets at 127.0.0.1."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Behaviour = Callable[[socket.socket, threading.Event], None]


def never_answer(connection: socket.socket, stop: threading.Event) -> None:
    """Read nothing, say nothing, keep the line open."""
    stop.wait()


def answer_by_the_byte(connection: socket.socket, stop: threading.Event) -> None:
    """One byte of the answer at a time, with no end; far apart for a host, quick for a test."""
    reader = threading.Thread(target=_swallow, args=(connection,), daemon=True)
    reader.start()
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not stop.wait(0.05):
        connection.sendall(b"a")


def reset(connection: socket.socket, stop: threading.Event) -> None:
    """Slam the door: RST instead of an answer."""
    connection.recv(64)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def hang_up(connection: socket.socket, stop: threading.Event) -> None:
    """Close without a word."""


def talk_nonsense(connection: socket.socket, stop: threading.Event) -> None:
    """Something that is not HTTP."""
    connection.sendall(b"220 smtp.example.org ESMTP\r\n")


def _swallow(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(1 << 16):
            pass


@contextmanager
def faulty_service(behaviour: Behaviour) -> Iterator[str]:
    """The address of a service that treats every connection with `behaviour`."""
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            behaviour(connection, stop)

    def accept() -> None:
        with suppress(OSError):
            while not stop.is_set():
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [acceptor, *threads]:
            thread.join(5)


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
