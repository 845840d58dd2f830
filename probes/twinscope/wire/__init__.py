"""How a batch travels: one declaration (`schema`), one record (`batch`), one codec (`codec`)."""

from twinscope.errors import WireError
from twinscope.wire.batch import Batch
from twinscope.wire.codec import (
    decode,
    digest,
    encode,
    encode_batch,
    read_trace,
    write_trace,
)
from twinscope.wire.json_form import decode_json
from twinscope.wire.limits import Limits

__all__ = [
    "Batch",
    "Limits",
    "WireError",
    "decode",
    "decode_json",
    "digest",
    "encode",
    "encode_batch",
    "read_trace",
    "write_trace",
]
