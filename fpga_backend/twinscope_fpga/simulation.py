"""The simulated device: the RTL, compiled by Verilator into a shared library, behind the driver.

The library is built once per set of RTL sources and lanes and kept in a cache folder. Building
needs the RTL sources beside this package, Amaranth and yosys (`make rtl-env`), Verilator and g++.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from twinscope_fpga.errors import DeviceTimeout, NoDevice, WrongDevice
from twinscope_fpga.transport import U8, Kind, Reply

ROOT = Path(__file__).resolve().parents[1]  # fpga_backend/
VERILATOR_FLAGS = (
    "--cc", "--top-module", "twinscope_engine", "-Wno-fatal", "-Wno-lint", "-O3",
    "--x-assign", "fast", "--x-initial", "fast", "--noassert", "--output-split", "8000",
)  # fmt: skip
CLOCKS_PER_SECOND = 200_000  # a timeout in seconds is taken as this many simulated clocks each


class _Transfer(ctypes.Structure):
    """Mirror of `struct Transfer` in sim/device.cpp."""

    _fields_ = (
        ("input", ctypes.c_void_p), ("input_size", ctypes.c_uint64),
        ("input_done", ctypes.c_uint64),
        ("records", ctypes.c_void_p), ("records_size", ctypes.c_uint64),
        ("records_done", ctypes.c_uint64),
        ("tokens", ctypes.c_void_p), ("tokens_size", ctypes.c_uint64),
        ("tokens_done", ctypes.c_uint64),
        ("records_wanted", ctypes.c_uint64), ("tokens_wanted", ctypes.c_uint64),
        ("max_cycles", ctypes.c_uint64),
        ("idle_of_256", ctypes.c_uint32), ("stall_of_256", ctypes.c_uint32),
    )  # fmt: skip


def source_hash(lanes: int) -> str:
    """Twelve hex digits that change with any source the library is made of."""
    if not (ROOT / "sim/device.cpp").exists():
        raise NoDevice(
            f"no RTL sources in {ROOT} (an installed package has none): "
            "run from a clone of the repository after `make rtl-env`"
        )
    digest = hashlib.sha256(f"{lanes} {VERILATOR_FLAGS}".encode())
    sources = [*ROOT.glob("rtl/*.py"), ROOT / "sim/device.cpp"]
    sources += [ROOT / f"twinscope_fpga/{name}.py" for name in ("formats", "registers", "tables")]
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def cache_folder() -> Path:
    """Where built libraries are kept: TWINSCOPE_RTL_CACHE, or .cache/rtl beside fpga_backend/."""
    chosen = os.environ.get("TWINSCOPE_RTL_CACHE")
    return Path(chosen) if chosen else ROOT.parent / ".cache" / "rtl"


def rtl_python() -> str:
    """The interpreter that has Amaranth: this one, or that of .venv-rtl."""
    own = ROOT.parent / ".venv-rtl" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def build_library(lanes: int, *, verilog: Path | None = None, folder: Path | None = None) -> Path:
    """Path of the shared library for `lanes`, built when it is not there yet.

    `verilog`: use this text instead of exporting (mutation tests); then `folder` must be given.
    """
    place = folder or cache_folder() / f"l{lanes}-{source_hash(lanes)}"
    library = place / "libengine.so"
    if library.exists():
        return library
    if shutil.which("verilator") is None or shutil.which("g++") is None:
        raise NoDevice("verilator and g++ are needed to build the device: run `make rtl-env`")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NoDevice(
            f"cannot write {place} ({error.strerror}): set TWINSCOPE_RTL_CACHE to a folder of yours"
        ) from error
    with tempfile.TemporaryDirectory(dir=place) as work:  # two processes may build side by side
        built = _build(lanes, Path(work), verilog)
        built.replace(library)
    return library


def _build(lanes: int, work: Path, verilog: Path | None) -> Path:
    """Export, verilate and compile in `work`."""
    source = work / "twinscope_engine.v"
    if verilog is None:
        _run([rtl_python(), "-m", "rtl.export", "--lanes", str(lanes), "--out", str(source)], ROOT)
    else:
        source.write_bytes(verilog.read_bytes())
    model = work / "model"
    _run(["verilator", *VERILATOR_FLAGS, "-Mdir", str(model), str(source)], work)
    library = work / "libengine.so"
    _compile(lanes, model, library)
    return library


def _compile(lanes: int, model: Path, library: Path) -> None:
    """Every file on its own, side by side; what runs once only is not optimised."""
    include = Path(_run(["verilator", "--getenv", "VERILATOR_ROOT"], model).strip()) / "include"
    flags = [
        f"-DLANES={lanes}", "-fPIC", "-std=c++17", f"-I{model}", f"-I{include}",
        f"-I{include / 'vltstd'}",
    ]  # fmt: skip
    sources = [ROOT / "sim/device.cpp", *sorted(model.glob("*.cpp"))]
    sources += [include / name for name in ("verilated.cpp", "verilated_threads.cpp")]

    def compile_one(source: Path) -> str:
        target = str(model / f"{source.stem}.o")
        level = "-O0" if "Slow" in source.stem or "ConstPool" in source.stem else "-O2"
        _run(["g++", level, *flags, "-c", "-o", target, str(source)], model)
        return target

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(compile_one, sources))
    _run(["g++", "-shared", "-pthread", "-o", str(library), *objects], model)


def _run(command: list[str], folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.setdefault("YOWASP_CACHE_DIR", str(ROOT.parent / ".cache" / "yowasp"))
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        log = Path(tempfile.gettempdir()) / "twinscope-rtl-build.log"
        log.write_text(done.stdout + done.stderr)
        last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        raise NoDevice(
            f"`{Path(command[0]).name}` failed while building the device ({last}; all of it in "
            f"{log}): run `make rtl-env`"
        )
    return done.stdout


class SimulatedDevice:
    """`Transport` around the library. idle, stall: chances in 1/256 per clock; seed: of these."""

    kind: Kind = "simulation"

    def __init__(
        self, *, lanes: int = 4, seed: int = 1, idle: int = 0, stall: int = 0,
        library: Path | None = None,
    ) -> None:  # fmt: skip
        path = library or build_library(lanes)
        self.place = f"simulation {path.parent.name}"
        self._library = _load(path)
        if self._library.device_lanes() != lanes:
            raise WrongDevice(f"{path} has {self._library.device_lanes()} lanes, not {lanes}")
        self._handle = ctypes.c_void_p(self._library.device_open(seed))
        self._idle, self._stall, self._lanes = idle, stall, lanes

    @property
    def cycles(self) -> int:
        """Clocks simulated so far."""
        return int(self._library.device_cycles(self._handle))

    def read_register(self, offset: int) -> int:
        """Through the AXI-Lite port; an address without a register reads 0xDEADDEAD."""
        value = ctypes.c_uint32()
        if self._library.device_read(self._handle, offset, ctypes.byref(value)) < 0:
            raise DeviceTimeout(f"{self.place}: register {offset:#x} did not answer")
        return value.value

    def write_register(self, offset: int, value: int) -> None:
        """Through the AXI-Lite port."""
        if self._library.device_write(self._handle, offset, value & 0xFFFFFFFF) != 0:
            raise WrongDevice(f"{self.place}: register {offset:#x} cannot be written")

    def exchange(self, data: U8, *, records: int, tokens: int, timeout_s: float) -> Reply:
        """Clock the device until everything has come; the timeout is in simulated clocks."""
        data = np.ascontiguousarray(data)
        answer = np.zeros(records + 128, dtype=np.uint8)
        words = np.zeros(tokens + 16 * self._lanes, dtype=np.uint8)
        transfer = _Transfer(
            input=data.ctypes.data, input_size=data.nbytes,
            records=answer.ctypes.data, records_size=answer.nbytes, records_wanted=records,
            tokens=words.ctypes.data, tokens_size=words.nbytes, tokens_wanted=tokens,
            max_cycles=max(int(timeout_s * CLOCKS_PER_SECOND), 4096),
            idle_of_256=self._idle, stall_of_256=self._stall,
        )  # fmt: skip
        used = self._library.device_transfer(self._handle, ctypes.byref(transfer))
        done = (transfer.input_done, transfer.records_done, transfer.tokens_done)
        if done != (data.nbytes, records, tokens):
            raise DeviceTimeout(
                f"{self.place}: after {used} clocks, of {data.nbytes} bytes to send, {records} "
                f"record and {tokens} token bytes to come, only {done} were done"
            )
        return Reply(answer[:records], words[:tokens])

    def close(self) -> None:
        """Free the model."""
        if self._handle:
            self._library.device_close(self._handle)
            self._handle = ctypes.c_void_p()


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NoDevice(f"{error}: delete {path.parent}, it is built anew") from error
    handle, word = ctypes.c_void_p, ctypes.c_uint32
    library.device_open.restype, library.device_open.argtypes = handle, [word]
    library.device_close.restype, library.device_close.argtypes = None, [handle]
    library.device_cycles.restype, library.device_cycles.argtypes = ctypes.c_uint64, [handle]
    library.device_write.argtypes = [handle, word, word]
    library.device_read.argtypes = [handle, word, ctypes.POINTER(word)]
    library.device_transfer.restype = ctypes.c_uint64
    library.device_transfer.argtypes = [handle, ctypes.POINTER(_Transfer)]
    return library
