"""The prompts of the twin test: several lengths, languages, alphabets, code, numbers; or the run's.

One is long enough for what short prompts never reach: rotary scaling, sliding windows, prefill in
chunks. It is left out, and that is said, where it does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinscope.errors import ConfigError

RULES = (
    "You are a careful assistant. Read the question twice before you answer. If a number is asked "
    "for, give the number first and the reason after it. If the question cannot be answered from "
    "what is given, say so in one sentence and name what is missing. Never invent sources. "
)

PROMPTS: tuple[str, ...] = (
    "Why",
    "The capital of France is",
    "Count down from ten to one, then stop:",
    "Q: A train leaves at 14:05 and arrives at 17:50. How long does it take?\nA:",
    "def median(values):\n    ordered = sorted(values)\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "请用三句话解释为什么天空是蓝色的。",
    "Explique en deux phrases ce qu'est un nombre premier :",
    "Nenne drei Gründe, warum Schiffe schwimmen, und begründe jeden kurz:",
    "اشرح الفرق بين الطقس والمناخ في جملتين:",
    "速さと速度の違いを説明してください。",
    RULES * 3 + "Question: how many legs do six spiders and two ants have together?",
)
LONG_TOKENS = 2048
LONG_QUESTION = "\nQuestion: which ship carried the most crates, and on which day? Answer:"
SHIPS = ("Aurora", "Bergen", "Calypso", "Dorado", "Elbe", "Fortuna", "Gazelle", "Hansa")
GOODS = ("copper wire", "tea", "oranges", "machine parts", "paper", "salt", "wool")
PORTS = ("Hamburg", "Lisbon", "Oslo", "Genoa", "Riga")

# A text, or the messages of a conversation, which the tokenizer's chat template makes a text of.
Prompt = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Asked:
    """What is asked: token ids per sample, and sentences about what is not."""

    rows: list[list[int]]
    left_out: tuple[str, ...]

    def sentence(self) -> str:
        """How many, and how long."""
        lengths = [len(row) for row in self.rows]
        return f"{len(lengths)} samples of prompts of {min(lengths)} to {max(lengths)} tokens"


def built_in(tokenizer: Any, *, copies: int, context: int | None, response: int) -> Asked:
    """The fixed prompts and the long one, `copies` times over. Empty encodings are left out.

    `context`: most tokens of prompt and response; None: not known, and the long one is left out.
    `response`: tokens of a response.
    """
    rows = [list(tokenizer(text)["input_ids"]) for text in PROMPTS]
    asked = _fitting(((f"prompt {n}", row) for n, row in enumerate(rows, 1)), context, response)
    long = _long(tokenizer)
    room = None if context is None else context - response
    if room is None or len(long) > room:
        known = "is not known" if context is None else f"is {context} tokens"
        missed = (
            f"the long prompt ({len(long)} tokens) was left out: the context {known}; rotary "
            "scaling, sliding windows and prefill in chunks were hardly looked at"
        )
        return Asked(_copied(asked.rows, copies), (*asked.left_out, missed))
    return Asked(_copied([*asked.rows, long], copies), asked.left_out)


def _long(tokenizer: Any) -> list[int]:
    """At most LONG_TOKENS token ids: a ship's ledger, and a question about it."""
    ledger = "".join(
        f"Day {n}: the {SHIPS[n * 5 % 8]} carried {n * 37 % 91 + 3} crates of {GOODS[n * 3 % 7]} "
        f"from {PORTS[n % 5]} to {PORTS[(n * 2 + 1) % 5]}.\n"
        for n in range(1, 161)
    )
    question = list(tokenizer(LONG_QUESTION, add_special_tokens=False)["input_ids"])
    return list(tokenizer(ledger)["input_ids"])[: LONG_TOKENS - len(question)] + question


def own(path: Path, tokenizer: Any, *, copies: int, context: int | None, response: int) -> Asked:
    """The prompts of a file, `copies` times over. Raises ConfigError."""
    named = (
        (f"{path}, line {line}", _encoded(tokenizer, prompt, where=f"{path}, line {line}"))
        for line, prompt in read_prompts(path)
    )
    asked = _fitting(named, context, response)
    if not asked.rows:
        raise ConfigError(f"--prompts {path}: {'; '.join(asked.left_out) or 'no prompts in it'}")
    return Asked(_copied(asked.rows, copies), asked.left_out)


def read_prompts(path: Path) -> Iterator[tuple[int, Prompt]]:
    """(line, prompt) of a file: JSON per line in *.jsonl, else the line itself. Empty lines pass.

    A line of JSON is a text, a list of messages, or an object with one of them under `prompt`,
    `messages` or `text`. Raises ConfigError that names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            found = _parsed(line) if path.suffix == ".jsonl" else line
            if found is None:
                raise ConfigError(
                    f"--prompts {path}, line {number}: {line[:80]!r}; give JSON: a text, a list of "
                    "messages with role and content, or an object with prompt, messages or text"
                )
            yield number, found


def _parsed(line: str) -> Prompt | None:
    """The prompt of a line of JSON; None: it holds none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if isinstance(found, dict):
        found = next((found[key] for key in ("prompt", "messages", "text") if key in found), None)
    if isinstance(found, list):
        whole = found and all(isinstance(m, dict) and {"role", "content"} <= set(m) for m in found)
        return found if whole else None
    return found if isinstance(found, str) and found else None


def _encoded(tokenizer: Any, prompt: Prompt, *, where: str) -> list[int]:
    """Token ids: of a text with the tokenizer's own begin, of messages by its chat template."""
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    if not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            f"--prompts {where}: messages, but the tokenizer has no chat template; give texts"
        )
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])  # the template has begun


def _fitting(named: Iterable[tuple[str, list[int]]], context: int | None, response: int) -> Asked:
    """Those that fit with their responses."""
    rows, left_out = [], []
    for name, row in named:
        if context is not None and len(row) + response > context:
            left_out.append(
                f"{name} was left out: its {len(row)} tokens and a response of {response} do not "
                f"fit into {context}"
            )
        elif row:
            rows.append(row)
    return Asked(rows, tuple(left_out))


def _copied(rows: Sequence[list[int]], copies: int) -> list[list[int]]:
    return [row for row in rows for _ in range(copies)]
