"""Where the Redis is that is meant: at its address, or where the Sentinels say that the master is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from gateway.transport.redis.address import Address, Target
from gateway.transport.redis.connection import Connection, Unreachable, connect

PATIENCE: Final = 0.5
"""Seconds in which a Sentinel must answer before the next one is asked."""


async def locate(to: Target) -> Address:
    """The address to connect to now: of all Sentinels, by the first that knows. The caller has a deadline. Raises Unreachable."""
    if not to.master:
        return to.servers[0]
    faults: list[str] = []
    for at in to.servers:
        try:
            async with asyncio.timeout(PATIENCE):
                return await _ask(to, at)
        except (OSError, Unreachable, TimeoutError) as error:
            faults.append(f"{at}: {str(error) or 'no answer'}")
    raise Unreachable(f"no Sentinel knows where {to.master!r} is ({'; '.join(faults)})")


async def opened(
    to: Target,
    address: Address,
    on_lost: Callable[[Exception], None],
    on_push: Callable[[list[Any]], None] | None = None,
    *,
    name: str,
) -> Connection:
    """A connection to the database that is meant, if this is the master. The caller has a deadline. Raises OSError, Unreachable."""
    made = await connect(to, address, to.login, on_lost, on_push)
    try:
        if to.db:
            await made.must("SELECT", str(to.db))
        await made.ask("CLIENT", "SETNAME", name)  # a server that refuses it is as good
        if to.master:
            role = await made.must("ROLE")
            if not (isinstance(role, list) and role and role[0] == b"master"):
                raise Unreachable(f"{address} is not the master any more")
    except BaseException:
        made.close()
        raise
    return made


async def _ask(to: Target, at: Address) -> Address:
    made = await connect(to, at, to.sentinel_login, _ignored)
    try:
        found = await made.must("SENTINEL", "get-master-addr-by-name", to.master)
    finally:
        made.close()
    if isinstance(found, list) and len(found) == 2 and isinstance(found[0], bytes) and isinstance(found[1], bytes):
        port = found[1].decode(errors="replace")
        if port.isascii() and port.isdigit():
            return Address(found[0].decode(errors="replace"), int(port))
    raise Unreachable(f"it does not know {to.master!r}")


def _ignored(error: Exception) -> None:
    return None
