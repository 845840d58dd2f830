"""The examples, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys

from service_process import ROOT, ServiceProcess


def run_example(script: str, service: ServiceProcess, *arguments: str) -> str:
    """What the example prints; a failure shows the end of its log."""
    command = [sys.executable, str(ROOT / "examples" / script), "--url", service.url, *arguments]
    done = subprocess.run(
        command, env={**os.environ, "TWINSCOPE_RAISE": "1"},
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
