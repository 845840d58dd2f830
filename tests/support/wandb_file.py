"""What W&B wrote in offline mode, as its own record messages.

A `.wandb` file is a LevelDB log behind a header of 7 bytes: blocks of 32 KiB, in them pieces of
records, each behind checksum (4 bytes), length (2) and kind (1: whole, 2 first, 3 middle, 4 last).
The header belongs to the first block.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

FILE_HEADER, PIECE_HEADER, BLOCK = 7, 7, 32768
ENDS = (1, 4)


def read_records(path: Path) -> list[Any]:
    """Every record of the file, in order."""
    from wandb.proto.wandb_internal_pb2 import Record

    body = path.read_bytes()
    assert body.startswith(b":W&B")
    records, at, whole = [], FILE_HEADER, b""
    while at + PIECE_HEADER <= len(body):
        room = BLOCK - at % BLOCK
        if room < PIECE_HEADER:  # too small for a piece: zeros to the end of the block
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", body, at)
        at += PIECE_HEADER + length
        whole += body[at - length : at]
        if kind in ENDS:
            records.append(Record.FromString(whole))
            whole = b""
    return records
