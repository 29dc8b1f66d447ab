"""The format of the API keys that Gatehouse makes: `gh_`, 192 random bits and a checksum, all in base62.

The prefix lets secret scanners find a leaked key; the checksum (CRC-32, as in GitHub's tokens) tells a mistyped key from an
unknown one without asking the store. The checksum is not a secret and proves nothing. Keys are stored as
HMAC-SHA256 with the server's pepper, so a stolen table is not even enough to confirm a guessed key.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib

from gateway.core.clock import Entropy

PREFIX = "gh_"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RANDOM_BYTES = 24
_BODY, _CHECK = 33, 6  # 62**33 > 2**192; 62**6 > 2**32
LENGTH = len(PREFIX) + _BODY + _CHECK
_DIGITS = frozenset(ALPHABET)


def generate(entropy: Entropy) -> str:
    """A new key of `LENGTH` characters."""
    body = _base62(int.from_bytes(entropy.bytes(RANDOM_BYTES), "big"), _BODY)
    return PREFIX + body + _checksum(body)


def well_formed(key: str) -> bool:
    """Whether prefix, length, alphabet and checksum are those of a key that Gatehouse made."""
    if len(key) != LENGTH or not key.startswith(PREFIX):
        return False
    body, check = key[len(PREFIX) : -_CHECK], key[-_CHECK:]
    return _DIGITS.issuperset(body) and _checksum(body) == check


def digest(key: str) -> bytes:
    """SHA-256 of the whole key (32 bytes), which caches and look-ups use."""
    return hashlib.sha256(key.encode()).digest()


def fingerprint(key: str, pepper: bytes) -> bytes:
    """HMAC-SHA256 of the key with the server's pepper (32 bytes), which the store keeps."""
    return hmac.digest(pepper, key.encode(), "sha256")


def _checksum(body: str) -> str:
    return _base62(zlib.crc32((PREFIX + body).encode()), _CHECK)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
