"""Start-up self-test: known vectors, compared bit by bit with the golden model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twinscope_fpga import golden
from twinscope_fpga.device import Device
from twinscope_fpga.errors import WrongDevice

SPECIAL = (0x00000000, 0x80000000, 0x80000001, 0x80800000, 0xFF800000, 0x7FC00000, 0xC47A0000,
           0xFF7FFFFF, 0x3F800000, 0xC1A00000, 0xBF800000, 0xBF7FFFFF, 0xB8D1B717)  # fmt: skip


def self_test_pairs() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """float32 bits (q, p): every pair of special words, then |Δ| from 2^-20 to 20 on both sides."""
    special = np.array(SPECIAL, dtype=np.uint32)
    q, p = np.repeat(special, len(special)), np.tile(special, len(special))
    sizes = -np.geomspace(2.0**-20, 20.0, 256).astype(np.float32).view(np.float32)
    zeros = np.zeros_like(sizes)
    swept_q = np.concatenate([sizes, zeros]).view(np.uint32)
    swept_p = np.concatenate([zeros, sizes]).view(np.uint32)
    return np.concatenate([q, swept_q]), np.concatenate([p, swept_p])


def self_test(device: Device) -> None:
    """Raise WrongDevice unless both modes give exactly the golden sums."""
    q, p = self_test_pairs()
    offsets = np.array([0, 1, 8, 100, len(q)], dtype=np.int64)
    for mode in (golden.ESTIMATORS, golden.ROW_KL):
        found = device.measure(q, p, offsets, mode=mode)
        for row in range(len(offsets) - 1):
            span = slice(int(offsets[row]), int(offsets[row + 1]))
            results = golden.compute(q[span], p[span], mode=mode)
            sums, counts, largest = golden.sum_tokens(results, mode=mode)
            same = (
                np.array_equal(sums, found.sums[row])
                and np.array_equal(counts, found.counts[row])
                and largest == int(found.max_abs[row])
            )
            if not same:
                raise WrongDevice(
                    f"{device.info.place}: self-test failed in mode {mode}, sequence {row}: "
                    f"sums {found.sums[row].tolist()} should be {sums.tolist()}"
                )
