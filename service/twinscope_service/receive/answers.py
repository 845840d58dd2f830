"""JSON answers and the parameters of addresses."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import JSONResponse

from twinscope.errors import WireError
from twinscope.wire.header import check_step


class Answer(JSONResponse):
    """JSON without NaN: what is not finite is null, because JSON has no other word for it."""

    def render(self, content: Any) -> bytes:
        """The bytes of `content`."""
        clean = finite(content)
        text = json.dumps(clean, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()


def finite(value: Any) -> Any:
    """`value` with every float that is not finite replaced by None, all the way down."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def read_step(text: str) -> int:
    """A step from an address or a parameter."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise WireError("step", text, "send an integer, 0 <= step < 2^53")
    return check_step(int(text))
