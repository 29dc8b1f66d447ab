"""The ear for orders ends its server before it closes its socket, so that another one can have the same descriptor at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import uvloop

from gateway.app.joined.orders import Orders
from gateway.core.errors import GatehouseError
from tests.waiting import SECONDS


class Files:
    def state(self, sha256: str, size: int) -> Any:
        raise GatehouseError("no file", code="not_found", status=404)


async def status(place: Path) -> int:
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(place)), trust_env=False, timeout=SECONDS) as client:
        return (await client.get(f"http://x/v1/files/{'0' * 64}?size=1")).status_code


async def one_after_the_other(place: Path) -> list[int]:
    """What several ears answer, each on the place, and most likely the descriptor, of the one before it."""
    found = []
    for _ in range(2):
        orders = Orders(place, Files(), None)  # type: ignore[arg-type]
        orders.start()
        found.append(await status(place))
        await orders.aclose()
        assert not place.exists()
    return found


def test_an_ear_that_has_ended_leaves_nothing_in_the_event_loop(short_path: Path) -> None:
    for loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop) as runner:
            assert runner.run(asyncio.wait_for(one_after_the_other(short_path / "s"), SECONDS)) == [404] * 2
