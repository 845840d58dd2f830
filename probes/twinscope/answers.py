"""What an HTTP answer means for the post: who spoke, what was said, and whether to try again.

The service answers in JSON, its refusals as problem documents (RFC 9457) of its own types. Anything
else comes from somebody in between: a proxy, or an ingress that does not know the service yet. That
is no verdict on the batch, which waits, as it does for a service that is not there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from twinscope.sink import Answer

LONGEST_WAIT_S = 300.0  # of a Retry-After that is taken seriously
BUSY = (408, 425, 429)
TOO_LARGE = 413  # final, whoever says it: the same bytes will not get smaller
OUR_PROBLEMS = "urn:twinscope:problem:"  # how the `type` of the service's refusals begins
LONGEST_LINE = 120  # characters of an answer that is not ours
REMARKS = {
    "late": "{n} samples came for a step that is closed already{at} and are not used; after "
    "resuming from a checkpoint send probe.event('restart', step=...)",
    "retokenized": "{n} samples have other token ids than the other side sent under the same id{at}"
    ": send the engine's own ids on both sides, never text that was tokenised again",
}


def read_answer(status: int, retry_after: str | None, body: bytes) -> Answer:
    """The outcome of one exchange."""
    document = _read_document(body)
    detail = _read_detail(document) or _first_line(body)
    if 200 <= status < 300 and body.lstrip().startswith(b"{"):  # a long one was not read to its end
        return Answer("accepted", status, remarks=_read_remarks(document))
    if status in BUSY or (status == 503 and retry_after is not None):
        return Answer("busy", status, detail, read_retry_after(retry_after))
    if status >= 500:
        return Answer("failed", status, detail, read_retry_after(retry_after))
    if status == TOO_LARGE or str(document.get("type")).startswith(OUR_PROBLEMS):
        about = str(document.get("field") or "").partition("[")[0]
        return Answer("rejected", status, detail, about=about)
    return Answer("foreign", status, detail)


def _read_document(body: bytes) -> Mapping[str, Any]:
    """The JSON object of an answer; empty for anything else."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _read_detail(problem: Mapping[str, Any]) -> str:
    """A problem document in one line, each thing said once: `detail` often says field and fix."""
    said: list[str] = []
    for key in ("detail", "field", "value", "fix"):
        text = " ".join(str(problem.get(key) or "").split())
        if text and not any(text in earlier for earlier in said):
            said.append(text)
    title, text = str(problem.get("title") or ""), "; ".join(said)
    return (f"{title}: {text}" if title and text else title or text)[:500]


def _first_line(body: bytes) -> str:
    """The start of a text; nothing of a page of HTML, which says no more than its status."""
    lines = body[:2000].decode("utf-8", "replace").split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    return "an HTML page" if first.startswith("<") else first[:LONGEST_LINE]


def _read_remarks(receipt: Mapping[str, Any]) -> dict[str, str]:
    """What an accepted batch's receipt tells the user to look at."""
    step = receipt.get("step")
    at = "" if step is None else f" (step {step})"
    counts = {kind: receipt.get(kind) for kind in REMARKS}
    return {
        kind: REMARKS[kind].format(n=count, at=at)
        for kind, count in counts.items()
        if isinstance(count, int) and count > 0
    }


def read_retry_after(text: str | None) -> float | None:
    """Seconds of a Retry-After header (a number or an HTTP date), bounded; None: unusable."""
    if text is None:
        return None
    text = text.strip()
    if text.isdecimal() and len(text) < 10:
        return min(float(text), LONGEST_WAIT_S)
    try:
        wait_s = parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(0.0, wait_s), LONGEST_WAIT_S)
