"""Which device an engine name and a setting stand for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from twinscope.errors import ConfigError
from twinscope_fpga.character_devices import CharacterDevices, find_boards
from twinscope_fpga.device import Device
from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.selftest import self_test

DEVICE_SETTING = "TWINSCOPE_FPGA_DEVICE"
CHOICES = "auto, simulation, or board:PREFIX (as in board:/dev/xdma0)"
Opener = Callable[[], Device]


def choose_device(
    engine: str, environment: Mapping[str, str] = os.environ, *, dev: Path = Path("/dev")
) -> Opener:
    """How to open the device of engine `fpga` or `fpga-emulator`.

    `auto` takes the first board under `dev`, and the RTL simulation when there is none; it never
    takes the emulator, which has an engine name of its own.
    """
    if engine == "fpga-emulator":
        return lambda: _opened(Device(EmulatedDevice()))
    chosen = environment.get(DEVICE_SETTING, "auto")
    if chosen.startswith("board:"):
        prefix = Path(chosen.removeprefix("board:"))
        return lambda: _opened(Device(CharacterDevices(prefix)))
    if chosen not in ("auto", "simulation"):
        raise ConfigError(f"{DEVICE_SETTING}: got {chosen!r}; use {CHOICES}")
    boards = find_boards(dev) if chosen == "auto" else []
    if boards:
        return lambda: _opened(Device(CharacterDevices(boards[0])))
    return _open_simulation


def _open_simulation() -> Device:
    from twinscope_fpga.simulation import SimulatedDevice

    return _opened(Device(SimulatedDevice()))


def _opened(device: Device) -> Device:
    self_test(device)
    return device
