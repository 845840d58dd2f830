"""Keep what a run sends as files: trace files that `twinscope analyze` reads, and its messages.

    recorder = Probe(sink=TraceFolder(Path("recorded")), run="my-run")
    recorder.pair(step=0, rollout_logprobs=..., train_logprobs=..., ...)

writes recorded/0000.safetensors; events and scalars become lines of recorded/messages.jsonl, each
with the number of batches that came before it.
"""

from __future__ import annotations

import json
from pathlib import Path

from twinscope.items import Post
from twinscope.sink import Answer


class TraceFolder:
    """A sink that writes files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._batches = 0
        folder.mkdir(parents=True, exist_ok=True)

    def send(self, post: Post) -> Answer:
        """One file per batch, one line per message."""
        body = b"".join(post.pieces)
        if post.path == "/v1/batches":
            (self._folder / f"{self._batches:04d}.safetensors").write_bytes(body)
            self._batches += 1
        else:
            line = {"after": self._batches, "path": post.path, "body": json.loads(body or b"{}")}
            with open(self._folder / "messages.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return Answer("accepted", 202)

    def abort(self) -> None:
        """Nothing here waits."""

    def close(self) -> None:
        """Every file is closed already."""

    def forget_after_fork(self) -> None:
        """The example does not fork."""
