"""vLLM's HTTP server in a process of its own, with an environment of the test's choice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service_process import free_port, stop, wait_until_up

START_SECONDS = 400.0


@dataclass(frozen=True)
class PluggedServer:
    """A server that answered /health."""

    url: str

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer."""
        with self._open(path, body) as answer:
            return json.load(answer)

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """The chunks of a streamed answer; closing the iterator hangs up."""
        with self._open(path, {**body, "stream": True}) as answer:
            for line in answer:
                text = line.decode().removeprefix("data:").strip()
                if text.startswith("{"):
                    yield json.loads(text)

    def _open(self, path: str, body: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps({"model": "tiny", **body}).encode(),
            headers={"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=240)


@contextmanager
def plugged_server(
    model: Path,
    folder: Path,
    *,
    environment: Mapping[str, str],
    generation_config: str = "vllm",
) -> Iterator[PluggedServer]:
    """Start it with `model` as "tiny"; stop it at the end.

    `generation_config`: "auto" takes sampling defaults from the model's folder, "vllm" does not.
    """
    port, log = free_port(), folder / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--served-model-name", "tiny", "--seed", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--generation-config", generation_config]
    command += ["--enforce-eager", "--max-model-len", "384", "--gpu-memory-utilization", "0.2"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TWINSCOPE_")}
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, env={**clean, **environment}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_up(f"{url}/health", process, log=log, seconds=START_SECONDS)
        yield PluggedServer(url)
    finally:
        stop(process)
