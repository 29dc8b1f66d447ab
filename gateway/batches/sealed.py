"""Files that are encrypted piece by piece, so that they can be written and read as streams, and texts that are encrypted whole.

AES-256-GCM. Each file has a key of its own, derived from the tenant's (HKDF-SHA256, RFC 5869) with 16 random bytes that stand at its
beginning. The nonce of a piece is its number and whether it is the last (the STREAM construction of Hoang, Reyhanitabar, Rogaway and Vizár,
2015): pieces cannot be exchanged, repeated or left out, and a file that was cut short does not open. What it belongs to (its id) is
authenticated with every piece. All of this blocks: call it in a thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.core.clock import Entropy
from gateway.core.errors import GatehouseError

MAGIC: Final = b"GHF1"
PIECE: Final = 64 * 1024
"""Bytes of content in each piece but the last."""
SALT: Final = 16
_NONCE: Final = 12
_TAG: Final = 16
_FILE: Final = b"gatehouse client file 1"
_TEXT: Final = b"gatehouse batch line 1"


class Damaged(GatehouseError):
    """The file, or the text, is not what was written here."""

    default_code = "file_damaged"


def _derived(key: bytes, salt: bytes, purpose: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), 32, salt=salt, info=purpose).derive(key))


class SealedWriter:
    """Writes a new file under a temporary name. `finish` gives it its own; `abandon` removes what there is. Raises OSError."""

    def __init__(self, path: Path, id: str, key: bytes, entropy: Entropy) -> None:
        self._path, self._partial = path, path.with_name(path.name + PARTIAL)
        self._bound = id.encode()
        salt = entropy.bytes(SALT)
        self._cipher = _derived(key, salt, _FILE)
        self._number = 0
        self._rest = bytearray()
        self.size = 0
        self._file: IO[bytes] = os.fdopen(os.open(self._partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb", buffering=0)
        try:
            self._put(MAGIC + salt)
        except OSError:
            self.abandon()
            raise

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self._rest += data
        while len(self._rest) > PIECE:
            self._seal(bytes(self._rest[:PIECE]), last=False)
            del self._rest[:PIECE]

    def _seal(self, piece: bytes, *, last: bool) -> None:
        self._put(self._cipher.encrypt(_nonce(self._number, last), piece, self._bound))
        self._number += 1

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]

    def finish(self) -> None:
        """The content is whole, and on the disk."""
        self._seal(bytes(self._rest), last=True)
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def abandon(self) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


PARTIAL: Final = ".partial"


def pieces(path: Path, id: str, key: bytes) -> Iterator[bytes]:
    """The content, piece by piece. Raises Damaged at the first piece that is not what was written; OSError."""
    with path.open("rb") as file:
        head = file.read(len(MAGIC) + SALT)
        if len(head) != len(MAGIC) + SALT or not head.startswith(MAGIC):
            raise Damaged(f"The file {id} is damaged.")
        cipher, number, piece = _derived(key, head[len(MAGIC) :], _FILE), 0, file.read(PIECE + _TAG)
        while True:
            following = file.read(PIECE + _TAG)
            try:
                yield cipher.decrypt(_nonce(number, not following), piece, id.encode())
            except (InvalidTag, ValueError):
                raise Damaged(f"The file {id} is damaged.") from None
            if not following:
                return
            number, piece = number + 1, following


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(_NONCE - 1, "big") + bytes([last])


class SealedTexts:
    """Texts that belong to one thing, each under its number. The nonces are random: with 96 bits, a million texts under one key have a
    chance of about 10^-17 to share one."""

    def __init__(self, id: str, key: bytes, salt: bytes, entropy: Entropy) -> None:
        self._id, self._cipher, self._entropy = id, _derived(key, salt, _TEXT), entropy

    def seal(self, number: int, text: bytes) -> bytes:
        nonce = self._entropy.bytes(_NONCE)
        return nonce + self._cipher.encrypt(nonce, text, f"{self._id}:{number}".encode())

    def open(self, number: int, sealed: bytes) -> bytes:
        """Raises Damaged."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], f"{self._id}:{number}".encode())
        except (InvalidTag, ValueError):
            raise Damaged(f"The line {number} of {self._id} is damaged.") from None
