"""Tokens per second of CPU time of the simulated device and of the emulator, through the driver.

    python -m tb.speed

Healthy pairs in sequences of 2000, four lanes, nothing throttled. CPU time of this process, so that
a busy machine does not count; packing, decoding and checks are included. The best of five runs.
"""

from __future__ import annotations

import time

import numpy as np

from twinscope_fpga.device import Device
from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.simulation import SimulatedDevice

from .conftest import draw_pairs

TOKENS = 2_000_000
RUNS = 5


def tokens_per_second(device: Device) -> float:
    """Best of RUNS."""
    q, p = draw_pairs("healthy", TOKENS)
    offsets = np.arange(0, TOKENS + 1, 2000, dtype=np.int64)
    device.measure(q[:2000], p[:2000], offsets[:2])  # compiled and warm
    best = float("inf")
    for _ in range(RUNS):
        start = time.process_time()
        device.measure(q, p, offsets)
        best = min(best, time.process_time() - start)
    return TOKENS / best


def main() -> None:
    """Print both figures."""
    for name, transport in (("simulated RTL", SimulatedDevice()), ("emulator", EmulatedDevice())):
        print(f"{name}: {tokens_per_second(Device(transport)) / 1e6:.1f} million tokens/s")


if __name__ == "__main__":
    main()
