"""RTL = golden, bit for bit, over as many tokens as asked: `make -C fpga_backend equivalence`.

    python -m tb.equivalence --tokens 10000000 --lanes 1,2,4,8

For every number of lanes: four kinds of data (healthy, log-uniform, random bit patterns, special
values) crossed with four throttlings (none, source, sink, both). Sequences have 0 tokens and more,
every eighth is masked whole, three in ten tokens elsewhere; they are cut in pieces that are sent in
random order; a fifth of every part goes through KL mode. Prints a table; status 1 on a mismatch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from twinscope_fpga.device import Device, merge_records
from twinscope_fpga.emulator import EmulatedDevice
from twinscope_fpga.packing import Chunk, Records
from twinscope_fpga.simulation import SimulatedDevice

from .conftest import KINDS, draw_pairs

THROTTLES = {"free": (0, 0), "slow source": (90, 0), "slow sink": (0, 200), "both": (100, 120)}
LONGEST = 700  # tokens of a piece
PIECES_AT_ONCE = 2000


@dataclass(frozen=True)
class Part:
    """One kind of data under one throttling: float32 bits [N], offsets [S+1], mask [N], mode."""

    rollout: np.ndarray
    train: np.ndarray
    offsets: np.ndarray
    mask: np.ndarray
    mode: int


def draw_part(kind: str, tokens: int, mode: int, seed: int) -> Part:
    """Random sequences of about 300 tokens with some empty ones and some all masked."""
    rng = np.random.default_rng([seed, mode])
    cuts = np.sort(rng.integers(0, tokens + 1, max(tokens // 300, 2)))
    cuts = np.sort(np.concatenate([cuts, cuts[::10]]))  # equal cuts: sequences of no tokens
    offsets = np.concatenate([[0], cuts, [tokens]]).astype(np.int64)
    mask = (rng.random(tokens) < 0.7).astype(np.uint8)
    for start, end in zip(offsets[:-1:8], offsets[1::8], strict=True):
        mask[start:end] = 0
    rollout, train = draw_pairs(kind, tokens, seed)
    return Part(rollout, train, offsets, mask, mode)


def pieces(part: Part, seed: int) -> Iterator[list[Chunk]]:
    """All sequences in pieces of at most LONGEST tokens, shuffled, in groups for one exchange."""
    found = []
    for tag, (start, end) in enumerate(zip(part.offsets[:-1], part.offsets[1:], strict=True)):
        for at in range(int(start), max(int(end), int(start) + 1), LONGEST):
            length = min(int(end) - at, LONGEST)
            found.append(Chunk(tag=tag, start=at, length=length, mode=part.mode))
    order = np.random.default_rng(seed).permutation(len(found))
    for at in range(0, len(order), PIECES_AT_ONCE):
        yield [found[i] for i in order[at : at + PIECES_AT_ONCE]]


def mismatches(device: Device, golden: Device, part: Part, seed: int) -> int:
    """Sequences whose record differs in any field."""
    got = merge_records(
        [device.send_chunks(part.rollout, part.train, group, part.mask)
         for group in pieces(part, seed)],
        len(part.offsets) - 1,
    )  # fmt: skip
    expected = golden.measure(
        part.rollout, part.train, part.offsets, mask=part.mask, mode=part.mode
    )
    return int(different(got, expected).sum())


def different(found: Records, expected: Records) -> np.ndarray:
    """bool [S]: any of the sums, counts, largest |Δ| or status is not the same."""
    return np.asarray(
        (found.sums != expected.sums).any(axis=1)
        | (found.counts != expected.counts).any(axis=1)
        | (found.max_abs != expected.max_abs)
        | (found.status != expected.status)
    )


def compare(lanes: int, tokens: int) -> tuple[int, int, int, float]:
    """(tokens, sequences, mismatching sequences, CPU seconds of the RTL) of one number of lanes."""
    golden = Device(EmulatedDevice(lanes=lanes))
    each = -(-tokens // (len(KINDS) * len(THROTTLES)))
    sequences = wrong = done = 0
    start = time.process_time()
    for t, (idle, stall) in enumerate(THROTTLES.values()):
        transport = SimulatedDevice(lanes=lanes, idle=idle, stall=stall, seed=t)
        device = Device(transport, timeout_s=500.0)
        for k, kind in enumerate(KINDS):
            for mode, count in ((0, each - each // 5), (1, each // 5)):
                part = draw_part(kind, count, mode, seed=100 * t + k)
                wrong += mismatches(device, golden, part, seed=t)
                sequences += len(part.offsets) - 1
                done += count
        device.close()
    return done, sequences, wrong, time.process_time() - start


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000, help="per number of lanes")
    parser.add_argument("--lanes", default="1,2,4,8")
    chosen = parser.parse_args()
    print("| lanes | tokens | sequences | mismatches | CPU seconds |\n|---|---|---|---|---|")
    total = 0
    for lanes in (int(text) for text in chosen.lanes.split(",")):
        tokens, sequences, wrong, seconds = compare(lanes, chosen.tokens)
        print(f"| {lanes} | {tokens} | {sequences} | {wrong} | {seconds:.0f} |", flush=True)
        total += wrong
    if total:
        raise SystemExit(f"{total} sequences differ between RTL and golden model")


if __name__ == "__main__":
    main()
