"""Server-sent events: one change, one event, whatever the payload holds."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from admin.resources.events import MAX_WAITING, Readers, encode
from gateway.core.feed import STOPPING, LocalFeed
from gateway.core.storage import StoreChange


@given(st.text())
def test_no_payload_breaks_out_of_its_event(text: str) -> None:
    data = encode((7, "event", {"reason": text}))
    lines = data.decode().split("\n")
    assert len(lines) == 5 and lines[0] == "id: 7" and lines[1] == "event: event" and lines[3:] == ["", ""]
    assert json.loads(lines[2].removeprefix("data: ")) == {"reason": text}


def test_records_of_the_store_are_shown() -> None:
    data = encode((1, "store", StoreChange(3, "keys", "k", "revoked", 1.0))).decode()
    assert '"action":"revoked"' in data


async def test_a_reader_that_lags_loses_its_stream_and_memory_is_bounded() -> None:
    feed, readers = LocalFeed(), Readers()
    stream = readers._stream(feed, None)
    assert await anext(stream) == b": connected\n\n"
    for number in range(MAX_WAITING * 2):
        feed.publish("event", number)
    first = await anext(stream)
    assert first.startswith(b"event: lost") or first.startswith(b"id: 1\n")
    rest = [part async for part in stream]
    assert (rest or [first])[-1].startswith(b"event: lost") and readers.open == 0


async def test_streams_end_when_the_gateway_stops_and_leave_nothing_behind() -> None:
    feed, readers = LocalFeed(), Readers()
    stream = readers._stream(feed, "admin")
    await anext(stream)
    feed.publish("event", {})
    feed.publish(STOPPING, {})
    async with asyncio.timeout(60):
        parts = [part async for part in stream]
    assert len(parts) == 1 and b"event: stopping" in parts[0] and feed._subscribers == []
