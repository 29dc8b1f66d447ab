"""`POST /v1/tickets`: a ticket with which the client runs a request at the machine itself (docs/tickets.md).

The wish holds the request as the client would have sent it. It goes through the pipeline as if it had come to its own path; what an engine
would have been sent is what the ticket is for, so that nothing runs that was not inspected.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from gateway.core import utf8
from gateway.core.approvals import HEADER as APPROVAL
from gateway.core.decided import caller_facts
from gateway.core.errors import ClientGone, GatehouseError, LimitExceeded, NotFound, PermissionDenied, RequestError
from gateway.core.ports import Reservation
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.tickets import OPERATION, PATHS, SignTicket, Ticket, TicketDesk
from gateway.core.types import Headers, InferenceRequest, OutcomeRecord, Principal, Usage
from gateway.core.wire import WireApi
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.pipeline import serve
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.statuses import outcome_of
from gateway.pipeline.ticketing import Hand, TicketBook, not_possible, obstacle, only, with_tickets
from gateway.server.answers import AnswerReader
from gateway.server.asgi import Message, Receive
from policies.patterns import matches

PATH: Final = b"/v1/tickets"
Identify = Callable[[Message, Headers], Awaitable[Principal]]
Answer = tuple[int, bytes, list[tuple[bytes, bytes]]]
DROPPED: Final = (APPROVAL, b"content-length", b"transfer-encoding", b"expect", b"cache-control")
"""Headers of the wish that say nothing about the request in it."""
_GENERATES: Final = frozenset(PATHS[:2])
_UNSENT: Final = ("x-gatehouse-deadline-ms",)
PASSED: Final = (b"retry-after", b"retry-after-ms", b"x-should-retry", b"www-authenticate")


class Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """endpoint: the path that the request would be sent to. request: its body, as bytes of this one. expires_in: seconds in which it is
    used; None: as long as the gateway allows."""

    endpoint: str
    request: msgspec.Raw
    expires_in: float | None = None


class _Named(msgspec.Struct):
    model: str


_wish = msgspec.json.Decoder(Wish)
_named = msgspec.json.Decoder(_Named)


class Waiter:
    """The client of an exchange (gateway.pipeline.exchange.Client): takes the answer where it is a refusal."""

    paused = False

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self.reader = AnswerReader()
        self.parts: list[bytes] = []

    def send(self, data: bytes) -> None:
        if not self.reader.ended:
            self.parts += self.reader.feed(data)

    def finished(self, keep_alive: bool) -> None:
        self._hand.end()

    def read_body(self) -> None:
        """It is there."""

    def reserve(self, size: int) -> None:
        """Its answer does not come here."""

    def settle_when_taken(self, reservation: Reservation, usage: Usage | None) -> None:
        reservation.settle(usage)

    def refusal(self) -> Answer:
        given = self.reader.headers
        return self.reader.status or 500, b"".join(self.parts), [(name, given[name]) for name in PASSED if name in given]


class TicketEndpoint:
    """book: of this process. desk: signs. identify: whose credential the headers hold."""

    def __init__(self, plane: DataPlane, book: TicketBook, desk: TicketDesk, identify: Identify) -> None:
        self._plane, self._book, self._desk, self._identify = plane, book, desk, identify

    async def answer(self, scope: Message, receive: Receive) -> Answer:
        """Raises GatehouseError."""
        snapshot = self._plane.current()
        if not snapshot.spec.tickets.enabled:
            raise NotFound("This gateway issues no tickets (tickets.enabled).")
        principal = await self._identify(scope, scope["state"]["headers"])
        wish = await _read(receive)
        if wish.endpoint.encode() not in PATHS:
            known = ", ".join(path.decode() for path in PATHS)
            raise RequestError(f"endpoint: a ticket is for one of {known}.", param="endpoint")
        try:
            model = _named.decode(wish.request).model
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"request: {str(error)[:200]}.", param="request") from None
        entry = snapshot.models.get(model)
        seen = entry is not None and snapshot.authorizer.may_see(principal, model)
        if entry is not None and seen:
            entry = entry.seen_by(principal) if entry.scoped else entry
            try:
                self._check(snapshot, scope, principal, model, entry)
            except GatehouseError as error:
                await self._denied(snapshot, scope, principal, model, error)
                raise
        return await self._run(snapshot, scope, principal, wish, model, entry if seen else None)

    def _check(self, snapshot: Snapshot, scope: Message, principal: Principal, model: str, entry: ModelEntry) -> None:
        """Raises PermissionDenied, RequestError, LimitExceeded."""
        decision = snapshot.authorizer.decide(principal, _bare(model), scope["state"]["peer"], 0)
        if not decision.allow:
            raise PermissionDenied("This credential may not get tickets for this model.")
        if why := obstacle(snapshot, entry, matches):
            raise not_possible(why)
        if self._book.of_tenant(principal.tenant) >= snapshot.spec.tickets.max_open:
            raise LimitExceeded(f"{snapshot.spec.tickets.max_open} tickets of this tenant are open.", retry_after=1.0)

    async def _run(
        self, snapshot: Snapshot, scope: Message, principal: Principal, wish: Wish, model: str, entry: ModelEntry | None
    ) -> Answer:
        """The request through the pipeline, up to where it would be sent."""
        state, path = scope["state"], wish.endpoint.encode()
        hand, id = Hand(), secrets.token_hex(16)
        if entry is None:
            own = only(snapshot, {})  # the pipeline says that there is no such model, as always
        else:
            own = with_tickets(snapshot, model, entry, hand, path in _GENERATES)
        waiter = Waiter(hand)
        headers = {name: value for name, value in state["headers"].items() if name not in DROPPED}
        x = hand.exchange = Exchange(self._plane, own, waiter, path, headers, state["peer"], state["request_id"])
        x.principal, x.body, x.detail = principal, bytes(wish.request), {"ticket": {"id": id}}
        try:
            x.run(serve(x))
            made = await hand.made
            if made is None:
                return waiter.refusal()
            return await self._signed(x, hand, wish, id, made)
        except GatehouseError as error:
            x.cancel(error)
            raise
        except BaseException:
            x.cancel(ClientGone("The client left before it had its ticket."))
            raise

    async def _signed(self, x: Exchange, hand: Hand, wish: Wish, id: str, made: tuple[bytes, bytes]) -> Answer:
        """The ticket for a request that has been handed over. Raises RequestError, Overloaded."""
        settings, attempt, request = x.snapshot.spec.tickets, hand.attempt, x.request
        principal = x.principal
        assert attempt is not None and request is not None and principal is not None
        if attempt.request_headers:
            raise not_possible("the gateway sends its engine headers that clients must not have")
        head, body = made
        engine, _, machine = attempt.endpoint_name.rpartition("@")
        now = time.time()
        life = settings.expiry if wish.expires_in is None else min(max(wish.expires_in, 1.0), settings.expiry)
        ticket = Ticket(
            id=id,
            request=x.request_id.decode(),
            issuer="",
            tenant=principal.tenant,
            machine=machine,
            boot="",
            engine=engine,
            path=_path(head),
            head=_lines(head),
            sha256=hashlib.sha256(body).hexdigest(),
            size=len(body),
            stream=request.stream,
            prompt_tokens=max(request.prompt_tokens, 0),
            max_tokens=max(request.max_tokens, 0),
            issued=now,
            expires=now + life,
            seconds=settings.run,
        )
        signed = await self._desk.sign(SignTicket(ticket=msgspec.to_builtins(ticket)))
        if x.settled:
            raise ClientGone("The request was ended before its ticket was signed.")
        self._book.add(ticket, signed.ticket, hand, settings)
        port = signed.address.rpartition(":")[2]
        shown: dict[str, Any] = {
            "object": "ticket",
            "id": id,
            "ticket": signed.ticket,
            "url": f"https://{signed.host}:{port}{ticket.path}",
            "address": signed.address,
            "ca": signed.ca,
            "body": body.decode("utf-8"),
            "expires_at": ticket.expires,
            "model": request.model,
            "machine": machine,
            "max_tokens": ticket.max_tokens,
        }
        reservation = x.reservation
        extra = [] if reservation is None else _pairs(reservation.headers)
        return 200, msgspec.json.encode(shown), [(b"cache-control", b"no-store"), *extra]

    async def _denied(self, snapshot: Snapshot, scope: Message, principal: Principal, model: str, error: GatehouseError) -> None:
        """Charges one request, so that probing is not free, and records the refusal. Raises LimitExceeded."""
        state = scope["state"]
        found = snapshot.limiter.reserve(principal, _bare(model))
        reservation = await found if isinstance(found, Awaitable) else found
        reservation.settle(Usage())
        snapshot.audit.outcome(
            OutcomeRecord(
                time.time(),
                state["request_id"].decode(),
                outcome_of(error),
                error.status,
                error.code,
                tenant=principal.tenant,
                principal=principal.id,
                peer=state["peer"].address,
                operation=OPERATION,
                model=snapshot.models[model].name,
                charged=True,
                user=principal.user,
                agent=principal.agent,
                session=principal.session,
                credential=principal.kind,
                caller=caller_facts(principal),
            )
        )


def _bare(model: str) -> InferenceRequest:
    """What policy is asked about a wish for a ticket."""
    return InferenceRequest(WireApi(OPERATION), PATH, model, {}, None)


async def _read(receive: Receive) -> Wish:
    """Raises RequestError, ClientGone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone("The client left.")
    try:
        return _wish.decode(message["body"])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"The body is not a request for a ticket: {utf8.fault(message['body']) or str(error)[:200]}.") from None


def _path(head: bytes) -> str:
    return head[5 : head.index(b" HTTP/1.1\r\n")].decode("ascii")


def _lines(head: bytes) -> str:
    """The header lines that the engine gets; how long it may take, the machine says."""
    lines = head[: head.rindex(b"\r\n")].decode("latin-1").split("\r\n")[1:]
    return "\r\n".join(line for line in lines if line.partition(":")[0].lower() not in _UNSENT)


def _pairs(block: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, _, value in (line.partition(b": ") for line in block.split(b"\r\n") if line)]
