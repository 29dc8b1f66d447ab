"""Signatures of webhooks, as "Standard Webhooks" (standardwebhooks.com, 1.0) has them, so that libraries for it can verify them.

What is signed is `ID.TIMESTAMP.BODY` with HMAC-SHA256; the header says `v1,` and the signature in base64. A secret that begins with
`whsec_` is base64 of the key; any other text is the key itself.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Final

PREFIX: Final = "whsec_"
LEAST: Final = 24
"""Bytes of a key."""


def key_of(secret: str) -> bytes:
    """Raises ValueError for what is not base64 after the prefix."""
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(f"is not base64 after {PREFIX}") from None


def key_fault(secret: str) -> str | None:
    """What is wrong with a secret."""
    try:
        short = len(key_of(secret)) < LEAST
    except ValueError as error:
        return str(error)
    return f"is too short to sign with; use {LEAST} bytes or more, such as from: openssl rand -base64 32" if short else None


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`."""
    signed = hmac.digest(key_of(secret), b"%b.%d.%b" % (id.encode(), timestamp, body), "sha256")
    return "v1," + base64.b64encode(signed).decode()
