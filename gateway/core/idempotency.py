"""Requests with an idempotency key, as the store remembers them; part of gateway.core.storage.ControlStore."""

from __future__ import annotations

from typing import Final, Protocol

from msgspec import Struct

HOLD_SECONDS: Final = 60.0
"""How long a request counts as under way after it was begun, or last renewed: its process may have died."""


class Idempotent(Struct, frozen=True):
    """The record of an idempotency key. status 0: the first request is still under way."""

    status: int
    body: str
    fingerprint: str


class IdempotencyStorage(Protocol):
    """holder: names one run of a request. Whoever has lost the key to another run changes nothing of it. "": a run that is not renewed."""

    async def begin_idempotent(
        self, key: str, actor: str, route: str, fingerprint: str, *, holder: str = "", ttl: float = HOLD_SECONDS
    ) -> Idempotent | None:
        """None if this is the first request with the key; it then counts as under way for `ttl` seconds, and for longer if it is renewed.
        Otherwise the record of the first request. fingerprint: a hash of the request, which reveals a reused key."""
        ...

    async def renew_idempotent(self, key: str, actor: str, route: str, holder: str, *, ttl: float = HOLD_SECONDS) -> bool:
        """The request counts as under way for `ttl` seconds from now on. False if the key is not this holder's any more."""
        ...

    async def finish_idempotent(
        self, key: str, actor: str, route: str, status: int, body: str, *, holder: str = "", ttl: float = 86400.0
    ) -> bool:
        """Keeps the answer to repeat for `ttl` seconds. The body must hold no secret. False if the key is not this holder's any more."""
        ...

    async def abandon_idempotent(self, key: str, actor: str, route: str, *, holder: str = "") -> None:
        """Frees the key of a request that failed and may be tried again."""
