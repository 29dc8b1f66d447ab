"""Legal holds: while a tenant is held, no segment that has records of it is taken away. Kept in a file beside the log, replaced as a
whole."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gateway.audit.crypto import replace_file
from gateway.audit.encode import encode_json
from gateway.audit.segments import open_segment
from gateway.audit.sinks.file import open_own
from gateway.core.clock import Clock

FILE: Final = "holds.json"
_BLOCK: Final = 1024 * 1024
_AMONG: Final = rb'"tenants":\[(?:"(?:[^"\\]|\\.)*",)*(?:%b)[,\]]'
"""An event that is about one of these tenants."""


class Hold(msgspec.Struct, frozen=True):
    """since: in seconds since the epoch. why: whoever ordered it, and for what. actor: who said so. stored: the store has it, too."""

    tenant: str
    since: float
    why: str
    actor: str
    stored: bool = False


class Holds:
    """Everything here blocks and raises OSError: of a file that cannot be read or understood nothing is known, so nothing may be taken
    away."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory, self._clock = directory, clock

    def list(self) -> list[Hold]:
        """The holds by tenant."""
        try:
            found = msgspec.json.decode((self._directory / FILE).read_bytes(), type=list[Hold])
        except FileNotFoundError:
            return []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise OSError(f"{self._directory / FILE} cannot be understood: {error}") from error
        return sorted(found, key=lambda hold: hold.tenant)

    def why(self, tenant: str) -> str:
        """Why a tenant is held, or ""; also where that cannot be known."""
        try:
            return next((hold.why for hold in self.list() if hold.tenant == tenant), "")
        except OSError as error:
            return f"the file of holds cannot be read: {error}"

    def add(self, tenant: str, why: str, actor: str) -> Hold:
        """The hold of a tenant, as it is from now on; an older one stays."""
        with self._alone():
            holds = self.list()
            known = next((hold for hold in holds if hold.tenant == tenant), None)
            if known is not None:
                return known
            fresh = Hold(tenant, self._clock.wall(), why, actor)
            replace_file(self._directory / FILE, encode_json([*holds, fresh]))
        return fresh

    def release(self, tenant: str) -> Hold | None:
        """The hold that was released, if there was one."""
        with self._alone():
            holds = self.list()
            known = next((hold for hold in holds if hold.tenant == tenant), None)
            if known is not None:
                replace_file(self._directory / FILE, encode_json([hold for hold in holds if hold.tenant != tenant]))
        return known

    def follow(self, stored: Sequence[Hold]) -> None:
        """The holds of the store take the place of those that came from there; what the store does not have yet stays."""
        with self._alone():
            before = self.list()
            tenants = {hold.tenant for hold in stored}
            fresh = sorted([*stored, *(one for one in before if not one.stored and one.tenant not in tenants)], key=lambda one: one.tenant)
            if fresh != before:
                replace_file(self._directory / FILE, encode_json(fresh))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = open_own(self._directory / f"{FILE}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def concerns(path: Path, tenants: frozenset[str]) -> bool:
    """Whether a segment has a record of one of the tenants, or an event about one. Raises OSError."""
    names = [json.dumps(tenant).encode("ascii") for tenant in sorted(tenants)]  # as gateway.audit.encode escapes them
    if not names:
        return False
    needles = [b'"tenant":' + name for name in names]
    among = re.compile(_AMONG % b"|".join(map(re.escape, [*names, b'"*"'])))
    rest = b""
    with open_segment(path) as file:
        while block := file.read(_BLOCK):
            text, _, rest = (rest + block).rpartition(b"\n")
            if any(needle in text for needle in needles) or among.search(text):
                return True
    return any(needle in rest for needle in needles) or among.search(rest) is not None
