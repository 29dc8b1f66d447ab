"""Requests that their clients run at a machine by a ticket: an exchange like any other until its request would be sent. It stays open until
the machine's receipt settles it.

Instead of sending the request, its attempt hands it over to be signed (`Hand`). From then on slot and reservation belong to the ticket, and
the exchange counts as used in full unless a receipt says otherwise: if something else ends it (a halt, a drain, the ticket's expiry), what
was reserved is charged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

import msgspec

from gateway.core.errors import ClientGone, GatehouseError, Overloaded, RequestError
from gateway.core.ports import Attempt, AttemptResult, Call
from gateway.core.snapshot import ModelEntry, Snapshot
from gateway.core.specs.fleet import TicketsSpec
from gateway.core.tickets import SKEW, Receipt, Ticket, WithdrawTicket
from gateway.core.types import InferenceRequest, Principal, ResponseHead, Usage
from gateway.pipeline.exchange import Exchange
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.wrapping import WrappedAttempt

log = logging.getLogger("gatehouse.tickets")
REMEMBERED: Final = 10_000
"""How many settled tickets are remembered, so that a repeated receipt is recognised."""
FOREVER: Final = 30 * 86400.0
TEMPLATE: Final = 8192
"""Tokens that a chat template may add to a prompt. A token of the prompt itself has a byte of the body at least."""
NOT_POSSIBLE: Final = "ticket_not_possible"
UNSETTLED: Final = "ticket_unsettled"


class Hand:
    """Where a request is handed over instead of being sent. made: (head, body), or None where the exchange ended before that."""

    def __init__(self) -> None:
        self.made: asyncio.Future[tuple[bytes, bytes] | None] = asyncio.get_running_loop().create_future()
        self.attempt: TicketAttempt | None = None
        self.withdraw: Callable[[], None] = _nothing
        """Called when the exchange ends without a receipt; set once there is a ticket."""
        self.exchange: Exchange = None  # type: ignore[assignment]

    def end(self) -> None:
        if not self.made.done():
            self.made.set_result(None)


class TicketClient:
    """Stands where an attempt has its endpoint's connections."""

    def __init__(self, hand: Hand, base_path: bytes) -> None:
        self._hand, self.base_path = hand, base_path

    def send(self, head: bytes, body: bytes, receiver: Any, first_byte_timeout: float, idle_timeout: float, source: Any = None) -> Call:
        if not self._hand.made.done():
            self._hand.made.set_result((head, body))
        return TicketCall(self._hand)


class TicketCall:
    """The request, wherever it runs. cancel: the machine must not run it any more."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand

    def pause(self) -> None:
        """Nothing comes here."""

    def resume(self) -> None:
        """Nothing comes here."""

    def cancel(self) -> None:
        withdraw, self._hand.withdraw = self._hand.withdraw, _nothing
        withdraw()


class TicketAttempt(WrappedAttempt):
    """An attempt whose request is handed over."""

    __slots__ = ()

    def __init__(self, attempt: Attempt, hand: Hand) -> None:
        super().__init__(attempt, TicketClient(hand, attempt.client.base_path))
        self.first_byte_timeout = self.idle_timeout = self.total_timeout = FOREVER


class TicketRoute:
    """A model's route for one exchange whose request gets a ticket: to a free slot at once, or not at all."""

    def __init__(self, route: Any, hand: Hand, generates: bool) -> None:
        self._route, self._hand, self._generates = route, hand, generates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._route, name)

    def acquire(
        self,
        request: InferenceRequest,
        principal: Principal,
        session: bytes | None,
        tried: tuple[str, ...],
        deadline: float,
        wait: bool = True,
    ) -> Any:
        """A TicketAttempt. Raises RequestError where nobody but the gateway may give this answer, Overloaded where no slot is free."""
        x = self._hand.exchange
        if x.kept is not None:
            raise not_possible("its texts are kept in the audit log")
        if x.layers:
            raise not_possible("its answer has pseudonyms to restore")
        if self._generates and request.max_tokens <= 0:
            raise RequestError("max_tokens: a request for a ticket must limit how much it generates.", param="request.max_tokens")
        granted = self._route.acquire(request, principal, session, tried, deadline, False)
        if isinstance(granted, float):
            raise Overloaded("No slot is free, and tickets do not wait for one.", retry_after=granted)
        attempt = self._hand.attempt = TicketAttempt(granted, self._hand)
        return attempt


def not_possible(why: str) -> RequestError:
    return RequestError(f"There is no ticket for this request: {why}. Send it to the gateway.", code=NOT_POSSIBLE, status=409)


def obstacle(snapshot: Snapshot, entry: ModelEntry, matches: Callable[[str, str], bool]) -> str:
    """Why no request to this model can have a ticket, as far as that is known before the request is read; "" where one can."""
    if not any(matches(pattern, entry.name) for pattern in snapshot.spec.tickets.models):
        return "the model is not one of tickets.models"
    if entry.response_guardrails or entry.response_tools or entry.response_shapes or entry.holds:
        return "guardrails read the model's answers"
    if any(guardrail.layered for guardrail in entry.request_guardrails):
        return "its answer would have pseudonyms to restore"
    if entry.cache is not None:
        return "the model's answers are kept in a cache"
    if entry.watch is not None:
        return "the model's answers are compared with a candidate's"
    if entry.fallbacks:
        return "the model has fallbacks"
    places = getattr(entry.route, "places", ())
    if not places or any(endpoint.spec.joined is None for endpoint in places):
        return "not all of the model's engines are on machines that have joined"
    return ""


def with_tickets(snapshot: Snapshot, model: str, entry: ModelEntry, hand: Hand, generates: bool) -> Snapshot:
    """The Snapshot for one exchange, in which there is this model alone, and its requests are handed over."""
    settings: TicketsSpec = snapshot.spec.tickets
    bound = entry.spec.max_tokens
    most = settings.max_tokens if bound is None else min(bound, settings.max_tokens)
    narrowed = ModelEntry(
        msgspec.structs.replace(entry.spec, max_tokens=most),
        TicketRoute(entry.route, hand, generates),
        entry.meter,
        entry.request_guardrails,
        prices=entry.prices,
        request_tools=entry.request_tools,
    )
    return only(snapshot, {model: narrowed})


def only(snapshot: Snapshot, models: dict[str, ModelEntry]) -> Snapshot:
    """The Snapshot with no other models than these."""
    return Snapshot(
        snapshot.version,
        snapshot.spec,
        snapshot.identity,
        snapshot.authorizer,
        snapshot.limiter,
        snapshot.audit,
        models,
        snapshot.parse,
        snapshot.salts,
        snapshot,  # keeps what was built for it
        snapshot.parse_steps,
        snapshot.networks,
        snapshot.admin_networks,
        snapshot.prover,
        snapshot.places,
        snapshot.moderations,
        snapshot.labels,
        snapshot.prefilter,
    )


class _Answered:
    """What is known of an answer that went past the gateway (gateway.pipeline.exchange.Relay)."""

    def __init__(self, usage: Usage, finish: str) -> None:
        self.head: ResponseHead | None = None
        self._usage, self._finish = usage, finish

    def on_failed(self, error: Exception) -> None:
        """The relay is over."""

    def tick(self, now: float) -> float:
        return now + FOREVER

    def usage(self) -> Usage | None:
        return self._usage

    def finish(self) -> str:
        return self._finish

    def error_event(self, error: GatehouseError) -> bytes:
        return b""


class Open:
    """A ticket that is not settled. due: monotonic seconds at which it is charged in full. begun: whether the machine has said that it
    runs it, which counts once: a machine that says so again and again keeps no ticket open."""

    __slots__ = ("begun", "due", "exchange", "hand", "run", "text", "ticket")

    def __init__(self, ticket: Ticket, text: str, hand: Hand, due: float, run: float) -> None:
        self.ticket, self.text, self.hand, self.exchange, self.due, self.run = ticket, text, hand, hand.exchange, due, run
        self.begun = False


def _used(ticket: Ticket, receipt: Receipt) -> Usage:
    """What a receipt says was used, as far as the ticket allows it: no machine charges a tenant more than its request could have cost."""
    prompt, completion = min(receipt.prompt_tokens, ticket.size + TEMPLATE), receipt.completion_tokens
    if completion > ticket.max_tokens:
        completion = ticket.max_tokens
    if (prompt, completion) != (receipt.prompt_tokens, receipt.completion_tokens):
        log.warning("the receipt of %s from %s exceeds its ticket", ticket.request, ticket.machine)
    return Usage(prompt, completion, min(receipt.cached_tokens, prompt), receipt.estimated, min(receipt.reasoning_tokens, completion))


class TicketBook:
    """The tickets that this process has given and that are not settled. withdraw: tells the machine that one is not good any more."""

    def __init__(self, plane: DataPlane, withdraw: Callable[[WithdrawTicket], None]) -> None:
        self._plane, self._withdraw = plane, withdraw
        self._open: dict[str, Open] = {}
        self._tenants: Counter[str] = Counter()
        """Open tickets, by tenant."""
        self._settled: OrderedDict[str, None] = OrderedDict()
        self.counts: dict[str, int] = {"ok": 0, "cancelled": 0, "failed": 0, "unsettled": 0, "ended": 0}
        """Tickets by how they ended; `ended`: by the gateway, before a receipt."""
        self.given = 0
        plane.listeners.append(self.sweep)

    def __len__(self) -> int:
        return len(self._open)

    def of_tenant(self, tenant: str) -> int:
        return self._tenants[tenant]

    def add(self, ticket: Ticket, text: str, hand: Hand, settings: TicketsSpec) -> None:
        """From here on the request may run: it counts as used in full until a receipt says what was used."""
        x, now = hand.exchange, time.monotonic()
        request: InferenceRequest = x.request  # type: ignore[assignment]
        x.usage = Usage(max(request.prompt_tokens, 0), max(request.max_tokens, request.expected, 0), 0, True)
        x.deadline = x.until = x.wake_at = now + FOREVER
        x.detail = {**(x.detail or {}), "ticket": {"id": ticket.id, "machine": ticket.machine, "expires": ticket.expires}}
        hand.withdraw = lambda: self._ended(ticket)
        self._open[ticket.id] = Open(
            ticket, text, hand, now + ticket.expires - ticket.issued + SKEW + settings.grace, settings.run + settings.grace
        )
        self._tenants[ticket.tenant] += 1
        self.given += 1

    def told(self, machine: str, id: str, text: str, receipt: Receipt | None) -> bool:
        """Takes what a machine tells of a ticket. False: it is none of those that are, or a while ago were, open here."""
        one = self._open.get(id)
        if one is None:
            return id in self._settled and receipt is not None
        if one.text != text or one.ticket.machine != machine:
            return False
        if receipt is not None:
            self._settle(one, receipt)
        elif not one.begun:
            one.begun, one.due = True, time.monotonic() + one.run
        return True

    def _settle(self, one: Open, receipt: Receipt) -> None:
        x = one.exchange
        done = receipt.outcome == "ok"
        usage = _used(one.ticket, receipt)
        charged = done or usage.prompt_tokens or usage.completion_tokens
        x.usage = usage if charged else None
        x.relay = _Answered(usage, receipt.finish) if charged else None
        x.answer_bytes = receipt.bytes
        told: dict[str, Any] = {"status": receipt.status, "begun": receipt.begun, "first": receipt.first, "ended": receipt.ended}
        x.detail["ticket"].update(told, sha256=receipt.sha256)  # type: ignore[index]
        word = receipt.outcome if receipt.outcome in ("ok", "cancelled") else "failed"
        status, code = {"ok": (200, ""), "cancelled": (499, "client_gone"), "failed": (502, "engine_failed")}[word]
        result = AttemptResult.SUCCESS if done else AttemptResult.FAILURE if receipt.status >= 500 else AttemptResult.NEUTRAL
        self._over(one, word, word, status, code, result)

    def _over(self, one: Open, count: str, outcome: str, status: int, code: str, result: AttemptResult) -> None:
        """Ends the exchange, once."""
        x = one.exchange
        self._forget(one.ticket.id, count)
        one.hand.withdraw = _nothing
        x.call = None
        x.engine_ns += perf_counter_ns() - x.sent_ns  # its time is the engine's and the client's
        x.clock.mark("engine")
        if one.hand.attempt is not None:
            one.hand.attempt.close(result)
        driver = x.driver
        x.settle(outcome, status, code)
        if driver is not None:
            driver.cancel(ClientGone("The ticket is settled."))

    def _ended(self, ticket: Ticket) -> None:
        """The gateway has ended the exchange: a halt, or the end of the process."""
        if self._forget(ticket.id, "ended"):
            self._revoke(ticket)

    def _revoke(self, ticket: Ticket) -> None:
        self._withdraw(WithdrawTicket(ticket.machine, ticket.id, ticket.expires + ticket.seconds))

    def _forget(self, id: str, count: str) -> bool:
        one = self._open.pop(id, None)
        if one is None:
            return False
        tenant = one.ticket.tenant
        self._tenants[tenant] -= 1
        if not self._tenants[tenant]:
            del self._tenants[tenant]
        self.counts[count] += 1
        self._settled[id] = None
        if len(self._settled) > REMEMBERED:
            self._settled.popitem(last=False)
        return True

    def sweep(self) -> None:
        """Charges in full what nobody has settled in time."""
        now = self._plane.now
        for one in [one for one in self._open.values() if one.due <= now]:
            self._unsettled(one)

    def _unsettled(self, one: Open) -> None:
        log.warning("ticket %s for %s was not settled: it is charged in full", one.ticket.request, one.ticket.machine)
        self._revoke(one.ticket)
        self._over(one, "unsettled", "unknown", 504, UNSETTLED, AttemptResult.NEUTRAL)

    async def aclose(self, seconds: float) -> None:
        """Waits for the receipts of what is open, then charges the rest in full."""
        try:
            async with asyncio.timeout(seconds):
                while self._open:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            for one in list(self._open.values()):
                self._unsettled(one)


def _nothing() -> None:
    """Does nothing."""
