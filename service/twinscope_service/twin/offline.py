"""The engine's side of the twin test without a server: vLLM in the interpreter that has it.

Engines and trainers live in environments of their own. The engine is started by the path of its
Python and asked over pipes (offline_worker.py); nothing of TwinScope has to be installed there.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinscope.errors import ConfigError
from twinscope_service.twin.engine import How, Samples

WORKER = Path(__file__).with_name("offline_worker.py")
CLOSE_S = 30.0


@dataclass
class OfflineEngine:
    """vLLM in a process of its own; a context manager. The methods are those of `Engine`."""

    python: str
    model: str
    sampling: Mapping[str, Any]
    max_tokens: int
    arguments: Mapping[str, Any]  # of vllm.LLM, e.g. {"gpu_memory_utilization": 0.3}
    forced_how: str | None = None  # how forced decoding was done, once it was
    version: str | None = None  # None: not started
    context: int | None = None  # most tokens of a prompt and its response; None: not started

    def __enter__(self) -> OfflineEngine:
        try:
            self._process = subprocess.Popen(
                [self.python, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise ConfigError(f"--engine-python {self.python}: {error}") from error
        try:
            said = self._ask("start", model=self.model, arguments=dict(self.arguments))
            self.version, self.context = str(said["version"]), int(said["context"])
        except ConfigError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Its input ends, and it with it; killed when it does not."""
        if self._process.stdin is not None:
            # Closing writes what a dead engine did not read once more.
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def sample(
        self, prompts: Sequence[Sequence[int]], *, how: How, salt: str, **changes: Any
    ) -> Samples:
        """One completion per prompt, all at once or each by itself."""
        params = {"max_tokens": self.max_tokens, **self.sampling, **changes}
        rows = [list(prompt) for prompt in prompts]
        found = self._ask("sample", prompts=rows, params=params, salt=salt, alone=how == "alone")
        mode = self.arguments.get("logprobs_mode", "raw_logprobs")
        facts = {"name": "vllm", "version": self.version, "logprobs_mode": mode}
        return Samples(rows, found["ids"], found["logprobs"], found["cached"], fingerprint=facts)

    def prefill(self, samples: Samples) -> list[list[float]] | None:
        """See `Engine.prefill`."""
        found = self._ask("prefill", prompts=samples.prompts, responses=samples.responses)
        rows: list[list[float]] = found["logprobs"]
        return rows

    def forced(self, samples: Samples) -> list[list[float]] | None:
        """See `Engine.forced`."""
        found = self._ask("forced", prompts=samples.prompts, responses=samples.responses)
        self.forced_how = str(found["how"])
        rows: list[list[float]] = found["logprobs"]
        return rows

    def _ask(self, operation: str, **arguments: Any) -> Any:
        """One line out, one line back. Raises ConfigError with the engine's own words."""
        pipes = self._process.stdin, self._process.stdout
        if pipes[0] is None or pipes[1] is None:
            raise ConfigError(f"{self.python}: has no pipes")
        try:
            pipes[0].write(json.dumps({"op": operation, **arguments}) + "\n")
            pipes[0].flush()
            line = pipes[1].readline()
        except OSError:
            line = ""
        if not line:
            raise ConfigError(
                f"--engine-python {self.python}: the engine ended during {operation} (status "
                f"{self._process.poll()}); its own messages are above"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise ConfigError(f"{self.model}: {operation}: {answer['error']}")
        return answer
