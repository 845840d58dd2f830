"""docs/wire-format.md from the declaration: `python -m twinscope.wire.render`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields

from twinscope.wire.limits import Limits
from twinscope.wire.schema import (
    CONTENT_TYPE,
    FIELDS,
    HEADER_KEY,
    SCHEMA_VERSION,
    TENSORS,
)
from twinscope.wire.tensors import LOGPROBS, SIDE_LOGPROBS

INTRODUCTION = f"""# Wire format, version {SCHEMA_VERSION}

Generated from `twinscope/wire/schema.py`; do not edit. `make docs` renews it.

A batch is a [safetensors](https://huggingface.co/docs/safetensors) body, content type
`{CONTENT_TYPE}`; a trace file (suffix `.safetensors`) is the same bytes on disk.

| bytes | content |
|---|---|
| 8 | H, the length of the header, little-endian |
| H | JSON: tensor name → `dtype`, `shape`, `data_offsets`; `__metadata__.{HEADER_KEY}` is the \
JSON header below, as a string; padded with spaces to a multiple of 8 |
| rest | the tensors back to back, widest dtype first, so that each is aligned; no gap, no overlap |

Axes: S samples, N response tokens of all samples one after the other, M prompt tokens likewise,
K temperatures. Log-probs are float32, natural logarithm. NaN, infinities and out-of-range values
are allowed *inside* log-prob tensors: they are counted by name, and change no mean.
"""

RULES = """## Rules

- Unknown header fields, unknown tensors and keys sent twice are refused by name: a misspelt field
  must not look like an absent one. The fingerprints (`rollout`, `train`) and `sampling` are open
  inside, because engines grow settings; they are bounded in size.
- A tensor is sent by the side that owns it, or by a paired batch. `train` and `paired` batches name
  their step; `rollout` and `ref` batches may leave it out.
- `prompt_ids` come with `prompt_offsets`, `logsumexp_T` with `temperatures`; `ids_digest` replaces
  `token_ids` and never stands beside them.
- Offsets start at 0, never decrease and end at the number of tokens. Samples of no tokens are fine.
- `mask` is 0 or 1; counts, positions and versions are not negative; versions are below 2^53. Token
  ids are compared and hashed, never used as an index: any int32 is accepted.
- JSON anywhere is UTF-8, with finite numbers, integers within int64, and bounded nesting.
- An error names the field, the value found and the fix, and nothing of the batch is kept.
"""

JSON_FORM = """## JSON form

For hand use, content type `application/json`: header fields and tensors side by side in one
object. A token tensor is nested, one list per sample (`offsets` then follow), or flat with
`offsets`; `ids_digest` is a list of hexadecimal strings. NaN cannot be said in JSON: send
safetensors for that.

```json
{"schema": 1, "run": "demo", "step": 0, "side": "paired", "sample_ids": ["a", "b"],
 "token_ids": [[5, 6, 7], [8]],
 "rollout_logprobs": [[-0.1, -1.2, -0.3], [-2.0]],
 "train_logprobs": [[-0.1, -1.3, -0.3], [-2.1]]}
```
"""


def render() -> str:
    """The page, as Markdown."""
    parts = (INTRODUCTION, _tensor_table(), _field_table(), _side_table(), RULES, JSON_FORM)
    return "\n".join((*parts, _limit_table()))


def _tensor_table() -> str:
    rows = [
        (f"`{t.name}`", t.dtype, f"[{', '.join(t.shape)}]", t.side, t.meaning, _absent(t))
        for t in TENSORS
    ]
    return _table("Tensors", ("name", "dtype", "shape", "side", "meaning", "absent means"), rows)


def _field_table() -> str:
    rows = [(f"`{f.name}`", f.json_type, f.meaning, _absent(f)) for f in FIELDS]
    return _table("Header", ("field", "type", "meaning", "absent means"), rows)


def _side_table() -> str:
    rows = [
        (f"`{side}`", _names(needed), _names(optional))
        for side, (needed, optional) in SIDE_LOGPROBS.items()
    ]
    head = ("side", "log-probs it brings", "log-probs it may bring")
    return _table("Sides", head, rows) + f"\nThe log-probs are {_names(LOGPROBS)}.\n"


def _limit_table() -> str:
    rows = [(f"`{f.name}`", f"{f.default:,}") for f in fields(Limits)]
    return _table("Limits (defaults)", ("limit", "at most, per batch"), rows)


def _absent(spec: object) -> str:
    return getattr(spec, "absent_means", None) or "**required**"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"## {title}", "", _row(head), _row(("---",) * len(head)), *map(_row, rows), ""]
    return "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(render())
