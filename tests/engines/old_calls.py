"""Let vLLM 0.22 or 0.23 call newer CPU attention kernels, which take other arguments.

Usage: old_calls.py FOLDER/vllm/_custom_ops.py      Only the two calls are changed: the engine above
them, with the front end that the plugin hooks into, stays as it was released.
"""

from __future__ import annotations

import sys
from pathlib import Path

NEW = "dynamic_causal"  # an argument of both kernels since 0.24; None: as it was before


def _lines(*arguments: str) -> str:
    return "".join(f"        {argument},\n" for argument in arguments)


CALLS = (
    # One number for the sliding window in place of two; both are -1 without a window.
    (_lines("sliding_window[0]", "sliding_window[1]"), _lines("sliding_window[0]")),
    (
        _lines("isa", "enable_kv_split") + "    )",
        _lines("isa", "enable_kv_split", "None") + "    )",
    ),
    (_lines("s_aux", "k_scale"), _lines("s_aux", "None", "k_scale")),
)


def adapt(text: str) -> str:
    """The module's source with both calls as newer kernels take them."""
    if NEW in text:
        return text
    for old, new in CALLS:
        text = text.replace(old, new)
    return text


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(adapt(path.read_text(encoding="utf-8")), encoding="utf-8")
