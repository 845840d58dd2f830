"""Questions with a long shared start, for the examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# A shared start, as agents and graders have it: it is what a prefix cache keeps between requests.
RULES = (
    "You are a careful assistant. Answer in plain words. Say what you know, and say when you "
    "do not know. Prefer short sentences. Do not repeat the question. Do not apologise. Use "
    "numbers where numbers help. When you are asked to explain, explain to a colleague from "
    "another field. When you are asked for a list, give a list. When you are asked for code, "
    "give code that runs. Keep names as they are given. Never invent a source. If the "
    "question holds an error, say so first. If it asks for an opinion, give the arguments on "
    "both sides before yours. Do not guess names, dates or figures. If a word has two "
    "meanings, say which one you mean. Close with one thing to try next. End when the answer "
    "is complete. The question of this conversation follows after the next line."
)
QUESTIONS = (
    "Why is the sky blue?", "How does a bicycle stay upright?", "What makes bread rise?",
    "Explain rain to a child.", "What is a prime number?", "How do birds find their way?",
    "Why do we sleep?", "What is a good way to learn a language?", "How does a lock work?",
    "Write a function that reverses a list.", "What is inflation?", "Name three uses of salt.",
)  # fmt: skip


def prompts_for(
    folder: Path, step: int, *, count: int = 8, start_words: int | None = None
) -> list[Any]:
    """`count` prompts as vLLM takes them, {"prompt_token_ids": [...]}; others in every step.

    Every third is the bare question: too short for the prefix cache, as some requests of real
    traffic are. They are the control that tells a stale cache from stale weights. `start_words`:
    how many words of the shared start the others begin with; None: all.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    picked = [QUESTIONS[(step * count + i) % len(QUESTIONS)] for i in range(count)]
    rules = " ".join(RULES.split()[:start_words])
    starts = ["" if i % 3 == 2 or not rules else f"{rules}\n\n" for i in range(count)]
    texts = [f"{start}{question}\n" for start, question in zip(starts, picked, strict=True)]
    return [{"prompt_token_ids": tokenizer(text)["input_ids"]} for text in texts]
