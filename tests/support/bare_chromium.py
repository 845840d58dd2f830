"""Chromium as a reader has it: no debugger listens while a view opens.

A browser driver switches the JavaScript inspector on, and then V8 reads a library's 5 MB again
whenever that library makes an Error object while it starts: half a second that no reader waits.
Here commands go through the browser's debugging pipe, and of a page only marks that it set itself
(`performance.mark`) are read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions",
)  # fmt: skip
PATIENCE = 60.0  # seconds; then a view is given up


class Silent(Exception):
    """The browser went away, or a page never said that it was ready."""


@dataclass
class BareChromium:
    """One browser process; every view opens in a context that has cached nothing."""

    process: subprocess.Popen[bytes]
    to: int
    come: int
    asked: int = 0
    rest: bytes = b""
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its answer."""
        self.asked += 1
        mine = self.asked
        message = {"id": mine, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while mine not in self.answers:
            self._listen()
        answer = self.answers.pop(mine)
        if "error" in answer:
            raise Silent(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def _listen(self) -> None:
        more = os.read(self.come, 1 << 20)
        if not more:
            raise Silent("the browser closed its pipe")
        *whole, self.rest = (self.rest + more).split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self.answers[message["id"]] = message

    @contextmanager
    def page(self, url: str, *, width: int, height: int) -> Iterator[BarePage]:
        """A fresh window on `url`; its inspector stays off."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        window = {"browserContextId": context, "width": width, "height": height}
        target = self.call("Target.createTarget", url="about:blank", **window)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Performance.enable", session, timeDomain="threadTicks")
        self.call("Page.navigate", session, url=url)
        yield BarePage(self, session)
        self.call("Target.disposeBrowserContext", browserContextId=context)


@dataclass(frozen=True)
class BarePage:
    """A window that is asked for values only."""

    browser: BareChromium
    session: str

    def value(self, expression: str) -> Any:
        """What `expression` is in the page, as JSON."""
        found = self.browser.call(
            "Runtime.evaluate", self.session, expression=expression, returnByValue=True
        )
        return found["result"].get("value")

    def wait_until(self, expression: str) -> None:
        """Ask ten times a second until it is true."""
        end = time.monotonic() + PATIENCE
        while not self.value(expression):
            if time.monotonic() > end:
                raise Silent(f"not true within {PATIENCE:g} s: {expression}")
            time.sleep(0.1)

    def main_thread_seconds(self) -> float:
        """Processor time of the page's main thread since the window exists."""
        metrics = self.browser.call("Performance.getMetrics", self.session)["metrics"]
        return float({one["name"]: one["value"] for one in metrics}["TaskDuration"])


@contextmanager
def bare_chromium() -> Iterator[BareChromium]:
    """Debian's Chromium with an empty profile, ended afterwards."""
    binary = shutil.which("chromium")
    if binary is None:
        raise Silent("no chromium binary: apt-get install chromium")
    read_commands, to = os.pipe()
    come, write_answers = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{read_commands} 4>&{write_answers}', "bash",
             binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(read_commands, write_answers), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_commands)
        os.close(write_answers)
        try:
            yield BareChromium(process, to, come)
        finally:
            process.terminate()
            process.wait(timeout=20)
            os.close(to)
            os.close(come)
