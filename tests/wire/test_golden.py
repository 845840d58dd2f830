"""Bytes that are out in the field stay readable, and are what we still write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from twinscope import wire
from twinscope.wire.schema import FIELDS, TENSORS

NAMES = ("paired", "rollout", "empty")


@pytest.mark.parametrize("name", NAMES)
def test_encode_reproduces_the_golden_bytes(golden: Callable[[str], bytes], name: str) -> None:
    """Decode and encode give the committed bytes bit for bit."""
    body = golden(name)
    assert b"".join(wire.encode_batch(wire.decode(body))) == body


def test_the_golden_pair_decodes_to_the_values_in_its_recipe(
    golden: Callable[[str], bytes],
) -> None:
    """Every field and tensor of version 1, against the numbers written in make.py."""
    batch = wire.decode(golden("paired"))
    assert (batch.run, batch.step, batch.side) == ("golden", 7, "paired")
    assert batch.sample_ids == ("a", "b", "ü")
    assert batch.temperatures == (0.7, 1.0)
    assert batch.groups == {"engine": ("x", "y", "x")}
    assert batch.version_spans == ((0, 1, 6),)
    assert batch.offsets.tolist() == [0, 2, 2, 5]
    assert batch.tensors["logsumexp_T"].tolist() == [[9.5, 9.0, 8.5, 8.0, 7.5], [7, 6.5, 6, 5.5, 5]]
    q = batch.tensors["rollout_logprobs"]
    assert np.isnan(q[3])
    assert q[[0, 1, 2, 4]].tolist() == [-0.5, -1.25, -0.125, -9999.0]
    assert np.isneginf(batch.tensors["train_logprobs"][3])


def test_the_golden_pair_holds_every_declared_name(golden: Callable[[str], bytes]) -> None:
    """A tensor or field added to the declaration needs golden bytes too."""
    batch = wire.decode(golden("paired"))
    assert {spec.name for spec in TENSORS} - set(batch.tensors) == {"ids_digest"}
    fields = {spec.name for spec in FIELDS} - {"schema"}
    assert all(getattr(batch, name) for name in fields)


def test_the_safetensors_library_reads_what_we_write(
    golden: Callable[[str], bytes], tmp_path: Path
) -> None:
    """A trace file opens with standard tools: same names, shapes and values."""
    batch = wire.decode(golden("paired"))
    header = {"run": "r", "step": 1}
    arrays = {name: batch.tensors[name] for name in ("offsets", "rollout_logprobs", "mask")}
    arrays["train_logprobs"] = batch.tensors["train_logprobs"]
    path = tmp_path / "t.safetensors"
    wire.write_trace(path, header, {name: (a, a.shape) for name, a in arrays.items()})
    theirs = safetensors.numpy.load_file(path)
    assert set(theirs) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(theirs[name], array)


def test_we_read_what_the_safetensors_library_writes(
    golden: Callable[[str], bytes], tmp_path: Path
) -> None:
    """Their writer orders and pads by its own rules; the values arrive all the same."""
    batch = wire.decode(golden("paired"))
    with safetensors.safe_open(_save(tmp_path / "ours", golden("paired")), "numpy") as file:
        metadata = file.metadata()
    arrays = {name: np.ascontiguousarray(array) for name, array in batch.tensors.items()}
    path = tmp_path / "theirs.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={**metadata, "format": "np"})
    again = wire.read_trace(path)
    for name, array in arrays.items():
        np.testing.assert_array_equal(again.tensors[name], array)


def _save(path: Path, body: bytes) -> Path:
    path.write_bytes(body)
    return path


def test_a_decoded_tensor_is_a_read_only_view_of_the_body(golden: Callable[[str], bytes]) -> None:
    """No copy of the tokens is made, and nobody can write into a received body by accident."""
    body = bytearray(golden("paired"))
    batch = wire.decode(body)
    begin = np.frombuffer(body, np.uint8).ctypes.data
    for array in batch.tensors.values():
        assert begin <= array.ctypes.data < begin + len(body)
        assert not array.flags.writeable
        assert array.flags.aligned


def test_a_misaligned_body_is_read_by_copy(golden: Callable[[str], bytes]) -> None:
    """Writers that do not pad their header give unaligned tensors; kernels get aligned ones."""
    body = golden("rollout")
    unpadded = bytearray(body)
    length = int.from_bytes(body[:8], "little")
    unpadded[8 + length : 8 + length] = b" "
    unpadded[:8] = (length + 1).to_bytes(8, "little")
    batch = wire.decode(unpadded)
    assert all(array.flags.aligned for array in batch.tensors.values())
    assert batch.tensors["rollout_logprobs"].tolist() == [-0.5, -1.25, -0.125]


def test_every_recorded_trace_decodes() -> None:
    """The full set of recorded traces, where the machine has it."""
    folder = os.environ.get("TWINSCOPE_TRACES")
    if not folder:
        pytest.skip("TWINSCOPE_TRACES names no folder of recorded traces")
    for path in sorted(Path(folder).glob("*.safetensors")):
        batch = wire.read_trace(path)
        assert batch.side == "paired"
        assert batch.tokens == len(batch.tensors["train_logprobs"])


def test_a_failed_write_leaves_the_old_trace_alone(tmp_path: Path) -> None:
    """A batch that cannot be encoded does not destroy the file that was there."""
    path = tmp_path / "t.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(wire.WireError):
        wire.write_trace(path, {"run": float("nan")}, {})
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
