"""The fixed prompts of the twin test: several lengths, languages and alphabets, code, numbers."""

from __future__ import annotations

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


def encode(tokenizer: object, *, copies: int) -> list[list[int]]:
    """Token ids of every prompt, `copies` times over. Empty encodings are left out."""
    rows = [list(tokenizer(text)["input_ids"]) for text in PROMPTS]  # type: ignore[operator]
    return [row for row in rows if row for _ in range(copies)]
