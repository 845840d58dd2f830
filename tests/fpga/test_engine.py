"""Engines fpga and fpga-emulator behind the service's one seam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinscope.errors import ConfigError
from twinscope_fpga import simulation
from twinscope_fpga.character_devices import CharacterDevices
from twinscope_fpga.device import Device
from twinscope_fpga.discovery import choose_device
from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.engine import FROM_DEVICE, FpgaEngine
from twinscope_fpga.errors import DeviceGone, NoDevice
from twinscope_service.cli import main
from twinscope_service.measure.engine import build_engine, device_state
from twinscope_service.measure.records import COLUMN, MeasureOptions, PairBlock, Summary
from twinscope_service.measure.reference import ReferenceEngine

OPTIONS = MeasureOptions()
MakeBlock = Callable[..., PairBlock]


def emulated() -> FpgaEngine:
    """The emulator, completed by the slow reference engine."""
    return FpgaEngine("fpga-emulator", lambda: Device(EmulatedDevice()), ReferenceEngine())


def card_engine(card: Any, timeout_s: float = 5.0) -> FpgaEngine:
    """A board engine on the stand-in card."""

    def open_card() -> Device:
        return Device(CharacterDevices(card.prefix), timeout_s=timeout_s)

    return FpgaEngine("fpga", open_card, ReferenceEngine())


def assert_close(found: Summary, reference: Summary) -> None:
    """Same coverage; device columns within 1e-6 in total and in every row."""
    assert found.coverage.tolist() == reference.coverage.tolist()
    scale = np.maximum(reference.sums[COLUMN["abs"]], 1e-12)
    for name in FROM_DEVICE:
        column = COLUMN[name]
        bound = scale if name == "d" else max(abs(reference.sums[column]), 1e-12)
        assert abs(found.sums[column] - reference.sums[column]) <= 1e-6 * bound
        assert found.rows.sums[:, column] == pytest.approx(
            reference.rows.sums[:, column], rel=1e-6, abs=1e-9
        )


@pytest.mark.parametrize("noise", [1e-4, 5e-3, 2.0])
def test_emulator_agrees_with_the_reference_engine(make_block: MakeBlock, noise: float) -> None:
    """Coverage exactly; sums within 1e-6."""
    block = make_block(noise=noise)
    assert_close(emulated().measure(block, OPTIONS), ReferenceEngine().measure(block, OPTIONS))


def test_a_clamp_of_the_user_is_the_devices_clamp(make_block: MakeBlock) -> None:
    """clamp = 3 on pairs that differ by more."""
    block, options = make_block(noise=4.0), replace(OPTIONS, clamp=3.0)
    assert_close(emulated().measure(block, options), ReferenceEngine().measure(block, options))


def test_everything_else_comes_from_the_completing_engine(make_block: MakeBlock) -> None:
    """Profiles, lags, histogram and extremes are untouched."""
    block = make_block()
    found, reference = emulated().measure(block, OPTIONS), ReferenceEngine().measure(block, OPTIONS)
    assert (found.lags == reference.lags).all()
    assert (found.histogram == reference.histogram).all()
    assert (found.extremes == reference.extremes).all()
    for name, profile in reference.profiles.items():
        assert (found.profiles[name] == profile).all()
    others = [i for name, i in COLUMN.items() if name not in FROM_DEVICE]
    assert (found.rows.sums[:, others] == reference.rows.sums[:, others]).all()


def test_an_empty_block_is_measured(make_block: MakeBlock) -> None:
    """No samples, no tokens, no error."""
    block = PairBlock(
        offsets=np.zeros(1, np.int64),
        rollout_logprobs=np.zeros(0, np.float32),
        train_logprobs=np.zeros(0, np.float32),
        sample_keys=np.zeros((0, 16), np.uint8),
    )
    assert emulated().measure(block, OPTIONS).sums[COLUMN["n"]] == 0


def test_the_service_finds_the_emulator_by_name(make_block: MakeBlock) -> None:
    """engine = fpga-emulator, completed by the cpu engine, labelled as what it is."""
    engine = build_engine("fpga-emulator")
    assert engine.name == "fpga-emulator"
    assert isinstance(engine, FpgaEngine)
    assert engine.status().kind == "emulator"
    block = make_block()
    assert_close(engine.measure(block, OPTIONS), ReferenceEngine().measure(block, OPTIONS))


def test_a_card_behind_character_devices_measures(card: Any, make_block: MakeBlock) -> None:
    """Registers by position, streams by pipes: the same sums as the reference."""
    engine = card_engine(card)
    block = make_block()
    assert_close(engine.measure(block, OPTIONS), ReferenceEngine().measure(block, OPTIONS))
    assert engine.status().last_error == ""
    assert engine.status().kind == "board"
    engine.close()


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("corrupt", "bad_record"),
        ("mute", "timeout"),
        ("unplug", "timeout"),
        ("lost", "framing"),
        ("short", "short_transfer"),
        ("gone", "gone"),
    ],
)
def test_a_failing_card_loses_nothing(
    card: Any, make_block: MakeBlock, fault: str, cause: str
) -> None:
    """The block is measured by the completing engine, and the cause is counted."""
    more_than_a_pipe_holds = 400
    samples = more_than_a_pipe_holds if fault == "gone" else 3
    engine, block = card_engine(card, timeout_s=0.3), make_block(samples=samples)
    engine.open()
    card.fault = fault
    found, reference = engine.measure(block, OPTIONS), ReferenceEngine().measure(block, OPTIONS)
    assert (found.sums == reference.sums).all()
    assert engine.status().fallbacks == {cause: 1}
    assert engine.status().kind == "none"
    assert str(card.prefix) in engine.status().last_error


def test_the_service_reads_what_the_engine_runs_on(make_block: MakeBlock) -> None:
    """Device and fallbacks for /metrics; an engine without a device says nothing."""

    def nothing_there() -> Device:
        raise NoDevice("/dev/xdma0_user: No such file or directory")

    engine = FpgaEngine("fpga", nothing_there, ReferenceEngine())
    engine.measure(make_block(samples=2), OPTIONS)
    state = device_state(engine)
    assert state is not None
    assert (state.kind, state.fallbacks) == ("none", {"no_device": 1})
    assert device_state(ReferenceEngine()) is None


def test_a_card_that_recovers_is_used_again(card: Any, make_block: MakeBlock) -> None:
    """After one bad record the next block goes to the device."""
    engine, block = card_engine(card), make_block(samples=3)
    engine.open()
    card.fault = "corrupt"
    engine.measure(block, OPTIONS)
    card.fault = ""
    engine.measure(block, OPTIONS)
    assert engine.status().kind == "board"
    assert engine.status().fallbacks == {"bad_record": 1}
    assert engine.status().blocks == 2


def test_a_card_that_is_not_there_names_the_file(tmp_path: Path) -> None:
    """Opening says which device file is missing."""
    with pytest.raises(NoDevice, match="xdma7_user: No such file"):
        CharacterDevices(tmp_path / "xdma7")


def test_a_closed_card_says_so(card: Any) -> None:
    """Use after close is DeviceGone, not a crash; closing twice is allowed."""
    transport = CharacterDevices(card.prefix)
    transport.close()
    transport.close()
    with pytest.raises(DeviceGone, match="closed"):
        transport.read_register(0)


def test_a_setting_that_means_nothing_is_refused() -> None:
    """The message lists the choices."""
    with pytest.raises(ConfigError, match="use auto, simulation, or board:PREFIX"):
        choose_device("fpga", {"TWINSCOPE_FPGA_DEVICE": "emulator"})


def test_the_command_line_says_what_is_missing_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No board, no tools, no sources, no folder: setting, value, fix and status 2; no traceback."""
    trace = str(Path(__file__).parents[1] / "vectors/traces/healthy_bf16.safetensors")

    def complaint() -> str:
        assert main(["analyze", trace, "--engine", "fpga"]) == 2
        return capsys.readouterr().err

    monkeypatch.setenv("TWINSCOPE_FPGA_DEVICE", f"board:{tmp_path}/xdma9")
    no_board = complaint()
    monkeypatch.setenv("TWINSCOPE_FPGA_DEVICE", "simulation")
    monkeypatch.setenv("TWINSCOPE_RTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    no_tools = complaint()
    monkeypatch.setattr(simulation.shutil, "which", lambda name: name)
    monkeypatch.setenv("TWINSCOPE_RTL_CACHE", "/proc/nowhere")
    no_folder = complaint()
    monkeypatch.setattr(simulation, "ROOT", tmp_path)
    no_sources = complaint()
    for said, value, found in (
        (no_board, f"'board:{tmp_path}/xdma9'", "xdma9_user: No such file"),
        (no_tools, "'simulation'", "run `make rtl-env`"),
        (no_folder, "'simulation'", "set TWINSCOPE_RTL_CACHE to a folder"),
        (no_sources, "'simulation'", "run from a clone of the repository"),
    ):
        assert said.startswith(f"twinscope: TWINSCOPE_FPGA_DEVICE: got {value}, but ")
        assert found in said
        assert said.endswith("or use engine fpga-emulator\n")
        assert said.count("\n") == 1


def test_a_build_that_fails_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools that are there but do not work: the last line, and where the rest is."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho first >&2; echo no module amaranth >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(simulation, "rtl_python", lambda: str(broken))
    monkeypatch.setattr(simulation.shutil, "which", lambda name: name)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(simulation.tempfile, "tempdir", None)
    with pytest.raises(NoDevice, match=r"`python` failed .*no module amaranth; all") as why:
        simulation.build_library(2, folder=tmp_path / "cache")
    assert "\n" not in str(why.value)
    assert "first" in (tmp_path / "twinscope-rtl-build.log").read_text()


def test_auto_takes_a_board_when_there_is_one(card: Any) -> None:
    """The first xdma*_user wins; what comes out is labelled board, after a self-test."""
    device = choose_device("fpga", {}, dev=card.prefix.parent)()
    assert device.info.kind == "board"
    device.close()


def test_a_clamp_the_format_cannot_hold_is_a_configuration_error(make_block: MakeBlock) -> None:
    """Not a silent fallback."""
    with pytest.raises(ConfigError, match="at most 20"):
        emulated().measure(make_block(), replace(OPTIONS, clamp=30.0))
