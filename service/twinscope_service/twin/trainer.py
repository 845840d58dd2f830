"""The trainer's side of the twin test: the same tokens through its forward, in its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from twinscope.errors import ConfigError

Rows = Sequence[Sequence[int]]
DTYPES = ("bfloat16", "float16", "float32")
ASK_EXTRA = "pip install 'twinscope[check]'"


class Scorer(Protocol):
    """Log-probs of `responses` after `prompts`, nats, logits divided by `temperature`."""

    def __call__(self, prompts: Rows, responses: Rows, *, temperature: float) -> list[list[float]]:
        """One row of values per sample."""
        ...


def load_scorer(path: str) -> Scorer:
    """A user's own function, given as `module:name`. Raises ConfigError."""
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--scorer {path}: {error}; give module:function") from error
    if not callable(found):
        raise ConfigError(f"--scorer {path}: not a function")
    scorer: Callable[..., list[list[float]]] = found
    return scorer


@dataclass(frozen=True)
class HuggingFaceScorer:
    """A causal language model; prompts padded on the left, micro-batches of `rows` samples."""

    model: Any
    rows: int

    @classmethod
    def load(cls, path: str, *, dtype: str, rows: int, device: str) -> HuggingFaceScorer:
        """From a folder or a hub name. Raises ConfigError."""
        torch, transformers = _libraries()
        if not Path(path).exists() and path.startswith((".", "/")):
            raise ConfigError(f"--model {path}: no such folder")
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=getattr(torch, dtype)
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"--model {path}: {error}") from error
        return cls(model.to(device).eval(), rows)

    def __call__(self, prompts: Rows, responses: Rows, *, temperature: float) -> list[list[float]]:
        """See `Scorer`."""
        torch, _ = _libraries()
        found: list[list[float]] = []
        with torch.inference_mode():
            for part in _parts(prompts, responses, self.rows):
                found += self._score(torch, *part, temperature=temperature)
        return found

    def _score(
        self, torch: Any, prompts: Rows, responses: Rows, *, temperature: float
    ) -> list[list[float]]:
        device = self.model.device
        ids, kept = (x.to(device) for x in pad(torch, prompts, responses))
        positions = (kept.cumsum(1) - 1).clamp(min=0)
        logits = self.model(input_ids=ids, attention_mask=kept, position_ids=positions).logits
        width = max(len(row) for row in responses)
        # Position t predicts token t + 1: the responses' scores start one place to the left.
        table = (logits[:, -width - 1 : -1].float() / temperature).log_softmax(-1)
        values = table.gather(-1, ids[:, -width:, None])[..., 0]
        return [
            row[: len(response)].tolist() for row, response in zip(values, responses, strict=True)
        ]


def load_tokenizer(path: str) -> Any:
    """The model's tokenizer. Raises ConfigError."""
    _, transformers = _libraries()
    try:
        return transformers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--model {path}: {error}") from error


def pad(torch: Any, prompts: Rows, responses: Rows) -> tuple[Any, Any]:
    """(ids, attention mask), int64 [S, P+T]: prompts end, and responses start, in one column."""
    left, right = max(map(len, prompts)), max(map(len, responses))
    ids = torch.zeros(len(prompts), left + right, dtype=torch.int64)
    kept = torch.zeros_like(ids)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        begin, end = left - len(prompt), left + len(response)
        ids[row, begin:end] = torch.tensor([*prompt, *response], dtype=torch.int64)
        kept[row, begin:end] = 1
    return ids, kept


def _parts(prompts: Rows, responses: Rows, rows: int) -> Iterator[tuple[Rows, Rows]]:
    for begin in range(0, len(prompts), rows):
        yield prompts[begin : begin + rows], responses[begin : begin + rows]


def _libraries() -> tuple[Any, Any]:
    try:
        return import_module("torch"), import_module("transformers")
    except ImportError as error:
        raise ConfigError(f"{error}: {ASK_EXTRA}") from error
