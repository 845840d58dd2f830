"""Token ids as text, where the user gave a tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from twinscope.errors import ConfigError

HALF = "\ufffd"  # what a tokenizer shows for a part of a character


class TokenText:
    """The text of single tokens, each looked up once. `decode`: id -> text, `name`: id -> entry."""

    def __init__(self, decode: Callable[[int], str], name: Callable[[int], str | None]) -> None:
        self._decode, self._name = decode, name
        self._known: dict[int, str] = {}  # at most the vocabulary, and ids beyond it as they come

    def of(self, token: int) -> str:
        """The text; the vocabulary's own entry for a part of a character; `#id` if unknown."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._text(token)
        return found

    def _text(self, token: int) -> str:
        entry = self._name(token)
        if entry is None:
            return f"#{token}"
        text = self._decode(token)
        return text if text and HALF not in text else entry


def load_token_text(path: Path | None) -> TokenText | None:
    """The tokenizer at `path`; None if none was given. Raises ConfigError."""
    if path is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ConfigError("tokenizer: pip install tokenizers, or unset it") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (the library raises plain Exception)
        raise ConfigError(f"tokenizer: {path}: {error}; give a tokenizer.json") from None
    return TokenText(
        lambda token: str(tokenizer.decode([token], skip_special_tokens=False)),
        tokenizer.id_to_token,
    )
