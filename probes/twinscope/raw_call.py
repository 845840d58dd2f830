"""A capturing call that waits to be unpacked: its arguments, copied, not yet looked at.

`take_call` and `copied` run on the host's thread and cost one copy per array (snapshot.py).
`unpack` runs on the sending thread: it finds the layout, checks, cuts the padding off, casts, and
splits into posts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twinscope.arrays import Array, dtype_name, find_dtype
from twinscope.books import Count
from twinscope.capture import capture_side, check_call, check_joinable
from twinscope.items import Part, split_block
from twinscope.slabs import Slab, SlabPool
from twinscope.snapshot import Copier, count_elements, thaw

METHODS = {"paired": "pair"}  # sides whose method has another name
CALL_BYTES = 1024  # of bookkeeping that a call costs beside its arrays
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RawCall:
    """One call. `logprobs`: tensor name -> values; `dtypes`: their element types at the host."""

    side: str
    step: Any
    logprobs: Mapping[str, Array]
    fields: Fields
    dtypes: Mapping[str, Any]  # of torch or numpy; None: of Python numbers
    run: str
    part: Mapping[str, int]
    nbytes: int  # of the arrays, about; of the copies, once copied
    count: Count  # one batch; once copied also the elements of its log-probs, padding included
    slabs: tuple[Slab, ...] = ()  # keeps the memory of the copies from being used again

    @property
    def method(self) -> str:
        """The probe's method that was called."""
        return METHODS.get(self.side, self.side)

    def copied(self, pool: SlabPool) -> RawCall:
        """The same, with copies that the host cannot change. Raises WireError."""
        copier = Copier(pool)
        alone = self.side != "paired"
        logprobs = {
            name: copier.copy("logprobs" if alone else name, value)
            for name, value in self.logprobs.items()
        }
        elements = count_elements(next(iter(logprobs.values())))
        check_joinable(self.side, self.fields, samples=elements)
        fields = {name: copier.copy(name, value) for name, value in self.fields.items()}
        return RawCall(
            side=self.side,
            step=self.step,
            logprobs=logprobs,
            fields=fields,
            dtypes=self.dtypes,
            run=self.run,
            part=self.part,
            nbytes=CALL_BYTES + copier.nbytes,
            count=Count(batches=1, tokens=elements),
            slabs=tuple(copier.slabs),
        )

    def unpack(self, pool: SlabPool, post_bytes: int) -> list[Part]:
        """The posts. Raises WireError naming the argument, what was found and what to pass."""
        block = capture_side(
            self.side,
            self.step,
            {name: thaw(value) for name, value in self.logprobs.items()},
            run=self.run,
            fields={name: thaw(value) for name, value in self.fields.items()},
            part=self.part,
            pool=pool,
            dtypes={name: dtype_name(dtype) for name, dtype in self.dtypes.items()},
        )
        # A rank without samples has nothing to lose.
        return split_block(block, post_bytes) if block.samples else []


def take_call(
    side: str,
    step: Any,
    logprobs: Mapping[str, Array],
    *,
    fields: Fields,
    run: str,
    part: Mapping[str, int],
) -> RawCall:
    """The call as it is. Raises WireError for what can be seen without looking into the arrays."""
    given = check_call(side, step, logprobs, fields)
    return RawCall(
        side=side,
        step=step,
        logprobs=logprobs,
        fields=given,
        dtypes={name: find_dtype(value) for name, value in logprobs.items()},
        run=run,
        part=part,
        nbytes=sum(map(_nbytes, logprobs.values())) + sum(map(_nbytes, given.values())),
        count=Count(batches=1),
    )


def _nbytes(value: Any) -> int:
    """Bytes of one array or tensor; 0 for anything else, whose size only its copy tells."""
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0
