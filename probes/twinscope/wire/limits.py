"""What one batch may hold at most; more is refused, with a message that names the bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one batch, checked before anything of that size is allocated or walked."""

    body_bytes: int = 1 << 30
    json_bytes: int = 16 << 20  # a JSON body: read into Python objects, so smaller
    header_bytes: int = 8 << 20
    depth: int = 12  # nesting of any JSON object or array
    samples: int = 1 << 17
    tokens: int = 1 << 28
    prompt_tokens: int = 1 << 28
    temperatures: int = 32
    group_names: int = 8
    group_labels: int = 256  # different labels per name
    label_characters: int = 64
    object_values: int = 4096  # values inside one of `sampling`, `rollout`, `train`, `part`
    text_characters: int = 4096  # one string inside those objects
