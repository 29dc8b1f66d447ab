"""Whole records encrypted (`audit.encryption.scope: record`): what a line keeps in the clear, and what is sealed in it.

A line is `{"seq":N,"kind":K,CLEAR,"digest":"<64 hex>","sealed":{"v":1,"key":...,"salt":...,"n":N,"data":...},"hash":...}`. CLEAR is what
the log itself needs: when, which request, whose, how it ended; of an event its name and whom it is about. `digest` is the
SHA-256 of 16 random bytes and the record's JSON, which are what is encrypted: whoever is shown both can hold them against the line without
any key, and without them it says nothing.
The writer's id and everything of the line before `sealed` are authenticated with it, so it opens nowhere else.

Sealed in the writer's thread, once the line's number is known. A batch that is written again is sealed anew.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gateway.audit.chain import Entry
from gateway.audit.encode import encode
from gateway.audit.keyring import SYSTEM, DataKey, KeyRing
from gateway.audit.record import KINDS
from gateway.core.errors import GatehouseError, Shredded
from gateway.core.pauses import Pauses
from gateway.core.types import EventRecord, IntentRecord, OutcomeRecord
from gateway.core.waiting import as_future

CONTEXT: Final = b"gatehouse audit record 1\n"
SALT: Final = 16
MOST: Final = 47 * 1024
"""Bytes of a record above which it is shortened: sealed and in base64, it is as long as the longest line."""
WAIT_SECONDS: Final = 0.5
"""How long a batch waits for data keys that are not at hand."""
OF_THE_LOG: Final = frozenset(
    {"audit.opened", "audit.closed", "audit.repaired", "audit.broken", "audit.missing", "audit.key_rotated", "audit.recovered"}
)
"""Events of the log itself, which say nothing of people: in the clear, so that a log can be repaired without a key."""
_WHEN: Final = (
    "time",
    "request_id",
    "tenant",
    "operation",
    "model",
    "stream",
    "bytes",
    "rule",
    "config",
    "outcome",
    "status",
    "code",
    "endpoint",
)
_COST: Final = ("reserved_prompt", "reserved_completion", "reserved_cost", "currency", "price", "cost", "basis", "estimated", "charged")
_USED: Final = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "image_tokens",
    "audio_tokens",
    "attempts",
    "slots",
)
_TIMES: Final = ("prefill_us", "decode_us", "duration_ms", "sent_ms", "first_ms", "finish", "route", "guardrail", "decision")
_KEPT: Final = frozenset({*_WHEN, *_COST, *_USED, *_TIMES})
"""What is recorded of a request whose tenant's key cannot be had: nothing of people, and no details."""
_EMPTY: Final[dict[str, Any]] = {"principal": "", "credential": "", "peer": ""}
"""Fields without a default that are withheld."""


class ClearIntent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of which a tenant is known. withheld: the tenant's key could not be had; the record says nothing of people."""

    time: float
    request_id: str
    tenant: str = ""
    withheld: bool = False


class ClearOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a request ended. early: no intent came before it."""

    time: float
    request_id: str
    outcome: str
    tenant: str = ""
    early: bool = False
    withheld: bool = False


class ClearEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event. tenants: those that it is about."""

    time: float
    event: str
    outcome: str = "ok"
    tenants: tuple[str, ...] = ()


class _Peer(msgspec.Struct):
    peer: str = ""


Clear = ClearIntent | ClearOutcome | ClearEvent
_CLEAR: Final[tuple[tuple[bytes, type[Clear]], ...]] = (
    (KINDS[IntentRecord], ClearIntent),
    (KINDS[OutcomeRecord], ClearOutcome),
    (KINDS[EventRecord], ClearEvent),
)


class RecordSealer:
    """Seals the entries of a batch; in the writer's thread. keys: of this process. Life: `begin` on the loop that they belong to.

    withheld: how many records were sealed without their people, because their tenant's key could not be had.
    """

    def __init__(self, keys: KeyRing, wait: float = WAIT_SECONDS) -> None:
        self._keys, self.wait = keys, wait
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spare: DataKey | None = None
        self.withheld = 0

    def __call__(self, entries: Sequence[Entry], writer: str, seq: int) -> list[Entry]:
        """The entries as they are to be chained after line `seq`. Raises OSError where nothing can be encrypted: then nothing is
        written."""
        return _Batch(self, writer, seq, len(entries)).sealed(entries)

    def key(self, tenant: str, seconds: float) -> DataKey | None:
        """A tenant's key; None if it cannot be had within `seconds`. Records that belong to no tenant then get the previous key, which is
        never shredded, so that a master key that is away or slow does not stop the log."""
        found = self._keys.kept(tenant)
        if found is None or found.gone:
            found = self._asked(tenant, seconds)
        if tenant != SYSTEM:
            return found
        if found is None:
            return self._spare
        if self._spare is None or self._spare.id != found.id:
            self._spare = found.copy()
        return found

    def _asked(self, tenant: str, seconds: float) -> DataKey | None:
        loop = self._loop
        if loop is None or seconds <= 0 or not loop.is_running():
            return None
        asked = asyncio.run_coroutine_threadsafe(self._current(tenant), loop)
        try:
            return asked.result(seconds)
        except (GatehouseError, TimeoutError, RuntimeError):
            asked.cancel()
            return None

    async def _current(self, tenant: str) -> DataKey:
        found = self._keys.current(tenant)
        return found if isinstance(found, DataKey) else await as_future(found)

    async def begin(self) -> None:
        """On the loop, before the first batch. Raises MasterUnavailable, StoreUnavailable where there is no key of what belongs to no
        tenant."""
        self._loop = asyncio.get_running_loop()
        self._spare = (await self._current(SYSTEM)).copy()

    def refresh(self) -> None:
        """On the loop, now and then: has the key of what belongs to no tenant fetched anew when it is due."""
        try:
            self._keys.current(SYSTEM)
        except GatehouseError:
            pass  # the one at hand goes on; without one, the writer says so


class _Batch:
    """One batch: its keys, its salts, when it stops waiting."""

    def __init__(self, sealer: RecordSealer, writer: str, seq: int, count: int) -> None:
        self._sealer, self._seq = sealer, seq
        self._context = CONTEXT + writer.encode() + b"\n"
        self._salts = os.urandom(SALT * count)
        now = time.monotonic()
        self._end, self._pauses = now + sealer.wait, Pauses(sealer.wait, now)
        self._found: dict[str, DataKey | None] = {}

    def sealed(self, entries: Sequence[Entry]) -> list[Entry]:
        made: list[Entry] = []
        for number, entry in enumerate(entries):
            salt = self._salts[SALT * number : SALT * (number + 1)]
            made.append(self._sealed(entry, self._seq + number + 1, salt))
        return made

    def _sealed(self, entry: Entry, seq: int, salt: bytes) -> Entry:
        if isinstance(entry, bytes):
            return self._encoded(entry, seq, salt)
        if isinstance(entry, OutcomeRecord):
            early = bool(entry.peer)
            return self._of_tenant(entry, ClearOutcome(entry.time, entry.request_id, entry.outcome, entry.tenant, early), seq, salt)
        if isinstance(entry, IntentRecord):
            return self._of_tenant(entry, ClearIntent(entry.time, entry.request_id, entry.tenant), seq, salt)
        if isinstance(entry, EventRecord) and entry.event not in OF_THE_LOG:
            told = ClearEvent(entry.time, entry.event, entry.outcome, entry.tenants)
            return self._certainly(KINDS[EventRecord], told, encode(entry, MOST), seq, salt)
        return entry

    def _of_tenant(self, record: IntentRecord | OutcomeRecord, clear: ClearIntent | ClearOutcome, seq: int, salt: bytes) -> bytes:
        kind = KINDS[record.__class__]
        made = self._payload(kind, clear, encode(record, MOST), record.tenant or SYSTEM, seq, salt)
        if made is not None:
            return made
        made = self._certainly(kind, replace(clear, withheld=True), encode(_without_people(record), MOST), seq, salt)
        self._sealer.withheld += 1
        return made

    def _encoded(self, entry: bytes, seq: int, salt: bytes) -> bytes:
        """The payload of a record that a journal holds, from before records were encrypted."""
        kind, made = next(((kind, made) for kind, made in _CLEAR if entry.startswith(kind)), (b"", ClearEvent))
        text = b"{" + entry[len(kind) :] + b"}"
        if not kind or len(text) > MOST:
            return entry
        clear: Any = msgspec.json.decode(text, type=made)
        if made is ClearEvent:
            return entry if clear.event in OF_THE_LOG else self._certainly(kind, clear, text, seq, salt)
        if made is ClearOutcome:
            clear = replace(clear, early=bool(msgspec.json.decode(text, type=_Peer).peer))
        return self._payload(kind, clear, text, clear.tenant or SYSTEM, seq, salt) or self._certainly(kind, clear, text, seq, salt)

    def _certainly(self, kind: bytes, clear: Clear, text: bytes, seq: int, salt: bytes) -> bytes:
        made = self._payload(kind, clear, text, SYSTEM, seq, salt)
        if made is None:
            raise OSError("its records cannot be encrypted: there is no data key")
        return made

    def _payload(self, kind: bytes, clear: Clear, text: bytes, tenant: str, seq: int, salt: bytes) -> bytes | None:
        """None where the tenant's key cannot be had."""
        text = salt + text
        head = b'%b%b,"digest":"%b"' % (kind, encode(clear)[1:-1], sha256(text).hexdigest().encode())
        for _ in range(2):
            key = self._key(tenant)
            if key is None:
                break
            try:
                return head + b',"sealed":' + key.seal(text, b'%b{"seq":%d%b' % (self._context, seq, head))
            except Shredded:
                self._found.pop(tenant, None)  # its keys were destroyed or replaced just now
        return None

    def _key(self, tenant: str) -> DataKey | None:
        if tenant not in self._found:
            self._paused()
            found = self._sealer.key(tenant, self._end - time.monotonic())
            if found is None and self._paused():
                found = self._sealer.key(tenant, self._end - time.monotonic())
            self._found[tenant] = found
        return self._found[tenant]

    def _paused(self) -> bool:
        """Whether this process stood still, and with it the loop that was to bring a key: it gets its time again."""
        now = time.monotonic()
        if not self._pauses.since(now):
            return False
        self._end = now + self._sealer.wait
        return True


def _without_people(record: Any) -> Any:
    made = record.__class__
    kept = {name: getattr(record, name) for name in made.__struct_fields__ if name in _KEPT}
    return made(**(_EMPTY if made is IntentRecord else {}) | kept)
