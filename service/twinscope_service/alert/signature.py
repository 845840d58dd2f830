"""Signed webhooks: who receives one can check that it comes from here, unchanged and just now.

The receiver's side, in any language:

    expected = "v1=" + hex(hmac_sha256(secret, timestamp + "." + body))
    accept if equal in constant time, and |now - timestamp| <= 300 seconds
"""

from __future__ import annotations

import hashlib
import hmac

TIMESTAMP = "X-TwinScope-Timestamp"  # seconds since the epoch
SIGNATURE = "X-TwinScope-Signature"  # v1=<64 hex digits>
DELIVERY = "X-TwinScope-Delivery"  # the same for the same news: receivers deduplicate by it
TOLERANCE_S = 300


def sign(secret: str, body: bytes, *, timestamp: int) -> str:
    """The value of the signature header."""
    message = str(timestamp).encode("ascii") + b"." + body
    return "v1=" + hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def verify(secret: str, body: bytes, *, timestamp: str, signature: str, now: float) -> bool:
    """Is this delivery genuine and fresh?"""
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        return False
    fresh = abs(now - int(timestamp)) <= TOLERANCE_S
    expected = sign(secret, body, timestamp=int(timestamp))
    return hmac.compare_digest(expected.encode(), signature.encode()) and fresh
