"""Cut small copies of the recorded traces: the first samples of each, and what they must measure.

    python tests/vectors/traces/cut.py FOLDER      # the full set with its index.json

The reference values in index.json are computed here in extended precision, by formula, from the
bytes of the cut file: not by the code that the tests check.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from twinscope.wire.batch import Batch
from twinscope.wire.codec import encode_batch, read_trace
from twinscope_service.replay import take

HERE = Path(__file__).parent
SAMPLES = 12  # about 1300 tokens: enough for a verdict, 20 kB on disk
CLAMP = 20.0


def cut(source: Path) -> None:
    """Write every file of `source`'s index.json, cut, and the new index."""
    rows = json.loads((source / "index.json").read_text())
    for row in rows:
        batch = take(read_trace(source / row["file"]), range(SAMPLES))
        (HERE / row["file"]).write_bytes(b"".join(encode_batch(batch)))
        row |= measure(batch)
    (HERE / "index.json").write_text(json.dumps(rows, indent=1) + "\n")


def measure(batch: Batch) -> dict[str, Any]:
    """Counts and reference values; Δ is clamped to ±20 in `k3_mean` only, as in the full index."""
    q, p = (batch.tensors[f"{side}_logprobs"] for side in ("rollout", "train"))
    raw = p.astype(np.longdouble) - q.astype(np.longdouble)
    delta = raw.clip(-CLAMP, CLAMP)
    return {
        "samples": batch.samples,
        "tokens": batch.tokens,
        "k3_mean": float((np.expm1(delta) - delta).mean()),
        "k3_mean_unclamped": float((np.expm1(raw) - raw).mean()),
        "k1_mean": float(-raw.mean()),
        "abs_mean": float(np.abs(raw).mean()),
        "abs_max": float(np.abs(raw).max()),
    }


if __name__ == "__main__":
    cut(Path(sys.argv[1]))
