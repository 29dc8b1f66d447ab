"""Opens lines whose records were encrypted whole (gateway.audit.envelopes), for whoever reads the log. Everything here blocks.

An opened line reads as if it had never been sealed; `sealed` is then the id of its key. Its hash is still that of the line in the log. One
that cannot be opened keeps what it has in the clear and says why in `unopened`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from gateway.audit.envelopes import CONTEXT, SALT
from gateway.audit.keyring import FETCH_SECONDS, DataKey
from gateway.audit.record import Envelope
from gateway.core.errors import MasterUnavailable, Shredded

SEALED: Final = b'","sealed":{"v":'
"""What every sealed line has behind its digest."""
KEYS: Final = 1024
"""Opened keys that are remembered."""
NO_ENCRYPTION: Final = "audit.encryption is not configured"
SHREDDED: Final = "shredded"
"""Why a line is not opened whose key was destroyed."""
NO_SUCH_KEY: Final = "the store has no such key"
_HASH: Final = b',"hash":"'
_WITHHELD: Final = b',"withheld":true'
"""In the clear part of a record that was written while its tenant's key was not available: such a record says nothing of people."""


class _Line(msgspec.Struct):
    seq: int
    kind: str
    digest: str = ""
    sealed: Envelope | None = None


_decode: Final = msgspec.json.Decoder(_Line).decode


Fetch = Callable[[str], DataKey | str]
Ask = Callable[[str], Coroutine[Any, Any, DataKey | str]]


class Opened(NamedTuple):
    """What a sealed line holds. salt: in hex; the line's digest is SHA-256 of it and the record's JSON. text: the record's JSON."""

    salt: str
    text: bytes
    key: str


class _Kept(NamedTuple):
    """key: None where it is gone for good, and `why`."""

    key: DataKey | None
    why: str
    until: float


class Opener:
    """Usable by any number of threads, but not on the event loop.

    fetch: gets a key by its id, or why it is gone for good; may block, and raises GatehouseError, which whoever reads gets too. None:
    nothing is encrypted here. seconds: for which a key is used without asking again.
    """

    def __init__(self, fetch: Fetch | None = None, seconds: float = 300.0) -> None:
        self.fetch, self.seconds = fetch, seconds
        self._kept: dict[str, _Kept] = {}
        self._asking = threading.Lock()
        self.drops = 0
        """How often keys were dropped, so how often some may have been destroyed."""

    def line(self, writer: str, line: bytes) -> bytes:
        """A line of this writer's log as it would be without encryption. Raises GatehouseError where its key cannot be had now."""
        if SEALED not in line:
            return line
        found = self._of(writer, line)
        if found is None:
            return line
        end = line.rindex(_HASH)
        if isinstance(found, str):
            return b'%b,"unopened":%b%b' % (line[:end], msgspec.json.encode(found), line[end:])
        withheld = _WITHHELD if _WITHHELD + b',"digest"' in line[: line.index(SEALED)] else b""
        return b'%b%b%b,"sealed":%b%b' % (_start(line), found.text[1:-1], withheld, msgspec.json.encode(found.key), line[end:])

    def lines(self, writer: str, block: bytes) -> bytes:
        """The same for whole lines."""
        if SEALED not in block:
            return block
        return b"".join([self.line(writer, line) for line in block.splitlines(keepends=True)])

    def payload(self, writer: str, line: bytes) -> bytes:
        """What the payload of a sealed line would be (gateway.audit.chain); empty if it cannot be opened. Raises GatehouseError."""
        found = self._of(writer, line) if SEALED in line else None
        return b"" if found is None or isinstance(found, str) else _start(line)[line.index(b",") :] + found.text[1:-1]

    def opened(self, writer: str, line: bytes) -> Opened | None:
        """What a proof shows of a sealed line beside it; None where there is nothing to show. Raises GatehouseError."""
        found = self._of(writer, line) if SEALED in line else None
        return found if isinstance(found, Opened) else None

    def key(self, id: str) -> DataKey | str:
        """A key, or why there is none any more. Raises GatehouseError where it cannot be had now."""
        kept = self._kept.get(id)
        if kept is None or kept.until < time.monotonic():
            with self._asking:  # one at a time: who waits finds it
                kept = self._kept.get(id)
                if kept is None or kept.until < time.monotonic():
                    kept = self._fetched(id)
        return kept.why if kept.key is None else kept.key

    def drop(self, tenant: str | None) -> None:
        """Forgets the keys of a tenant, or all."""
        self.drops += 1
        for id, kept in list(self._kept.items()):
            if tenant is None or kept.key is None or kept.key.tenant == tenant:
                self._kept.pop(id, None)
                if kept.key is not None:
                    kept.key.drop()

    def _of(self, writer: str, line: bytes) -> Opened | str | None:
        """What is in a line; why it cannot be opened; None where it is not sealed."""
        try:
            told = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        envelope = told.sealed
        if envelope is None or _HASH not in line:
            return None
        for _ in range(2):
            key = self.key(envelope.key)
            if isinstance(key, str):
                return key
            end = line.find(b',"digest":"%b"%b' % (told.digest.encode(), SEALED[1:]))
            bound = CONTEXT + writer.encode() + b"\n" + line[: end + len(told.digest) + 12]
            try:
                data = key.open(envelope, bound)
            except Shredded:
                continue  # dropped meanwhile
            except ValueError as error:
                return str(error)
            if end < 0 or sha256(data).hexdigest() != told.digest:
                return "its digest is of another record"
            return Opened(data[:SALT].hex(), data[SALT:], envelope.key)
        return SHREDDED

    def _fetched(self, id: str) -> _Kept:
        if self.fetch is None:
            return _Kept(None, NO_ENCRYPTION, 0.0)
        while True:
            drops, found = self.drops, self.fetch(id)
            if drops == self.drops:  # nothing was dropped meanwhile
                break
        if len(self._kept) >= KEYS:
            self._kept.clear()
        key, why = (None, found) if isinstance(found, str) else (found, "")
        kept = self._kept[id] = _Kept(key, why, time.monotonic() + self.seconds)
        return kept


class FromLoop:
    """`Opener.fetch` where keys are got on the event loop. Raises MasterUnavailable when that takes too long, or the loop has ended."""

    def __init__(self, ask: Ask, loop: asyncio.AbstractEventLoop) -> None:
        self._ask, self._loop = ask, loop

    def __call__(self, id: str) -> DataKey | str:
        if not self._loop.is_running():
            raise MasterUnavailable("the gateway ends")
        asked = asyncio.run_coroutine_threadsafe(self._ask(id), self._loop)
        try:
            return asked.result(FETCH_SECONDS)
        except (TimeoutError, CancelledError):
            asked.cancel()
            raise MasterUnavailable(f"the data key {id} did not come within {FETCH_SECONDS:g} s") from None


CLOSED: Final = Opener()
"""Opens nothing."""


def _start(line: bytes) -> bytes:
    """`{"seq":N,"kind":"K",`."""
    return line[: line.index(b",", line.index(b",") + 1) + 1]
