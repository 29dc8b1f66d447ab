"""How a worker asks for what only the store knows: over the feed, at the control process."""

from __future__ import annotations

from typing import TypeVar

from gateway.app.workers.channel import Channel, FeedClosed
from gateway.core.errors import StoreUnavailable
from gateway.core.messages import Ask, Message

A = TypeVar("A", bound=Message)


class StoreFeed:
    """Asks over the feed what the store answers. A control process that is gone, or does not answer, is reported as StoreUnavailable, as an
    unreachable database is in the process with the store."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def ask(self, message: Ask[A], seconds: float) -> A:
        """Raises StoreUnavailable, Overloaded when too many questions are under way, and what the control process refuses with."""
        try:
            return await self._channel.ask(message, seconds)
        except FeedClosed as error:
            raise StoreUnavailable("The store cannot be asked at the moment.", retry_after=1.0) from error
