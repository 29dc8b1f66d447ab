"""The admin API below /events. Made by scripts/generate_client.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gatehouse.client.async_connection import AsyncConnection
from gatehouse.client.calls import Call
from gatehouse.client.events import Event


class AsyncEventsApi:
    """Operations below /events."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    def get(self, *, kind: str | None = None) -> AsyncIterator[Event]:
        """Follow changes and engine states. Needs the permission `events:read`."""
        return self._connection.events(Call("GET", "/events", query={"kind": kind}))
