"""Lines of batches in the process that serves requests, each through the whole pipeline: an Exchange whose client gathers the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.app.batches.creators import Creators
from gateway.app.engines.room import room
from gateway.core.batches import BatchRecord, Creator, LineLost, LineOutcome
from gateway.core.errors import ClientGone
from gateway.core.labels import HEADER
from gateway.core.ports import Reservation
from gateway.core.types import Headers, Peer, Principal, Usage
from gateway.pipeline.attempt import AT_CAPACITY
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.pipeline import serve
from gateway.pipeline.plane import DataPlane
from gateway.server.answers import AnswerReader
from gateway.transport.pool import NOT_ACCEPTED, NOT_IN_TIME

log = logging.getLogger("gatehouse.batches")
TRANSIENT: Final = (429, 503)
"""Statuses of a request that was not sent to an engine and may be tried again, unless its answer says that it never passes."""
UNSERVED: Final = tuple(text.encode() for text in (AT_CAPACITY, NOT_ACCEPTED, NOT_IN_TIME, '"model_loading"'))
"""What errors contain after which a line is tried again: the engine said that it did not run it, or was never asked."""
HALT_SECONDS: Final = 5.0


class LineClient:
    """The client of an exchange (gateway.pipeline.exchange.Client). `done` completes when it is settled. caller: whose request it is, as
    their credential stands now; None where the request's headers have the credential. Raises as Creators.of."""

    paused = False
    caller: Callable[[], Awaitable[Principal]] | None = None

    def __init__(self, plane: DataPlane, owner: str) -> None:
        self._plane, self._owner, self._held = plane, owner, 0
        self.reader = AnswerReader()
        self.parts: list[bytes] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, data: bytes) -> None:
        self.parts += self.reader.feed(data)

    def finished(self, keep_alive: bool) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def read_body(self) -> None:
        """Nothing to do: the whole body is there from the start."""

    def reserve(self, size: int) -> None:
        self._plane.memory.take(self._owner, size, self._plane.current().spec.listen)
        self._held += size

    def settle_when_taken(self, reservation: Reservation, usage: Usage | None) -> None:
        reservation.settle(usage)

    def taken(self) -> None:
        if self._held:
            self._plane.memory.give_back(self._owner, self._held)
            self._held = 0


class LocalLines:
    """Implements gateway.core.batches.Lines in the process that serves requests."""

    def __init__(self, plane: DataPlane, creators: Creators, spare: float) -> None:
        self.plane, self.creators, self._spare = plane, creators, spare

    async def place(self, model: str, begun: int) -> str | None:
        free, slots = self.room(model, self._spare)
        return "" if not slots or free > begun else None

    async def run(self, place: str, batch: BatchRecord, number: int, body: bytes, attempt: int) -> LineOutcome:
        told = {"id": batch.id, "line": number, "attempt": attempt}
        return await self.ran(batch.creator, batch.endpoint, body, told)

    async def ran(self, creator: Creator, endpoint: str, body: bytes, told: dict[str, object]) -> LineOutcome:
        """told: what both audit records say of the line. Raises as `run` of the Protocol."""
        plane = self.plane
        principal = await self.creators.of(creator)
        if plane.standing.active and plane.standing.of(principal) is not None:
            return LineOutcome(403, b"", "", HALT_SECONDS)
        try:
            return await run_line(plane, principal, creator, endpoint, body, told, lambda: self.creators.of(creator))
        except Exception as error:  # boundary: whatever it was, an engine may have had the line
            log.exception("a line of %s has failed", told["id"])
            raise LineLost("The gateway failed while the line ran.") from error

    def room(self, model: str, spare: float) -> tuple[int, int]:
        """See gateway.app.engines.room."""
        return room(self.plane.current().models.get(model), spare)


async def run_line(
    plane: DataPlane,
    principal: Principal,
    creator: Creator,
    endpoint: str,
    body: bytes,
    told: dict[str, object],
    caller: Callable[[], Awaitable[Principal]] | None = None,
) -> LineOutcome:
    """caller: see LineClient. Cancelled: the engine's work is cancelled too. Both of its audit records say which line of which batch it
    is."""
    client = LineClient(plane, f"{principal.tenant}/{principal.kind}/{principal.id}")
    client.caller = caller
    headers = {b"content-type": b"application/json"}
    if creator.labels:
        headers[HEADER] = ",".join(creator.labels).encode("latin-1")
    # A label counts only from a trusted peer. These headers are the gateway's own, so there is nothing else to be trusted.
    peer, request_id = Peer(creator.address, bool(creator.labels)), plane.next_id()
    exchange = Exchange(plane, plane.current(), client, endpoint.encode(), headers, peer, request_id)
    exchange.principal, exchange.body = principal, body
    exchange.detail = {"batch": told}
    try:
        exchange.run(serve(exchange))
        await client.done
    except asyncio.CancelledError:
        exchange.cancel(ClientGone("The gateway stops."))
        raise
    finally:
        client.taken()
    status = client.reader.status
    answer, again = b"".join(client.parts), None
    if (status in TRANSIENT and not exchange.sent_ns) or (status >= 500 and any(text in answer for text in UNSERVED)):
        again = _again(client.reader.headers)
    elif status in TRANSIENT and _none_ran(exchange):
        # The wait is for one more request: by then the line itself would have taken its place, and its steps need more.
        again = _again(client.reader.headers)
        steps = 0 if exchange.entry is None or exchange.entry.spec.pipeline is None else len(exchange.entry.spec.pipeline.steps)
        again = None if again is None else again * (1 + steps)
    return LineOutcome(status, answer, request_id.decode(), again)


def _none_ran(exchange: Exchange) -> bool:
    """Whether it was for a pipeline whose first step was refused: nothing is done and nothing paid for."""
    told = (exchange.detail or {}).get("pipeline")
    return told is not None and [step["status"] in TRANSIENT for step in told["steps"]] == [True]


def _again(headers: Headers) -> float | None:
    """Seconds, as the answer says; None where it says that the request never passes. A budget that is spent names its next window."""
    wait = headers.get(b"retry-after-ms")
    if wait is None:
        return None if headers.get(b"x-should-retry") == b"false" else 1.0
    return max(float(wait) / 1000, 0.05)
