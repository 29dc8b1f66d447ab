"""The pepper: the secret with which API keys are hashed. A stolen table of keys does not even confirm a guessed key without it.

It is a file of the state directory (0600), made at the first start. Machines that share a PostgreSQL must share it, either as that file or
through the environment (GATEHOUSE_PEPPER). Losing it makes every stored key useless.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from gateway.core.clock import Entropy
from gateway.core.errors import ConfigError
from gateway.store.tables import facts

FILE = "pepper"
VARIABLE = "GATEHOUSE_PEPPER"
MIN_LENGTH = 32


def peppers(state_dir: Path, entropy: Entropy, given: str | None = None) -> tuple[bytes, ...]:
    """The pepper, and what earlier versions took the same text for; 32 bytes each.

    given: the value of GATEHOUSE_PEPPER: the content of a pepper file, or a passphrase, which is hashed.
    Raises ConfigError if the variable is short, or if the file is damaged or readable by others.
    """
    if given is None:
        path = state_dir / FILE
        try:
            return (_made(path, entropy) if not path.exists() else _read(path),)
        except OSError as error:
            raise ConfigError(f"the pepper {path} cannot be read or made: {error.strerror}", path="store") from None
    if len(given) < MIN_LENGTH:
        raise ConfigError(f"{VARIABLE} must have {MIN_LENGTH} characters or more", path="store")
    hashed = hashlib.sha256(given.encode()).digest()
    decoded = _decoded(given)
    return (hashed,) if decoded is None else (decoded, hashed)


def choose_pepper(connection: sa.Connection, marks: Sequence[str]) -> int:
    """The number of the pepper by which the store's keys were hashed; in a new store, notes the first. marks: an HMAC with each pepper.

    Raises ConfigError if it is none of them, because no key of the store would be accepted here.
    """
    found = noted(connection)
    if found is None:
        connection.execute(sa.insert(facts).values(name="pepper", value=marks[0]))
        return 0
    return which(found, marks)


def noted(connection: sa.Connection) -> str | None:
    """The mark of the pepper that the store's keys were hashed with; None in a new store."""
    found: str | None = connection.execute(sa.select(facts.c.value).where(facts.c.name == "pepper")).scalar_one_or_none()
    return found


def which(found: str, marks: Sequence[str]) -> int:
    """The number of the mark that is this one. Raises ConfigError if it is none of them."""
    for number, mark in enumerate(marks):
        if hmac.compare_digest(found, mark):
            return number
    raise ConfigError(
        f"the keys of this store were hashed with another pepper; machines that share a store share {VARIABLE} (docs/store.md)",
        path="store",
    )


def _decoded(text: str) -> bytes | None:
    """The 32 bytes that a pepper file's text stands for; None for another text."""
    try:
        found = bytes.fromhex(text.strip())
    except ValueError:
        return None
    return found if len(found) == 32 else None


def _read(path: Path) -> bytes:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"the pepper {path} may be readable by its owner only (chmod 600)", path="store")
    try:
        found = _decoded(path.read_text(encoding="ascii"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise ConfigError(f"the pepper {path} is damaged: restore it from a backup, or no stored key will work", path="store")
    return found


def _made(path: Path, entropy: Entropy) -> bytes:
    """Writes the file beside its place, syncs it and links it into place: no reader sees half a file, and of two writers one wins."""
    new = path.with_name(f"{FILE}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(entropy.bytes(32).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(new, path)
        except FileExistsError:
            pass
    finally:
        new.unlink()
    return _read(path)
