"""`twinscope demo`: the first thing to run. A recorded run goes wrong; the service says so."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twinscope.errors import TwinScopeError

RECORDED, FAULT_STEP = "grpo_no_sync", 30
RUN = "demo"
START_TIMEOUT_S = 180.0  # the first start compiles the engine


def add(commands: Any) -> None:
    """Declare the command. `commands`: argparse's subparsers object (its type is private)."""
    parser = commands.add_parser(
        "demo",
        help="see the main job in a minute",
        description="Starts a service and replays a recorded GRPO run through the real HTTP path: "
        f"from step {FAULT_STEP} on the engine gets no new weights. Nothing of it is kept.",
    )
    parser.add_argument("--port", type=int, default=8321, help="0 takes a free one")
    parser.add_argument("--once", action="store_true", help="stop when the run has been shown")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the run; then serve until Ctrl-C, unless --once. Exit status 1 if nothing was found."""
    from rich.console import Console

    console = Console(highlight=False)
    port = _free_port(args.port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the service goes too
    console.print("starting a service (the first start compiles, for half a minute or more) ...")
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="twinscope-demo-") as data, _service(port, data):
        last = _replay(console, url)
        console.print(f"\npage     {url}/\nmetrics  {url}/metrics\nAPI      {url}/docs")
        if args.once:
            console.print("(--once: these end now; without it they stay until Ctrl-C)")
        if args.open:
            webbrowser.open(url)
        if not args.once:
            console.print("\nserving until Ctrl-C")
            _wait_for_interrupt()
    return 0 if last["verdict"] == "inconsistent" else 1


def _free_port(port: int) -> int:
    """The port, once it is known to be free: another service there would take the demonstration
    for a run of its own."""
    try:
        with socket.create_server(("127.0.0.1", port)) as found:
            return int(found.getsockname()[1])
    except OSError as error:
        raise TwinScopeError(f"port {port} is taken; give another one with --port") from error
    except OverflowError as error:
        raise TwinScopeError(f"--port: got {port}; use 0 to 65535") from error


@contextmanager
def _service(port: int, data_dir: str) -> Iterator[None]:
    """A real `twinscope serve` in its own process, up before the block runs.

    With default settings: a token, a grace or a switch of the user's own service is not for it.
    """
    command = [sys.executable, "-m", "twinscope_service", "serve", "--port", str(port)]
    command += ["--data-dir", data_dir]
    plain = {name: text for name, text in os.environ.items() if not name.startswith("TWINSCOPE_")}
    log = Path(data_dir) / "service.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=plain)
        try:
            _await_ready(process, f"http://127.0.0.1:{port}/readyz", log)
            yield
        finally:
            process.terminate()
            process.wait(timeout=15)


def _await_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    import httpx

    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    tail = "\n".join(log.read_text().splitlines()[-8:])
    raise TwinScopeError(f"the service did not come up. Its last words:\n{tail}")


def _replay(console: Any, url: str) -> dict[str, Any]:
    """Send the run step by step, print a row per step, return the last step as the API gives it."""
    import httpx
    from rich.progress import Progress

    from twinscope import Probe
    from twinscope_service.replay import recorded_run, send

    steps = recorded_run(RECORDED)
    console.print("A GRPO run of examples/grpo_cpu.py: vLLM samples, PyTorch trains (recorded).")
    console.print(f"From step {FAULT_STEP} on the engine gets no new weights.\n")
    console.print(f"{'step':>4}  {'rollout_train_kl':>16}  {'mean |Δ|':>9}  {'verdict':<13} cause")
    step: dict[str, Any] = {}
    with (
        Probe(url, RUN, environment={}) as probe,
        Progress(console=console, transient=True) as progress,
    ):
        for batch in progress.track(steps, description="replaying"):
            if batch.tensors["rollout_version"][0] == batch.step:
                probe.event("weight_sync", step=batch.step, version=batch.step)
            send(probe, batch)
            probe.flush(timeout=30)
            step = httpx.get(f"{url}/v1/runs/{RUN}/steps/{batch.step}", timeout=30).json()
            console.print(_row(step))
    _explain(console, step, httpx.get(f"{url}/v1/runs/{RUN}/alerts", timeout=30).json())
    return step


def _row(step: dict[str, Any]) -> str:
    style = {"ok": "green", "inconsistent": "bold red"}.get(step["verdict"], "yellow")
    cause = step["diagnosis"][0]["cause"] if step["diagnosis"] else "-"
    metrics = step["metrics"]
    return (
        f"{step['step']:>4}  {metrics['k3_mean']:>16.3e}  {metrics['abs_mean']:>9.4f}  "
        f"[{style}]{step['verdict']:<13}[/] {cause}"
    )


def _explain(console: Any, step: dict[str, Any], alerts: list[dict[str, Any]]) -> None:
    for alert in alerts:
        if alert["kind"] == "level_shift" and alert["series"] == "k3":
            console.print(f"\n{alert['message']}", markup=False)
    for cause in step["diagnosis"][:1]:
        console.print(f"\n{cause['cause']}, confidence {cause['confidence']:.2f}")
        console.print(f"  evidence  {cause['evidence']}", markup=False)
        if cause.get("k3_after") is not None:
            source = f" ({cause['k3_after_is']})" if cause.get("k3_after_is") else ""
            console.print(f"  without it rollout_train_kl would be {cause['k3_after']:.2e}{source}")
        console.print(f"  to do     {cause['fix']}", markup=False)


def _wait_for_interrupt() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return
