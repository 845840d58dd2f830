"""A batch being changed: writable copies of its arrays, per-sample slices, and the way back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinscope.wire.batch import Batch
from twinscope.wire.schema import TENSOR_BY_NAME
from twinscope_service.errors import ServiceError

NUMPY = {"F32": np.float32, "I32": np.int32, "I64": np.int64, "U8": np.uint8}
F32 = NDArray[np.float32]
FADING = -0.06  # exponent of position that really re-scored weight faults show


class LabError(ServiceError):
    """A fault cannot be made from this batch: says what the batch lacks."""


@dataclass
class Draft:
    """Mutable on purpose: faults write into it, one after the other. q, p: float32 [N], nats."""

    batch: Batch
    arrays: dict[str, NDArray[Any]]
    random: np.random.Generator
    header: dict[str, Any] = field(default_factory=dict)  # fields of Batch to replace

    @classmethod
    def of(cls, batch: Batch, seed: int) -> Draft:
        """Copies of all arrays; raises LabError unless both sides are there."""
        missing = {"rollout_logprobs", "train_logprobs"} - batch.tensors.keys()
        if missing:
            raise LabError(f"the batch has no {', '.join(sorted(missing))}; give a paired batch")
        arrays = {name: np.array(values) for name, values in batch.tensors.items()}
        return cls(batch, arrays, np.random.default_rng(seed))

    @property
    def q(self) -> F32:
        """The engine's log-probs."""
        return self.arrays["rollout_logprobs"]

    @property
    def p(self) -> F32:
        """The trainer's log-probs."""
        return self.arrays["train_logprobs"]

    @property
    def offsets(self) -> NDArray[np.int64]:
        """[S+1]."""
        return self.arrays["offsets"]

    @property
    def samples(self) -> int:
        """S."""
        return len(self.offsets) - 1

    def slices(self) -> Iterator[slice]:
        """The token slice of every sample."""
        for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield slice(int(begin), int(end))

    def positions(self) -> NDArray[np.int64]:
        """[N] position in the response."""
        starts = np.repeat(self.offsets[:-1], np.diff(self.offsets))
        return np.arange(int(self.offsets[-1])) - starts

    def per_token(self, per_sample: NDArray[Any]) -> NDArray[Any]:
        """[S] to [N]."""
        return np.repeat(per_sample, np.diff(self.offsets))

    def some_samples(self, share: float, *, least: int = 1) -> NDArray[np.int64]:
        """A random choice of samples, `least` of them at least (or all there are)."""
        count = min(max(least, round(share * self.samples)), self.samples)
        return np.sort(self.random.choice(self.samples, count, replace=False))

    def disturb_train(self, scale: NDArray[Any] | float, *, repeatable: bool = True) -> None:
        """p += noise of `scale` nats (per token) at uncertain tokens, keeping E[ρ] = 1.

        As a change of weights or arithmetic acts: quiet where the token is certain, Gaussian
        elsewhere, and lower by half its variance, since q stays the density that was sampled.
        `repeatable`: equal prompts with equal first tokens get equal noise there.
        """
        width = np.asarray(scale) * (-np.expm1(self.q)) * (1.0 + self.positions()) ** FADING
        draws = self.random.standard_normal(len(self.q))
        if repeatable:
            self._repeat_first(draws)
        noise = draws * width - width**2 / 2
        self.arrays["train_logprobs"] = np.minimum(self.p + noise, 0.0).astype(np.float32)

    def _repeat_first(self, draws: NDArray[np.float64]) -> None:
        if "prompt_ids" not in self.arrays or "token_ids" not in self.arrays:
            return
        seen: dict[bytes, float] = {}
        prompts = self.arrays["prompt_offsets"]
        for s, begin in enumerate(self.offsets[:-1].tolist()):
            prompt = self.arrays["prompt_ids"][prompts[s] : prompts[s + 1]]
            key = prompt.tobytes() + self.arrays["token_ids"][begin : begin + 1].tobytes()
            draws[begin] = seen.setdefault(key, float(draws[begin]))

    def finish(self) -> Batch:
        """The changed batch, dtypes as declared."""
        tensors: Mapping[str, NDArray[Any]] = {
            name: np.ascontiguousarray(values, NUMPY[TENSOR_BY_NAME[name].dtype])
            for name, values in self.arrays.items()
        }
        return replace(self.batch, tensors=tensors, **self.header)
