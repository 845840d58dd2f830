"""What came from an engine's prefix cache: a cell that asks for it has seen nothing at 0 tokens."""

from __future__ import annotations

from dataclasses import dataclass

from twinscope_service.twin.engine import Samples

ASK = "start it with --enable-prompt-tokens-details (vLLM) or --enable-cache-report (SGLang)"


@dataclass(frozen=True)
class Cached:
    """Prompt tokens of a cell, and how many of them came from the prefix cache."""

    prompts: int
    prompt_tokens: int
    tokens: int | None  # from the cache; None: the engine does not say
    prompts_hit: int | None  # prompts with any; None: known for all together only

    @property
    def reason(self) -> str | None:
        """Why nothing can be said of cached prefixes; None: something can."""
        if self.tokens is None:
            return f"the engine does not say what came from its prefix cache: {ASK}"
        if self.tokens == 0:
            return "no prompt token came from the prefix cache: it is off, or holds nothing of this"
        return None

    def sentence(self) -> str:
        """For people: how much was looked at."""
        if self.reason or self.tokens is None:
            return f"warm cache: {self.reason}"
        share = f"{self.tokens / max(self.prompt_tokens, 1):.0%}"
        hit = "" if self.prompts_hit is None else f"; {self.prompts_hit} of {self.prompts} prompts"
        return (
            f"warm cache: {share} of the prompt tokens came from it "
            f"({self.tokens} of {self.prompt_tokens}{hit})"
        )


def cached_of(samples: Samples) -> Cached:
    """By each answer's own count, else by the engine's counter."""
    lengths = [len(prompt) for prompt in samples.prompts]
    each = samples.cached_tokens
    if each is not None:
        return Cached(len(lengths), sum(lengths), sum(each), sum(n > 0 for n in each))
    return Cached(len(lengths), sum(lengths), samples.cached_by_counter, None)
