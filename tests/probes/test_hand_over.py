"""The hand-over: the host's thread copies and goes on, everything else happens behind its back."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

import twinscope.raw_call
from twinscope import Probe
from twinscope.capture import capture_side
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
        ("logprobs", torch.tensor([[-0.5, -1.25], [-3.0, 0.0]]).T.bfloat16(), "uint16"),
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
    assert (copy.bits if stored == "uint16" else copy).dtype == stored
    assert copier.nbytes == tensor.numel() * np.dtype(stored).itemsize


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
