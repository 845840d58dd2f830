"""The trainer's side of the twin test: the same tokens through its forward, in its layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from twinscope.errors import ConfigError

Rows = Sequence[Sequence[int]]
# padded: prompts on the left, responses on the right, an attention mask. packed: the samples of a
# micro-batch in one row, positions from 0 for each, a block-diagonal mask. positions: the same row
# without a mask, so that positions alone keep samples apart, as padding-free trainers do.
Layout = Literal["padded", "packed", "positions"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
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
    """A causal language model, asked in micro-batches of `rows` samples, in the run's layout."""

    model: Any
    rows: int
    layout: Layout = "padded"
    train_mode: bool = False  # dropout as in training

    @classmethod
    def load(
        cls, path: str, *, dtype: str, rows: int, device: str, layout: Layout = "padded"
    ) -> HuggingFaceScorer:
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
        return cls(model.to(device).eval(), rows, layout)

    def __call__(self, prompts: Rows, responses: Rows, *, temperature: float) -> list[list[float]]:
        """See `Scorer`."""
        torch, _ = _libraries()
        score = self._padded if self.layout == "padded" else self._packed
        found: list[list[float]] = []
        self.model.train(self.train_mode)
        try:
            with torch.inference_mode():
                for part in _parts(prompts, responses, self.rows):
                    found += score(torch, *part, temperature=temperature)
        finally:
            self.model.eval()
        return found

    def _padded(
        self, torch: Any, prompts: Rows, responses: Rows, *, temperature: float
    ) -> list[list[float]]:
        device = self.model.device
        ids, kept = (x.to(device) for x in pad(torch, prompts, responses))
        positions = (kept.cumsum(1) - 1).clamp(min=0)
        width = max(len(row) for row in responses)
        given = {"input_ids": ids, "attention_mask": kept, "position_ids": positions}
        # The prompts' logits are wanted by nobody: of long prompts they are most of the memory.
        few = {"logits_to_keep": width + 1} if _keeps_logits(self.model) else {}
        logits = self.model(**given, **few).logits
        # Position t predicts token t + 1: the responses' scores start one place to the left.
        table = (logits[:, -width - 1 : -1].float() / temperature).log_softmax(-1)
        values = table.gather(-1, ids[:, -width:, None])[..., 0]
        return [
            row[: len(response)].tolist() for row, response in zip(values, responses, strict=True)
        ]

    def _packed(
        self, torch: Any, prompts: Rows, responses: Rows, *, temperature: float
    ) -> list[list[float]]:
        device = self.model.device
        ids, positions, sample, scored = (x.to(device) for x in pack(torch, prompts, responses))
        mask = None
        if self.layout == "packed":
            allowed = (sample[:, None] == sample[None, :]).tril()
            mask = torch.zeros(allowed.shape, dtype=self.model.dtype, device=device)
            mask = mask.masked_fill(~allowed, torch.finfo(self.model.dtype).min)[None, None]
        # transformers finds packed samples by positions only where nothing is cached.
        logits = self.model(
            input_ids=ids[None], position_ids=positions[None], attention_mask=mask, use_cache=False
        ).logits[0]
        table = (logits[scored - 1].float() / temperature).log_softmax(-1)
        values = table.gather(-1, ids[scored, None])[:, 0]
        parts = values.split([len(response) for response in responses])
        return [part.tolist() for part in parts]


def _keeps_logits(model: Any) -> bool:
    return "logits_to_keep" in signature(model.forward).parameters


def dropouts(model: Any) -> list[str]:
    """What drops values in train mode: modules and settings with a probability above 0."""
    torch, _ = _libraries()
    modules = [
        f"{name} p={module.p}"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Dropout) and module.p > 0
    ]
    config = getattr(model, "config", None)
    settings = vars(config).items() if config is not None else ()
    return modules + [
        f"{name}={value}"
        for name, value in settings
        if ("dropout" in name or "pdrop" in name) and isinstance(value, float) and value > 0
    ]


def context_of(path: str) -> int | None:
    """Most positions of a model, by its configuration; None: that does not say."""
    _, transformers = _libraries()
    try:
        config = transformers.AutoConfig.from_pretrained(path).get_text_config()
    except (OSError, ValueError):
        return None
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) else None


def load_tokenizer(path: str) -> Any:
    """The model's tokenizer. Raises ConfigError."""
    _, transformers = _libraries()
    try:
        return transformers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--model {path}: {error}") from error


def pad(torch: Any, prompts: Rows, responses: Rows, *, fill: int = 0) -> tuple[Any, Any]:
    """(ids, attention mask), int64 [S, P+T]: prompts end, and responses start, in one column.

    `fill`: the id where the mask is 0.
    """
    left, right = max(map(len, prompts)), max(map(len, responses))
    ids = torch.full((len(prompts), left + right), fill, dtype=torch.int64)
    kept = torch.zeros_like(ids)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        begin, end = left - len(prompt), left + len(response)
        ids[row, begin:end] = torch.tensor([*prompt, *response], dtype=torch.int64)
        kept[row, begin:end] = 1
    return ids, kept


def pack(torch: Any, prompts: Rows, responses: Rows) -> tuple[Any, Any, Any, Any]:
    """(ids, positions, sample number, places of response tokens), int64 [L]; the last is [N]."""
    lengths = [len(p) + len(r) for p, r in zip(prompts, responses, strict=True)]
    ids = [token for p, r in zip(prompts, responses, strict=True) for token in (*p, *r)]
    starts = [end - n for end, n in zip(accumulate(lengths), lengths, strict=True)]
    scored = [
        start + t
        for start, p, n in zip(starts, prompts, lengths, strict=True)
        for t in range(len(p), n)
    ]
    positions = [t for n in lengths for t in range(n)]
    sample = [s for s, n in enumerate(lengths) for _ in range(n)]
    as_tensor = [torch.tensor(x, dtype=torch.int64) for x in (ids, positions, sample, scored)]
    return as_tensor[0], as_tensor[1], as_tensor[2], as_tensor[3]


def _parts(prompts: Rows, responses: Rows, rows: int) -> Iterator[tuple[Rows, Rows]]:
    for begin in range(0, len(prompts), rows):
        yield prompts[begin : begin + rows], responses[begin : begin + rows]


def _libraries() -> tuple[Any, Any]:
    try:
        return import_module("torch"), import_module("transformers")
    except ImportError as error:
        raise ConfigError(f"{error}: {ASK_EXTRA}") from error
