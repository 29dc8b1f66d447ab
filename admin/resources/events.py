"""Changes and engine states as they happen: server-sent events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.responses import StreamingResponse

from admin.operation import SSE, Answer, Call, Operation
from gateway.core.errors import Overloaded
from gateway.core.feed import STOPPING
from gateway.core.ports import Change, Feed

MAX_WAITING: Final = 1000
"""Events that a slow reader may be behind; after that its stream ends, with an event `lost`."""
MAX_READERS: Final = 64
KEEP_ALIVE: Final = 15.0


class EventQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """kind: only events of this kind (config, event, admin, store)."""

    kind: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class Readers:
    """Counts the streams that are open."""

    def __init__(self) -> None:
        self.open = 0

    async def events(self, call: Call) -> Answer:
        if self.open >= MAX_READERS:
            raise Overloaded("Too many readers of events.", retry_after=5.0)
        return Answer(response=StreamingResponse(self._stream(call.ports.feed, call.query.kind), media_type=SSE))

    async def _stream(self, feed: Feed, kind: str | None) -> AsyncIterator[bytes]:
        waiting: asyncio.Queue[Change] = asyncio.Queue(MAX_WAITING)
        lost = False

        def take(change: Change) -> None:
            nonlocal lost
            if kind is not None and change[1] not in (kind, STOPPING):
                return
            try:
                waiting.put_nowait(change)
            except asyncio.QueueFull:
                lost = True

        self.open += 1
        unsubscribe = feed.subscribe(take)
        try:
            yield b": connected\n\n"
            while not lost:
                try:
                    async with asyncio.timeout(KEEP_ALIVE):
                        change = await waiting.get()
                except TimeoutError:
                    yield b": keep-alive\n\n"
                    continue
                yield encode(change)
                if change[1] == STOPPING:
                    return
            yield b"event: lost\ndata: {}\n\n"
        finally:
            unsubscribe()
            self.open -= 1


def encode(change: Change) -> bytes:
    """One event; JSON holds no line feeds, so one data line is enough."""
    sequence, kind, payload = change
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (sequence, kind.encode(), msgspec.json.encode(payload, enc_hook=_plain))


def _plain(value: Any) -> str:
    return type(value).__name__


def operations() -> list[Operation]:
    readers = Readers()
    return [
        Operation("GET", "events", "events:read", "Follow changes and engine states", readers.events, None, query=EventQuery, media=SSE)
    ]
