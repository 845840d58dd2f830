"""What waits in the buffer: parts of captured batches, and small messages.

A Block is one capturing call, copied out of the host and flat. A Part is the run of its samples
that fits into one post; parts share the block's memory and cut their slices when they are sent.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from twinscope.books import Count
from twinscope.slabs import Slab
from twinscope.wire.schema import CONTENT_TYPE, ITEM_BYTES, TENSOR_BY_NAME

JSON_TYPE = "application/json"
LABEL_BYTES = 80  # of a short Python string and its place in a list
MESSAGE_OVERHEAD = 512  # bytes of bookkeeping that a message costs beside its body


@dataclass(frozen=True)
class Post:
    """One HTTP request: `pieces` are views that are valid until `send` returns."""

    path: str  # below the service's address, e.g. /v1/batches
    content_type: str
    batch_id: str  # makes a re-send harmless
    pieces: Sequence[bytes | memoryview]
    remarks: Mapping[str, str] = field(default_factory=dict)  # kind -> what the log should say once

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return sum(len(piece) for piece in self.pieces)


class Item(Protocol):
    """What the buffer holds and the shipper sends."""

    @property
    def batch_id(self) -> str: ...
    @property
    def count(self) -> Count: ...
    @property
    def nbytes(self) -> int: ...
    def post(self) -> Post:
        """The request; may take time, runs on the sending thread."""
        ...


class Raw(Protocol):
    """What the buffer holds until the sending thread makes items of it."""

    @property
    def count(self) -> Count: ...
    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class Block:
    """One call's tensors, little-endian bytes in the dtypes of the wire declaration.

    `columns` maps tensor names to one flat view, except `logsumexp_T`: K views of N floats.
    Header values are plain JSON values; `groups` and `sample_ids` run along the samples.
    """

    header: Mapping[str, Any]
    offsets: memoryview  # format q, [S+1]
    columns: Mapping[str, tuple[memoryview, ...]]
    slabs: tuple[Slab, ...]  # keeps the memory of `columns` from being used again
    digest_ids: bool = False  # send 16 bytes per sample instead of the response ids
    unmasked_width: int | None = None  # T of [S,T] log-probs that came without a mask; None: not so

    @property
    def samples(self) -> int:
        """S."""
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """N, masked tokens included."""
        return int(self.offsets[-1])

    def weigh(self) -> Callable[[int], int]:
        """A function of s: the bytes that the first s samples take, header included (about)."""
        width = {"N": 0, "M": 0, "S": LABEL_BYTES * self._labels(), "S+1": 8}
        for name, views in self.columns.items():
            spec = TENSOR_BY_NAME[name]
            width[spec.shape[-1]] += ITEM_BYTES[spec.dtype] * len(views)
        tokens, samples, prompts = self.offsets, width["S"] + width["S+1"], None
        if "prompt_offsets" in self.columns:
            prompts = self.columns["prompt_offsets"][0].cast("q")

        def before(s: int) -> int:
            prompt_tokens = int(prompts[s]) if prompts is not None else 0
            return samples * s + width["N"] * int(tokens[s]) + width["M"] * prompt_tokens

        return before

    def _labels(self) -> int:
        """Strings per sample in the header."""
        return ("sample_ids" in self.header) + len(self.header.get("groups", ()))


@dataclass(frozen=True)
class Part:
    """Samples first to last-1 of a block, as one post."""

    block: Block
    first: int
    last: int
    batch_id: str
    nbytes: int
    whole: bool = True  # False: one of several parts

    @property
    def count(self) -> Count:
        """One batch and its tokens."""
        offsets = self.block.offsets
        return Count(batches=1, tokens=int(offsets[self.last] - offsets[self.first]))

    def post(self) -> Post:
        """Encode: slices of the block's columns, offsets counted from the part's first token."""
        from twinscope.wire.codec import encode

        pieces = encode(self._header(), self._tensors())
        return Post("/v1/batches", CONTENT_TYPE, self.batch_id, pieces, self._remarks())

    def _remarks(self) -> dict[str, str]:
        """Padding that was not masked: a frequent first mistake, and it dilutes every mean."""
        width, rows = self.block.unmasked_width, self.last - self.first
        if not width:
            return {}
        last_column = slice(self.first * width + width - 1, self.last * width, width)
        filled = max(
            sum(value == 0.0 for value in views[0].cast("f")[last_column])
            for name, views in self.block.columns.items()
            if name.endswith("_logprobs")
        )
        if filled < 2:  # one row may end with a token of probability 1
            return {}
        return {
            "unmasked": f"[S,T] log-probs without a mask: every column counts, and {filled} of "
            f"{rows} rows end in 0.0, as padding does; pass mask=response_mask"
        }

    def _header(self) -> dict[str, Any]:
        header = dict(self.block.header)
        if self.whole:
            return header
        span = slice(self.first, self.last)
        if header.get("sample_ids") is not None:
            header["sample_ids"] = header["sample_ids"][span]
        if header.get("groups") is not None:
            header["groups"] = {name: labels[span] for name, labels in header["groups"].items()}
        if header.get("version_spans") is not None:
            header["version_spans"] = [
                [sample - self.first, token, version]
                for sample, token, version in header["version_spans"]
                if self.first <= sample < self.last
            ]
        return header

    def _tensors(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        samples = self.last - self.first
        tensors: dict[str, tuple[Any, tuple[int, ...]]] = {
            "offsets": (self._rebased(self.block.offsets), (samples + 1,))
        }
        for name, views in self.block.columns.items():
            if name == "token_ids" and self.block.digest_ids:
                tensors["ids_digest"] = self._digests(views[0]), (samples, 16)
            else:
                tensors[name] = self._slice(name, views)
        return tensors

    def _digests(self, ids: memoryview) -> bytes:
        """The digest of each sample's response ids: equal tokens can still be proved."""
        from twinscope.wire.codec import digest

        item, offsets = ITEM_BYTES["I32"], self.block.offsets
        bounds = pairwise(offsets[self.first : self.last + 1])
        return b"".join(digest(ids[item * begin : item * end]) for begin, end in bounds)

    def _slice(self, name: str, views: tuple[memoryview, ...]) -> tuple[Any, tuple[int, ...]]:
        """The part of one tensor, cut along the axis that the declaration names."""
        spec = TENSOR_BY_NAME[name]
        axis, item = spec.shape[-1], ITEM_BYTES[spec.dtype]
        if axis == "S+1":
            offsets = views[0].cast("q")
            return self._rebased(offsets), (self.last - self.first + 1,)
        begin, end = self._bounds(axis)
        cut = [view[begin * item : end * item] for view in views]
        if spec.shape[0] == "K":
            return b"".join(cut), (len(cut), end - begin)
        return cut[0], (end - begin,)

    def _bounds(self, axis: str) -> tuple[int, int]:
        """First and last index along axis S, N or M."""
        if axis == "S":
            return self.first, self.last
        offsets = self.block.offsets
        if axis == "M":
            offsets = self.block.columns["prompt_offsets"][0].cast("q")
        return int(offsets[self.first]), int(offsets[self.last])

    def _rebased(self, offsets: memoryview) -> memoryview | array[int]:
        """Offsets of the part's samples, from 0."""
        if self.first == 0:
            return offsets[: self.last + 1]
        base = offsets[self.first]
        return array("q", [offset - base for offset in offsets[self.first : self.last + 1]])


def split_block(block: Block, post_bytes: int) -> list[Part]:
    """Parts of about `post_bytes` bytes each, cut between samples; one sample is never cut."""
    batch_id, before, samples = new_id(), block.weigh(), block.samples
    if before(samples) <= post_bytes:
        return [Part(block, 0, samples, batch_id, before(samples))]
    parts: list[Part] = []
    first = 0
    while first < samples:
        limit = before(first) + post_bytes
        last = bisect_right(range(samples + 1), limit, lo=first + 1, key=before) - 1
        last = max(last, first + 1)
        size = before(last) - before(first)
        parts.append(Part(block, first, last, f"{batch_id}.{len(parts)}", size, whole=False))
        first = last
    return parts


@dataclass(frozen=True)
class Message:
    """A small JSON post. `body` is JSON text, or a function that makes it on the sending thread."""

    path: str
    body: bytes | Callable[[], bytes]
    batch_id: str

    @property
    def count(self) -> Count:
        """One message."""
        return Count(messages=1)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        return MESSAGE_OVERHEAD + (len(self.body) if isinstance(self.body, bytes) else 0)

    def post(self) -> Post:
        """The request."""
        body = self.body if isinstance(self.body, bytes) else self.body()
        return Post(self.path, JSON_TYPE, self.batch_id, [body])


def message(path: str, fields: Mapping[str, Any]) -> Message:
    """A message whose fields are written out now: later changes by the caller do not matter."""
    text = json.dumps(fields, separators=(",", ":"), allow_nan=False)
    return Message(path, text.encode(), new_id())


def late_event(run: str, kind: str, fields: Callable[[], Mapping[str, Any]]) -> Message:
    """An event whose fields are gathered on the sending thread, when it is sent."""

    def body() -> bytes:
        return json.dumps({"run": run, "kind": kind, "fields": fields()}, allow_nan=False).encode()

    return Message("/v1/events", body, new_id())


def new_id() -> str:
    """A batch id: 32 hexadecimal digits, unique across processes."""
    return os.urandom(16).hex()
