"""Checks the caller's rights again while a long request goes on: while its body arrives, and while its answer is streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec

from gateway.core.errors import AuthenticationError, GatehouseError, PermissionDenied

CHECK_SECONDS: Final = 1.0
"""Seconds between two checks."""
END: Final = object()
Stands = Callable[[], Awaitable[object]]
"""Raises AuthenticationError or PermissionDenied once the caller may not go on, another GatehouseError while that is not known."""
Parts = AsyncIterator[bytes]


async def arriving(parts: Parts, stands: Stands) -> Parts:
    """Passes a body on as it arrives, for as long as its sender may send it. Raises what `stands` raises."""
    due = _now() + CHECK_SECONDS
    async for part in parts:
        if _now() >= due:
            await stands()
            due = _now() + CHECK_SECONDS
        yield part


async def leaving(parts: Parts, stands: Stands, *, events: bool) -> AsyncGenerator[bytes]:
    """Passes an answer on for as long as its reader may read it. events: it is a stream of events, and a last one says why it ends; any
    other answer breaks off, so that nobody takes it for complete. Raises AuthenticationError, PermissionDenied."""
    pending: asyncio.Future[object] = asyncio.ensure_future(_next(parts))
    due = _now() + CHECK_SECONDS
    try:
        while True:
            await asyncio.wait({pending}, timeout=max(0.0, due - _now()))
            if _now() >= due:
                try:
                    await _checked(stands)
                except (AuthenticationError, PermissionDenied) as error:
                    if not events:
                        raise
                    yield b"event: refused\ndata: %b\n\n" % msgspec.json.encode({"code": error.code, "detail": error.message})
                    return
                due = _now() + CHECK_SECONDS
            if pending.done():
                if (part := pending.result()) is END:
                    return
                assert isinstance(part, bytes)
                yield part
                pending = asyncio.ensure_future(_next(parts))
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        if isinstance(parts, AsyncGenerator):
            await parts.aclose()


async def _checked(stands: Stands) -> None:
    try:
        await stands()
    except (AuthenticationError, PermissionDenied):
        raise
    except GatehouseError:
        pass  # not known at the moment, such as while the store is away: the rights checked last still count


async def _next(parts: Parts) -> object:
    return await anext(parts, END)


def _now() -> float:
    return asyncio.get_running_loop().time()
