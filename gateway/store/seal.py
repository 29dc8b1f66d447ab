"""Secrets of stored resources (the API key of an external engine), encrypted with a key that is derived from the pepper.

AES-256-GCM (NIST SP 800-38D) under a key from HKDF-SHA256 (RFC 5869). The purpose of a secret is authenticated with it: moved to another
resource or address, it does not open. Every replica that knows the pepper can open it; the database alone does not suffice.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.core.clock import Entropy
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret

PREFIX: Final = "sealed:1:"
_NONCE: Final = 12


class Sealer:
    """Seals and opens. pepper: 32 secret bytes that all replicas share."""

    def __init__(self, pepper: bytes, entropy: Entropy) -> None:
        key = HKDF(SHA256(), 32, salt=None, info=b"gatehouse store secrets 1").derive(pepper)
        self._cipher, self._entropy = AESGCM(key), entropy

    def seal(self, secret: Secret, purpose: str) -> str:
        """A text to be stored; different each time."""
        nonce = self._entropy.bytes(_NONCE)
        return PREFIX + base64.urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, secret.reveal().encode(), purpose.encode())).decode()

    def unseal(self, sealed: str, purpose: str) -> Secret:
        """Raises ConfigError unless the text was sealed with this pepper and for this purpose."""
        try:
            data = base64.urlsafe_b64decode(sealed.removeprefix(PREFIX).encode("ascii"))
            return Secret(self._cipher.decrypt(data[:_NONCE], data[_NONCE:], purpose.encode()).decode())
        except (InvalidTag, binascii.Error, ValueError):
            raise ConfigError("the secret cannot be opened here: it was stored with another pepper, or for something else") from None
