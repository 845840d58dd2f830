"""The hand-over: the host's thread copies and goes on, everything else happens behind its back."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

import twinscope.raw_call
from twinscope import Probe
from twinscope.capture import capture_side
from twinscope.errors import WireError
from twinscope.raw_call import RawCall, take_call
from twinscope.slabs import SlabPool
from twinscope.snapshot import NUMBER_BYTES, Copier, thaw
from twinscope.testing import InMemorySink
from twinscope.wire.batch import Batch
from twinscope.wire.codec import decode

S, T = 3, 30_000  # large enough for slabs, see slabs.SMALLEST
MASK = np.arange(T)[None] < np.array([[T], [7], [0]])
LOGPROBS = -(1.0 + np.arange(S * T).reshape(S, T) % 251) / 256  # exact in bfloat16
IDS = np.arange(S * T).reshape(S, T) % 50_000
ROWS = [(LOGPROBS[s, :n], IDS[s, :n]) for s, n in enumerate((T, 7, 0))]


def _padded(make: Callable[[Any], Any], mask: Any = MASK) -> dict[str, Any]:
    return {"logprobs": make(LOGPROBS), "token_ids": make(IDS), "mask": make(mask)}


def _ragged(make: Callable[[Any], Any]) -> dict[str, Any]:
    return {"logprobs": [make(q) for q, _ in ROWS], "token_ids": [make(i) for _, i in ROWS]}


def _bfloat16(values: Any) -> torch.Tensor:
    tensor = torch.tensor(values)
    return tensor.bfloat16() if tensor.is_floating_point() else tensor


FORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "padded numpy": lambda: _padded(np.array),
    "padded numpy, int64 mask": lambda: _padded(np.array, MASK.astype(np.int64)),
    "padded numpy, float mask": lambda: _padded(np.array, MASK.astype(np.float32)),
    "padded torch": lambda: _padded(torch.tensor),
    "padded bfloat16": lambda: _padded(_bfloat16),
    "padded, transposed": lambda: _padded(lambda a: torch.tensor(a.T.copy()).T),
    "padded lists": lambda: {**_padded(np.ndarray.tolist), "pad": "both"},
    "rows of a padded batch": lambda: {**_padded(lambda a: list(torch.tensor(a))), "pad": "both"},
    "ragged numpy": lambda: _ragged(np.array),
    "ragged torch": lambda: _ragged(torch.tensor),
    "ragged bfloat16": lambda: _ragged(_bfloat16),
    "ragged lists": lambda: _ragged(np.ndarray.tolist),
    "ragged tuples": lambda: _ragged(lambda a: tuple(a.tolist())),
    "ragged array.array": lambda: _ragged(lambda a: array("d" if a.dtype.kind == "f" else "q", a)),
    "ragged, of two libraries": lambda: {
        "logprobs": [torch.tensor(ROWS[0][0]), ROWS[1][0].tolist(), ROWS[2][0].copy()],
        "token_ids": [ROWS[0][1].copy(), torch.tensor(ROWS[1][1]), []],
    },
    "ragged, of two types": lambda: {
        "logprobs": [ROWS[0][0].copy(), np.float16(ROWS[1][0]), ROWS[2][0].copy()],
        "token_ids": [i.astype(t) for (_, i), t in zip(ROWS, ("u2", "i8", "i4"), strict=True)],
    },
    "flat": lambda: {
        "logprobs": torch.cat([torch.tensor(q) for q, _ in ROWS]),
        "token_ids": np.concatenate([i for _, i in ROWS]),
        "offsets": torch.tensor([0, T, T + 7, T + 7]),
    },
}
REST: Callable[[], dict[str, Any]] = lambda: {  # noqa: E731 - one declaration beside the others
    "reward": [torch.tensor(0.5), torch.tensor(1.0), torch.tensor(0.0)],
    "version": np.int64([3, 4, 5]),
    "prompt_ids": torch.tensor([[0, 0, 8], [4, 5, 6], [0, 1, 2]]),
    "prompt_mask": torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, 1]]),
    "sample_ids": ["a", "b", "c"],
    "groups": {"engine": ["e0", "e1", "e0"]},
    "logsumexp": {0.5: [q.copy() for q, _ in ROWS]},
    "fingerprint": {"options": {"tp": 2}},
}


def _call(fields: dict[str, Any]) -> RawCall:
    rest = {name: value for name, value in fields.items() if name != "logprobs"}
    logprobs = {"train_logprobs": fields["logprobs"]}
    return take_call("train", 3, logprobs, fields=rest, run="r", part={"index": 0})


def _decoded(call: RawCall) -> Batch:
    (part,) = call.unpack(SlabPool(0), 1 << 30)
    return decode(b"".join(part.post().pieces))


def _wreck(value: Any) -> None:
    """Change everything in place that can be changed."""
    if isinstance(value, dict):
        for item in value.values():
            _wreck(item)
        value.clear()
    elif isinstance(value, list):
        for item in value:
            _wreck(item)
        value.clear()
    elif isinstance(value, array):
        for index in range(len(value)):
            value[index] = 1
    elif isinstance(value, torch.Tensor):
        value.fill_(1)
    elif isinstance(value, np.ndarray):
        value.fill(1)


@pytest.mark.parametrize("form", FORMS)
def test_a_copied_call_is_what_the_host_had_whatever_it_does_later(form: str) -> None:
    """Equal to the same call unpacked from the host's own arrays, which are then overwritten."""
    expected = _decoded(_call({**FORMS[form](), **REST()}))
    fields = {**FORMS[form](), **REST()}

    copied = _call(fields).copied(SlabPool(1 << 24))
    _wreck(fields)
    found = _decoded(copied)

    assert (
        found.tensors["train_logprobs"].tolist()
        == np.float32(np.concatenate([q for q, _ in ROWS])).tolist()
    )
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert_array_equal(found.tensors[name], tensor, err_msg=name)
    for name in ("sample_ids", "groups", "train", "temperatures", "step", "run"):
        assert getattr(found, name) == getattr(expected, name)


@pytest.mark.parametrize(
    ("field", "tensor", "stored"),
    [
        ("logprobs", torch.tensor([[-0.5, -1.25], [-3.0, 0.0]]), "float32"),
        ("logprobs", torch.tensor([[-0.5, -1.25], [-3.0, 0.0]]).T.bfloat16(), "int16"),
        ("logprobs", torch.tensor([-0.5, -1.25]).half(), "float16"),
        ("token_ids", torch.tensor([[1, 2, 3], [4, 5, 1 << 30]])[:, ::2], "int32"),
        ("mask", torch.tensor([[2, 0, 1]]), "bool"),
        ("mask", torch.tensor([True, False]), "bool"),
        ("mask", torch.tensor([0.5, 1.0]), "float32"),
    ],
)
def test_a_tensor_on_a_device_is_narrowed_there_and_fetched_once(
    field: str, tensor: torch.Tensor, stored: str
) -> None:
    """The code path of CUDA tensors, run here on the CPU: values, and bytes that cross the bus."""
    copier = Copier(SlabPool(0))
    copy = copier._device_tensor(field, tensor)
    expected = tensor != 0 if stored == "bool" else tensor

    assert thaw(copy).astype(np.float32).tolist() == expected.float().tolist()
    crossed = getattr(copy, {"int16": "bits", "int32": "values"}.get(stored, ""), copy)
    assert crossed.dtype == stored
    assert copier.nbytes == tensor.numel() * np.dtype(stored).itemsize


TOO_LARGE = [[1, 2], [1 << 31], [-(1 << 31) - 1]]
ID_FORMS: dict[str, Callable[[list[list[int]]], Any]] = {
    "lists": lambda ids: ids,
    "rows of numpy": lambda ids: [np.array(row) for row in ids],
    "rows of numpy, uint64": lambda ids: [np.array(row).astype("u8") for row in ids],
    "rows of torch": lambda ids: [torch.tensor(row) for row in ids],
    "rows of torch, int32 first": lambda ids: [
        torch.tensor(row, dtype=torch.int64 if n else torch.int32) for n, row in enumerate(ids)
    ],
    "rows of numpy, int32 first": lambda ids: [
        np.array(row, "i8" if n else "i4") for n, row in enumerate(ids)
    ],
}


@pytest.mark.usefixtures("as_in_a_run")
@pytest.mark.parametrize("buffer_bytes", [1 << 24, 200])  # copied first; too large to be copied
@pytest.mark.parametrize("form", ID_FORMS)
def test_a_token_id_beyond_int32_is_refused_by_name(form: str, buffer_bytes: int) -> None:
    """Wrapped around it would look like another token: retokenised, where only a cast is wrong."""
    fields = {
        "logprobs": [[-1.0, -1.0], [-1.0], [-1.0]], "token_ids": ID_FORMS[form](TOO_LARGE),
    }  # fmt: skip
    with Probe(sink=InMemorySink(), buffer_bytes=buffer_bytes) as probe:
        probe.train(step=1, **fields)
        probe.flush(20)
        stats = probe.stats()

    fix = f"pass integers from {-(1 << 31)} to {(1 << 31) - 1}"
    assert stats.last_error == f"train: token_ids[1][0]: got {1 << 31}; {fix}"
    assert stats.refused == {"invalid": 1}
    assert stats.dropped["invalid"].batches == 1
    assert stats.balanced


def test_padded_ids_beyond_int32_are_refused_and_those_at_its_ends_are_not() -> None:
    """[S,T] of int64: the ends of int32 pass, one more anywhere does not; of uint64 also."""
    logprobs = np.full((1, T), -1.0, np.float32)
    ends = np.zeros((1, T), np.int64)
    ends[0, :2] = -(1 << 31), (1 << 31) - 1
    copied = _call({"logprobs": logprobs, "token_ids": ends}).copied(SlabPool(0))
    assert _decoded(copied).tensors["token_ids"].tolist() == ends[0].tolist()

    unsigned = np.zeros(ends.shape, np.uint64)
    for at, ids, value in [
        (T - 1, ends, 1 << 31),
        (7, ends, -(1 << 31) - 1),
        (9, unsigned, (1 << 64) - 1),
    ]:
        wrong = ids.copy()
        wrong[0, at] = value
        call = _call({"logprobs": logprobs, "token_ids": wrong})
        with pytest.raises(WireError, match=rf"token_ids\[0\]\[{at}\].*got {value};"):
            call.copied(SlabPool(0)).unpack(SlabPool(0), 1 << 30)


def test_an_id_clipped_on_a_device_is_refused() -> None:
    """Half the bytes stay off the bus; the value is gone, that it was too large is not."""
    copier = Copier(SlabPool(0))
    fine, wrong = torch.tensor([0, 50_000]), torch.tensor([5, 1 << 40])
    assert thaw(copier._device_tensor("token_ids", fine)).tolist() == [0, 50_000]

    ids = copier._device_tensor("token_ids", wrong)
    call = replace(_call({"logprobs": [-1.0, -1.0]}), fields={"token_ids": ids})
    with pytest.raises(WireError, match=rf"token_ids\[0\]\[1\].*got {1 << 31};"):
        call.unpack(SlabPool(0), 1 << 30)


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_rows_of_several_types_lose_no_digit(make: Callable[[Any], Any]) -> None:
    """A row in half precision comes first: the others do not become it."""
    exact = [[-0.5], [-1.0 - 2.0**-20]]
    half = np.float16 if make is np.array else torch.float16
    rows = [make(exact[0]).astype(half) if half is np.float16 else make(exact[0]).to(half)]
    rows.append(make(exact[1]) if half is torch.float16 else np.float32(exact[1]))

    batch = _decoded(_call({"logprobs": rows, "token_ids": [[1], [2]]}).copied(SlabPool(0)))

    assert batch.tensors["train_logprobs"].tolist() == [-0.5, exact[1][0]]


@pytest.mark.parametrize("form", FORMS)
def test_the_memory_of_a_copy_is_known(form: str) -> None:
    """The buffer is bounded in bytes: arrays by their size, Python numbers by about 32 each."""
    fields = FORMS[form]()
    numbers = form in ("padded lists", "ragged lists", "ragged tuples")
    copied = _call(fields).copied(SlabPool(0))

    kept = 2 * (T + 7) if form.startswith(("ragged", "flat")) else 3 * S * T
    assert copied.nbytes >= (NUMBER_BYTES * kept if numbers else kept)
    assert sum(len(slab.data) for slab in copied.slabs) <= 2 * copied.nbytes
    assert copied.count.tokens == (S * T if kept == 3 * S * T else T + 7)


@pytest.mark.usefixtures("as_in_a_run")
def test_layout_checks_and_casts_run_on_the_sending_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host's thread copies; where its time went would otherwise depend on the batch."""
    threads: list[str] = []

    def recorded(*args: Any, **fields: Any) -> Any:
        threads.append(threading.current_thread().name)
        return capture_side(*args, **fields)

    monkeypatch.setattr(twinscope.raw_call, "capture_side", recorded)
    sink = InMemorySink()
    with Probe(sink=sink) as probe:
        assert probe.train(step=1, **_padded(torch.tensor), sample_ids=["a", "b", "c"])
        assert probe.pair(step=1, rollout_logprobs=[[-1.0]], train_logprobs=[[-1.5]])

    assert threads == ["twinscope-probe"] * 2
    assert [batch.tokens for batch in sink.batches()] == [T + 7, 1]


@pytest.mark.usefixtures("as_in_a_run")
def test_a_call_of_half_the_buffer_is_cut_at_once_and_still_arrives() -> None:
    """Its copy with all the padding would leave no room for others, or not fit at all."""
    sink = InMemorySink()
    with Probe(sink=sink, buffer_bytes=400_000, post_bytes=100_000) as probe:
        assert probe.train(step=1, **_padded(np.array), sample_ids=["a", "b", "c"])
        assert probe.flush(20)
        assert probe.train(step=2, **_ragged(np.ndarray.tolist), sample_ids=["a", "b", "c"])
        assert probe.flush(20)
        stats = probe.stats()

    assert sum(batch.tokens for batch in sink.batches()) == 2 * (T + 7)
    assert not stats.dropped


@pytest.mark.usefixtures("as_in_a_run")
def test_padding_does_not_stay_in_memory_while_the_service_is_away() -> None:
    """Calls are unpacked at once, not when they can be sent."""
    from twinscope.sink import Answer

    away = InMemorySink(lambda _: Answer("unreachable"))
    probe = Probe(sink=away, buffer_bytes=1 << 24)
    for step in range(5):
        assert probe.train(step=step, **_padded(np.array), sample_ids=["a", "b", "c"])
    slim = 5 * (T + 7) * 9  # float32, int32 and a byte per token
    with probe._shipper.buffer.changed:
        unpacked = probe._shipper.buffer.changed.wait_for(
            lambda: probe.stats().buffer_bytes < 1.1 * slim + 10_000, 20
        )
    stats = probe.stats()
    probe.close(timeout=0.0)

    assert unpacked
    assert stats.pending.tokens == 5 * (T + 7)
    assert stats.balanced


@pytest.mark.usefixtures("as_in_a_run")
def test_what_is_found_wrong_later_does_not_stop_what_follows() -> None:
    """A refused call in the middle: named, counted, and its neighbours arrive in order."""
    sink = InMemorySink()
    with Probe(sink=sink) as probe:
        for step, mask in enumerate([[[1]], [[0.5]], [[1]]]):
            assert probe.train(step=step, logprobs=[[-1.0]], sample_ids="a", mask=mask)
        assert probe.flush(20)
        stats = probe.stats()

    assert [batch.step for batch in sink.batches()] == [0, 2]
    assert stats.refused == {"invalid": 1}
    assert stats.errors == {"train: mask": 1}
    assert stats.last_error == "train: mask[0][0]: got 0.5; pass True and False, or 0 and 1"
    assert (stats.captured.batches, stats.dropped["invalid"].batches) == (3, 1)
    assert stats.balanced
