"""Where posts go: the seam between the sending thread and HTTP (or a test)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from twinscope.items import Post

# accepted: done. rejected: never will be. busy: later, as told. failed: an error over there.
# foreign: somebody else answers here. unreachable: no answer. broken: an error in here.
Outcome = Literal["accepted", "rejected", "busy", "failed", "foreign", "unreachable", "broken"]


@dataclass(frozen=True)
class Answer:
    """What became of one post."""

    outcome: Outcome
    status: int | None = None  # HTTP status; None: no answer
    detail: str = ""
    retry_after_s: float | None = None  # as the service asked; None: it did not
    about: str = ""  # the field that a refusal names
    remarks: Mapping[str, str] = field(default_factory=dict)  # kind -> what the log should say once


class Sink(Protocol):
    """Takes posts, one at a time, on the sending thread. Returns; raises only when broken."""

    def send(self, post: Post) -> Answer:
        """Deliver one post. Its pieces are valid until this returns."""
        ...

    def abort(self) -> None:
        """Make a `send` that another thread is waiting in return soon."""
        ...

    def close(self) -> None:
        """The sending thread ends."""
        ...

    def forget_after_fork(self) -> None:
        """In the child: connections belong to the parent."""
        ...
