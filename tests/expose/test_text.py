"""Tokens as text: a real tokenizer built here, parts of characters, ids beyond the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twinscope.errors import ConfigError
from twinscope_service.expose.text import load_token_text

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A byte-level tokenizer with a handful of words and no merges."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {"Ġhello": 0, "<b>": 1, "Ã": 2, "Ċ": 3}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    built.decoder = decoders.ByteLevel()
    path = tmp_path / "tokenizer.json"
    built.save(str(path))
    return path


def test_tokens_are_shown_as_text(tokenizer: Path) -> None:
    """Spaces and line ends as they are; half a character by its entry; unknown ids by number."""
    text = load_token_text(tokenizer)

    assert text is not None
    assert [text.of(token) for token in (0, 1, 2, 3, 99)] == [" hello", "<b>", "Ã", "\n", "#99"]


def test_no_tokenizer_means_ids() -> None:
    """Nothing is loaded, nothing is needed."""
    assert load_token_text(None) is None


def test_a_file_that_is_no_tokenizer_is_refused_at_the_start(tmp_path: Path) -> None:
    """With its path and what to give instead."""
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")

    with pytest.raises(ConfigError, match=r"tokenizer.*tokenizer\.json"):
        load_token_text(path)


def test_evidence_carries_the_text(start: Any, batch: Any, tokenizer: Path) -> None:
    """Of each token of a kept sample, and of the worst tokens."""
    service = start(tokenizer=tokenizer)
    for side, values in (("q", [-1.0, -2.0]), ("p", [-1.0, -2.5])):
        service.send(batch(**{side: values}, side={"q": "rollout", "p": "train"}[side]))
    service.post("/v1/runs/r/steps/0/close")
    evidence = service.get("/v1/runs/r/steps/0/evidence").json()

    assert evidence["samples"][0]["text"] == [" hello", "<b>"]
    assert evidence["worst_tokens"][0]["text"] == "<b>"
