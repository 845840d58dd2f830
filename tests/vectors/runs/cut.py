"""Make one file of a run that examples/grpo_cpu.py kept with --record: some samples of every step.

    python tests/vectors/runs/cut.py FOLDER FILE [SAMPLES]

Prompts and entropies stay out; `train_version` is the step of a sample.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from twinscope.wire.batch import Batch
from twinscope.wire.codec import encode_batch, read_trace
from twinscope_service.replay import take

LEFT_OUT = {"prompt_ids", "prompt_offsets", "entropy"}
SAMPLES = 32


def cut(folder: Path, samples: int) -> Batch:
    """About `samples` of every step, evenly from its prompts, one step after the other."""
    steps = [read_trace(path) for path in sorted(folder.glob("*.safetensors"))]
    parts = [take(step, range(0, step.samples, step.samples // samples)) for step in steps]
    names = parts[0].tensors.keys() - LEFT_OUT - {"offsets"}
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    tensors = {name: np.concatenate([part.tensors[name] for part in parts]) for name in names}
    tensors["offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return replace(parts[0], tensors=tensors, step=0, sample_ids=None)


if __name__ == "__main__":
    batch = cut(Path(sys.argv[1]), int(sys.argv[3]) if len(sys.argv) > 3 else SAMPLES)
    Path(sys.argv[2]).write_bytes(b"".join(encode_batch(batch)))
    print(f"{batch.samples} samples, {batch.tokens} tokens")
