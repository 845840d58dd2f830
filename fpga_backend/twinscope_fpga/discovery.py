"""Which device an engine name and a setting stand for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from twinscope.errors import ConfigError
from twinscope_fpga.character_devices import CharacterDevices, find_boards
from twinscope_fpga.device import Device
from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.errors import DeviceError
from twinscope_fpga.selftest import self_test
from twinscope_fpga.transport import Transport

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
        return lambda: _opened(EmulatedDevice)
    chosen = environment.get(DEVICE_SETTING, "auto")
    if chosen not in ("auto", "simulation") and not chosen.startswith("board:"):
        raise ConfigError(f"{DEVICE_SETTING}: got {chosen!r}; use {CHOICES}")
    boards = find_boards(dev) if chosen == "auto" else []
    if chosen.startswith("board:"):
        boards = [Path(chosen.removeprefix("board:"))]
    if boards:
        return lambda: _opened(lambda: CharacterDevices(boards[0]), chosen)
    return lambda: _opened(_simulation, chosen)


def _simulation() -> Transport:
    from twinscope_fpga.simulation import SimulatedDevice

    return SimulatedDevice()


def _opened(make: Callable[[], Transport], chosen: str = "") -> Device:
    """Open and test. What goes wrong names the setting, its value and the way out."""
    transport: Transport | None = None
    try:
        transport = make()
        device = Device(transport)
        self_test(device)
    except DeviceError as error:
        if transport is not None:
            transport.close()
        raise type(error)(
            f"{DEVICE_SETTING}: got {chosen!r}, but {error}; or use engine fpga-emulator"
        ) from error
    return device
