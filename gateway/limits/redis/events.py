"""The port through which the conversation with Redis reports what happens."""

from __future__ import annotations

from typing import Protocol

from gateway.transport.redis.resp import RedisError


class Events(Protocol):
    """`lost` may be called again while it is."""

    def lost(self, why: str) -> None: ...

    def back(self) -> None: ...

    def moved(self, error: RedisError) -> bool:
        """Redis says that the keys are elsewhere, or that it takes no writes: whether the connection has been given up for that."""
        ...
