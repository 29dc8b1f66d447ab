"""One line of a batch, through the whole pipeline: an Exchange whose client gathers the answer."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from gateway.batches.lines import Asked
from gateway.core.batches import BatchRecord
from gateway.core.errors import ClientGone
from gateway.core.ports import Reservation
from gateway.core.types import Peer, Principal, Usage
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.pipeline import serve
from gateway.pipeline.plane import DataPlane
from gateway.routing.router import PoolRoute
from gateway.server.answers import AnswerReader

TRANSIENT: Final = (429, 503)
"""Statuses of a request that was not sent to an engine and may be tried again."""
MOST_WAIT: Final = 60.0


class Outcome(NamedTuple):
    """again: seconds after which the line is to be tried again, as it did not reach an engine; None: this is its outcome."""

    status: int
    body: bytes
    request_id: str
    again: float | None


class LineClient:
    """The client of an exchange (gateway.pipeline.exchange.Client). `done` completes when it is settled."""

    paused = False

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
        """It is there."""

    def reserve(self, size: int) -> None:
        self._plane.memory.take(self._owner, size, self._plane.current().spec.listen)
        self._held += size

    def settle_when_taken(self, reservation: Reservation, usage: Usage | None) -> None:
        reservation.settle(usage)

    def taken(self) -> None:
        if self._held:
            self._plane.memory.give_back(self._owner, self._held)
            self._held = 0


async def run_line(plane: DataPlane, principal: Principal, batch: BatchRecord, line: Asked, attempt: int) -> Outcome:
    """Cancelled: the engine's work is cancelled too. Both of its audit records say which line of which batch it is."""
    client = LineClient(plane, f"{principal.tenant}/{principal.kind}/{principal.id}")
    headers = {b"content-type": b"application/json"}
    peer, request_id = Peer(batch.creator.address), plane.next_id()
    exchange = Exchange(plane, plane.current(), client, batch.endpoint.encode(), headers, peer, request_id)
    exchange.principal, exchange.body = principal, line.body
    exchange.detail = {"batch": {"id": batch.id, "line": line.number, "attempt": attempt}}
    try:
        exchange.run(serve(exchange))
        await client.done
    except asyncio.CancelledError:
        exchange.cancel(ClientGone("The gateway stops."))
        raise
    finally:
        client.taken()
    status = client.reader.status
    again = None
    if status in TRANSIENT and not exchange.sent_ns:
        again = min(max(float(client.reader.headers.get(b"retry-after-ms", b"1000")) / 1000, 0.05), MOST_WAIT)
    return Outcome(status, b"".join(client.parts), request_id.decode(), again)


def has_room(plane: DataPlane, model: str, spare: float, begun: int = 0) -> bool:
    """Whether a line may take a slot of the model now: nobody waits for one, and a share of them stays free. begun: lines that are about to
    take one. A model that is not there, or
    whose engine sleeps or is down, has room: the pipeline says what is to be said."""
    entry = plane.current().models.get(model)
    route = None if entry is None else entry.route
    if not isinstance(route, PoolRoute):
        return True
    places = route.places
    slots = sum(place.limit for place in places)
    if not slots:
        return True
    kept = min(int(-(-slots * spare // 1)), slots - 1)
    return route.backlog == 0 and slots - sum(place.in_flight for place in places) - begun > kept
