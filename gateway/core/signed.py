"""Messages that two servers sign with a secret that both know: HMAC-SHA256 over the moment, a number used once and the body.

x-gatehouse-timestamp: seconds since the epoch
x-gatehouse-nonce: 16 to 128 letters and digits, never twice
x-gatehouse-signature: v1=HMAC-SHA256(secret, TIMESTAMP "." NONCE "." BODY) in hex
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Final

TIMESTAMP: Final = "x-gatehouse-timestamp"
NONCE: Final = "x-gatehouse-nonce"
SIGNATURE: Final = "x-gatehouse-signature"
WINDOW: Final = 300.0
"""Seconds by which the two clocks may differ. A nonce is remembered for twice as long."""
_NONCE: Final = re.compile(r"[A-Za-z0-9_-]{16,128}", re.ASCII)
_MOMENT: Final = re.compile(r"[0-9]{1,12}", re.ASCII)


def headers(secret: str, body: bytes, now: float, nonce: str) -> dict[str, str]:
    """What goes with a signed body."""
    moment = str(int(now))
    return {TIMESTAMP: moment, NONCE: nonce, SIGNATURE: f"v1={_signature(secret, moment, nonce, body)}"}


def verified(secret: str, given: Mapping[str, str], body: bytes, now: float) -> str | None:
    """The nonce of a message whose signature is right and whose moment is near; None for any other. The caller refuses a nonce that it has
    seen."""
    moment, nonce, signature = (given.get(name, "") for name in (TIMESTAMP, NONCE, SIGNATURE))
    if not _MOMENT.fullmatch(moment) or not _NONCE.fullmatch(nonce):
        return None
    right = hmac.compare_digest(f"v1={_signature(secret, moment, nonce, body)}".encode(), signature.encode("utf-8", "replace"))
    return nonce if right and abs(now - int(moment)) <= WINDOW else None


def _signature(secret: str, moment: str, nonce: str, body: bytes) -> str:
    return hmac.new(secret.encode(), f"{moment}.{nonce}.".encode() + body, "sha256").hexdigest()
