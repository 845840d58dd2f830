"""Power-relevant activity: how often the engine's bits change while it works on healthy pairs.

    python -m syn.activity --lanes 1

Icarus writes a VCD of a framed run of the engine; toggles are counted per submodule. A figure of
1 would be a bit that changes every clock (a clock has 2). No board, no watt: the numbers rank the
parts of the design and feed a vendor's power estimator.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rtl.export import engine_verilog
from twinscope_fpga.packing import Chunk, pack_chunks

BENCH = """`timescale 1ns/1ps
module bench;
  reg clk = 0, rst = 1, valid = 0;
  reg [{width}:0] data [0:{last}];
  reg [{width}:0] beat = 0;
  wire ready;
  integer at = 0;
  twinscope_engine dut(
    .clk(clk), .rst(rst), .s_axis_tdata(beat), .s_axis_tvalid(valid), .s_axis_tready(ready),
    .s_axis_tkeep({{{keep}{{1'b1}}}}), .s_axis_tuser({{{lanes}{{1'b1}}}}), .s_axis_tlast(1'b0),
    .m_axis_tready(1'b1), .m_axis_token_tready(1'b1),
    .s_axil_awaddr(12'h10), .s_axil_wdata(32'h1), .s_axil_wstrb(4'hF), .s_axil_awvalid(at == 0),
    .s_axil_wvalid(at == 0), .s_axil_bready(1'b1), .s_axil_araddr(12'h0), .s_axil_arvalid(1'b0),
    .s_axil_rready(1'b1));
  always #5 clk = ~clk;
  initial begin
    $readmemh("beats.hex", data);
    #60 rst = 0;
    #200 $dumpfile("run.vcd");
    $dumpvars(0, dut);
    #{time} $finish;
  end
  always @(posedge clk) if (!rst) begin
    if (valid && ready) at <= at + 1;
    beat <= data[(valid && ready) ? at + 1 : at];
    valid <= ((valid && ready) ? at + 1 : at) <= {last};
  end
endmodule
"""


def simulate(lanes: int, folder: Path, tokens: int) -> int:
    """Write run.vcd of `tokens` healthy pairs; returns the clocks recorded."""
    rng = np.random.default_rng(1)
    q = -rng.exponential(1, tokens).astype(np.float32)
    p = np.minimum(q + rng.normal(0, 5e-3, tokens).astype(np.float32), 0)
    chunks = [Chunk(tag=i, start=500 * i, length=500) for i in range(tokens // 500)]
    beats = pack_chunks(q.view(np.uint32), p.view(np.uint32), chunks, lanes=lanes)
    rows = beats.reshape(-1, 8 * lanes)
    (folder / "beats.hex").write_text("\n".join(row[::-1].tobytes().hex() for row in rows))
    clocks = len(rows)
    (folder / "engine.v").write_text(engine_verilog(lanes=lanes))
    text = BENCH.format(width=64 * lanes - 1, last=len(rows) - 1, keep=8 * lanes, lanes=lanes,
                        time=10 * clocks)  # fmt: skip
    (folder / "bench.v").write_text(text)
    subprocess.run(
        ["iverilog", "-g2012", "-o", "run", "bench.v", "engine.v"], cwd=folder, check=True
    )
    subprocess.run(["vvp", "run"], cwd=folder, check=True, capture_output=True)
    return clocks


def wires(lines: Iterator[str]) -> dict[str, tuple[str, int]]:
    """VCD identifier -> (submodule, bits) from the declarations."""
    scope: list[str] = []
    found: dict[str, tuple[str, int]] = {}
    for line in lines:
        words = line.split()
        if line.startswith("$scope"):
            scope.append(words[2])
        elif line.startswith("$upscope"):
            scope.pop()
        elif line.startswith("$var"):
            found.setdefault(words[3], (scope[2] if len(scope) > 2 else "top", int(words[2])))
        elif line.startswith("$enddefinitions"):
            break
    return found


def toggles(path: Path) -> tuple[Counter[str], Counter[str]]:
    """(bit changes, bits) per submodule."""
    changes: Counter[str] = Counter()
    bits: Counter[str] = Counter()
    with path.open() as lines:
        table = wires(lines)
        last: dict[str, str] = {}
        for line in lines:
            if line[0] == "b":
                value, name = line[1:].split()
            elif line[0] in "01":
                value, name = line[0], line[1:].strip()
            else:
                continue
            value = value.rjust(table[name][1], "0")
            before = last.get(name)
            if before is not None:
                changes[table[name][0]] += (
                    (int(value, 2) ^ int(before, 2)).bit_count()
                    if ("x" not in value + before and "z" not in value + before)
                    else 0
                )
            last[name] = value
    for module, width in table.values():
        bits[module] += width
    return changes, bits


def main() -> None:
    """Command line: prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=1, choices=(1, 2, 4, 8))
    parser.add_argument("--tokens", type=int, default=2000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        clocks = simulate(chosen.lanes, Path(place), chosen.tokens)
        changes, bits = toggles(Path(place) / "run.vcd")
    print("| part | wire bits | changes per bit and clock |")
    print("|---|---|---|")
    for module, width in bits.most_common():
        print(f"| {module} | {width} | {changes[module] / width / clocks:.3f} |")
    print(f"\n{clocks} clocks, {chosen.tokens} tokens, {chosen.lanes} lane(s)")


if __name__ == "__main__":
    main()
