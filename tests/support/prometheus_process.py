"""Debian's Prometheus in its own process, scraping one service every second."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service_process import free_port, stop, wait_until_up

START_SECONDS = 60.0


@dataclass(frozen=True)
class Prometheus:
    """A server that has started."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The instant vector of a PromQL expression, now. Raises ValueError if it is none."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=20) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{expression}: {error.read().decode()}") from None
        return found

    def wait_for(self, expression: str, *, seconds: float = START_SECONDS) -> list[dict[str, Any]]:
        """The answer, as soon as there is one."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := self.query(expression):
                return found
            time.sleep(0.2)
        raise AssertionError(f"{expression} stayed empty for {seconds} s")


@contextmanager
def running_prometheus(folder: Path, *, target: str) -> Iterator[Prometheus]:
    """Start it with its data in `folder`, scraping `target` (host:port); stop it at the end."""
    port, log, configuration = free_port(), folder / "prometheus.log", folder / "prometheus.yml"
    job = {
        "job_name": "twinscope",
        "scrape_interval": "1s",
        "static_configs": [{"targets": [target]}],
    }
    configuration.write_text(json.dumps({"scrape_configs": [job]}))  # JSON is YAML
    command = ["prometheus", f"--config.file={configuration}", "--log.level=warn"]
    command += [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_up(f"{url}/-/ready", process, log=log, seconds=START_SECONDS)
        yield Prometheus(url)
    finally:
        stop(process)
