"""A pipeline behind a Unix socket, to be killed: python acking_service.py DATA_DIR SOCKET.

A client sends a line `batch_id length`, then the body; the answer is a line `ok batch_id`, sent
after the pipeline has accepted the batch. The service is a child of this process, whose number is
printed; when it is killed, the next child opens the same directory.
"""

from __future__ import annotations

import os
import socketserver
import sys
from pathlib import Path

from twinscope.wire.codec import decode
from twinscope_service.config import load_settings
from twinscope_service.pipeline import open_pipeline


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while line := self.rfile.readline():
            batch_id, length = line.decode().split()
            body = self.rfile.read(int(length))
            self.server.pipeline.ingest(body, decode(body), batch_id=batch_id)  # type: ignore[attr-defined]
            self.wfile.write(f"ok {batch_id}\n".encode())


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def main(data_dir: str, path: str) -> None:
    """Start a service again and again; forked, so that only the first start costs imports."""
    while True:
        child = os.fork()
        if not child:
            serve(data_dir, path)
            return
        print(child, flush=True)
        os.waitpid(child, 0)


def serve(data_dir: str, path: str) -> None:
    """Serve until killed."""
    pipeline = open_pipeline(load_settings(data_dir=Path(data_dir), engine="reference"))
    Path(path).unlink(missing_ok=True)
    with _Server(path, _Handler) as server:
        server.pipeline = pipeline  # type: ignore[attr-defined]
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
