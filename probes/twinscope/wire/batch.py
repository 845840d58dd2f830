"""The decoded batch: a frozen record of the header and the tensors, as numpy views of the body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinscope.wire.schema import Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Batch:
    """One batch, validated. Axis names as in `schema.TENSORS`; absent: None or a missing key.

    `tensors` maps tensor names to read-only numpy arrays that view the received bytes (no copy);
    shapes and dtypes are those of the declaration.
    """

    run: str
    side: Side
    step: int | None  # None: unknown, taken from the train side
    tensors: Mapping[str, NDArray[Any]]
    sample_ids: tuple[str, ...] | None = None  # None: join by content
    sampling: Mapping[str, Any] | None = None
    rollout: Mapping[str, Any] | None = None  # engine fingerprint
    train: Mapping[str, Any] | None = None  # trainer fingerprint
    expect: Mapping[str, int] | None = None
    temperatures: tuple[float, ...] | None = None
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    version_spans: tuple[tuple[int, int, int], ...] | None = None
    part: Mapping[str, Any] | None = None

    @property
    def offsets(self) -> NDArray[np.int64]:
        """int64 [S+1]."""
        return self.tensors["offsets"]

    @property
    def samples(self) -> int:
        """S."""
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """N."""
        return int(self.offsets[-1])
