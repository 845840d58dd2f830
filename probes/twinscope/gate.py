"""The service's verdict, for a trainer that pauses, skips an update or halts on it."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

if TYPE_CHECKING:
    from twinscope.settings import ProbeSettings

Verdict = Literal["ok", "inconsistent", "unknown"]


@dataclass(frozen=True)
class Gate:
    """The verdict on the last closed step. No answer is `unknown`, never `ok`."""

    verdict: Verdict = "unknown"
    reasons: tuple[str, ...] = ()
    step: int | None = None  # None: no step is closed yet, or nobody answered
    ratio_low: float | None = None  # suggested: drop tokens whose p/q is outside these two
    ratio_high: float | None = None


def ask_gate(settings: ProbeSettings, *, timeout_s: float) -> Gate:
    """GET /v1/runs/{run}/gate, `timeout_s` seconds at most."""
    from twinscope.http_sink import HttpSink

    sink = HttpSink(
        str(settings.url), token=settings.token, timeout_s=timeout_s, ca_file=settings.ca_file
    )
    try:
        status, body = sink.fetch(f"/v1/runs/{quote(str(settings.run), safe='')}/gate")
        if status != 200:
            return Gate(reasons=(f"the service answers {status} to the question for its verdict",))
        said = json.loads(body)
        return Gate(
            said["verdict"], tuple(said["reasons"]), said["step"],
            said["ratio_low"], said["ratio_high"],
        )  # fmt: skip
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        return Gate(reasons=(f"no verdict from {settings.url}: {type(error).__name__}: {error}",))
    finally:
        sink.close()
