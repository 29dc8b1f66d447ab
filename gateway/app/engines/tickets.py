"""Direct tickets between processes: who signs them, and who learns what became of them.

The process that serves gives tickets and keeps their exchanges open (gateway.pipeline.ticketing). The process with the store signs them,
tells machines in the answers to their beats which key verifies them and which are not good any more, and takes receipts: each goes to the
process that gave its ticket. What nobody has open any more has been charged in full, by its time or by the audit log's own recovery after a
kill; its receipt is recorded, and changes nothing.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.app.replicas.membership import Membership
from gateway.core.clock import Clock
from gateway.core.errors import GatehouseError, RequestError
from gateway.core.joining import TicketPort, ticket_host_of
from gateway.core.specs import TicketsSpec
from gateway.core.tickets import (
    RECEIPT,
    TICKET,
    Receipt,
    Report,
    ReportedTicket,
    SettleTicket,
    Signed,
    SignTicket,
    Taken,
    Ticket,
    TicketSettled,
    WithdrawTicket,
    opened,
    sealed,
)
from gateway.pipeline.ticketing import NOT_POSSIBLE, TicketBook

log = logging.getLogger("gatehouse.tickets")
SECRET: Final = "tickets"
MOST_WITHDRAWN: Final = 256
"""The most withdrawn tickets that one answer to a machine names."""
REMEMBERED: Final = 10_000
LATE: Final = 60.0
"""Seconds after a ticket's last moment from when on its receipt settles nothing, wherever it was given."""


class TicketOffice:
    """Implements gateway.core.tickets.TicketDesk in the process that has the store.

    secret: (name) -> 32 bytes, the same in all replicas. port: (machine) -> where it takes tickets now. authority: of their
    certificates, PEM. settings: in force, None before any are. members: the replicas. record: (event, target, detail) for the audit log.
    """

    def __init__(
        self,
        secret: Callable[[str], bytes],
        port: Callable[[str], TicketPort | None],
        authority: Callable[[], str],
        settings: Callable[[], TicketsSpec | None],
        members: Membership,
        record: Callable[[str, str, dict[str, Any]], None],
        clock: Clock,
    ) -> None:
        self._secret, self._port, self._authority, self._settings = secret, port, authority, settings
        self._members, self._record, self._clock = members, record, clock
        self._key: Ed25519PrivateKey | None = None
        self._public = ""
        self._withdrawn: dict[str, dict[str, float]] = {}
        self._late: OrderedDict[str, None] = OrderedDict()
        self.book: TicketBook | None = None
        """The tickets that this process gave, if it serves."""
        self.elsewhere: Callable[[str, SettleTicket], Awaitable[TicketSettled]] | None = None
        """(worker, what is told) -> its answer, where workers serve."""

    @property
    def public(self) -> str:
        """What verifies tickets, base64; "" where none are given."""
        settings = self._settings()
        if settings is None or not settings.enabled:
            return ""
        self._own()
        return self._public

    @property
    def replicas(self) -> int:
        """How many serve on this store."""
        return len(self._members.serving)

    def _own(self) -> Ed25519PrivateKey:
        if self._key is None:
            self._key = Ed25519PrivateKey.from_private_bytes(self._secret(SECRET))
            self._public = b64encode(self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode("ascii")
        return self._key

    # --- tickets

    async def sign(self, wanted: SignTicket, worker: str = "") -> Signed:
        """Signs a ticket for a worker ("": for this process itself). Raises RequestError."""
        asked = msgspec.convert(wanted.ticket, Ticket)
        port = self._port(asked.machine)
        if port is None:
            message = f"There is no ticket for this request: the machine {asked.machine} takes none. Send it to the gateway."
            raise RequestError(message, code=NOT_POSSIBLE, status=409)
        issuer = f"{self._members.replica}/{worker}" if worker else self._members.replica
        text = sealed(TICKET, msgspec.structs.replace(asked, issuer=issuer, boot=port.boot), self._own().sign)
        return Signed(text, port.address, ticket_host_of(asked.machine), self._authority())

    def withdraw(self, wanted: WithdrawTicket) -> None:
        self._withdrawn.setdefault(wanted.machine, {})[wanted.id] = wanted.until

    def withdrawn(self, machine: str) -> tuple[str, ...]:
        """The tickets that a machine must not run, the newest first."""
        known = self._withdrawn.get(machine)
        if not known:
            return ()
        now = self._clock.wall()
        for id in [id for id, until in known.items() if until <= now]:
            del known[id]
        return tuple(known)[-1 : -MOST_WITHDRAWN - 1 : -1]

    # --- receipts

    async def told(self, machine: str, report: Report) -> Taken:
        """Takes a machine's signed report. Tickets of another replica are left to it, unless it is gone. Raises RequestError for anything
        that is not a ticket."""
        return Taken(ids=tuple([id for one in report.told if (id := await self._told(machine, one))]))

    async def _told(self, machine: str, told: ReportedTicket) -> str:
        """Settles a ticket that a machine reports. Returns its id if the machine need not report it again, else ""."""
        try:
            ticket, signed, signature = opened(TICKET, told.ticket, Ticket)
            receipt = opened(RECEIPT, told.receipt, Receipt)[0] if told.receipt else None
        except ValueError:
            raise RequestError("The message has no valid ticket or receipt.", code="invalid_value") from None
        if ticket.machine != machine or (receipt is not None and (receipt.ticket, receipt.machine) != (ticket.id, machine)):
            log.warning("machine %s reported a ticket of another machine, or the receipt of another ticket", machine)
            return ticket.id  # it changes nothing, and is not to hold up what is told beside it
        replica, _, worker = ticket.issuer.partition("/")
        if replica != self._members.replica:
            return self._left_behind(ticket, signed, signature, receipt, replica)
        wanted = SettleTicket(machine, ticket.id, told.ticket, None if receipt is None else msgspec.to_builtins(receipt))
        try:
            settled = await self._settled(worker, wanted)
        except GatehouseError as error:
            if self._clock.wall() < ticket.expires + ticket.seconds + LATE:
                log.warning("a receipt of %s is not settled yet: %s", machine, error.message)
                return ""
            settled = False  # the worker that gave it was killed: it has been charged in full
        if not settled and receipt is not None:
            self._came_late(ticket, signed, signature, receipt)
        return "" if receipt is None else ticket.id

    def _left_behind(self, ticket: Ticket, signed: bytes, signature: bytes, receipt: Receipt | None, replica: str) -> str:
        """A receipt for a replica that serves no more, once the ticket's whole time is over: one of the others records it."""
        serving, over = self._members.serving, ticket.expires + ticket.seconds + LATE
        if receipt is None or replica in serving or self._members.replica != min(serving) or self._clock.wall() < over:
            return ""
        self._came_late(ticket, signed, signature, receipt)
        return ticket.id

    async def _settled(self, worker: str, wanted: SettleTicket) -> bool:
        if not worker:
            return self.book is not None and settle(self.book, wanted).known
        return self.elsewhere is not None and (await self.elsewhere(worker, wanted)).known

    def _came_late(self, ticket: Ticket, signed: bytes, signature: bytes, receipt: Receipt) -> None:
        """Records once what became of a ticket that has been charged in full."""
        try:
            self._own().public_key().verify(signature, signed)
        except InvalidSignature:
            log.warning("machine %s reported a ticket that this gateway has not signed", ticket.machine)
            return
        if ticket.id in self._late:
            return
        self._late[ticket.id] = None
        if len(self._late) > REMEMBERED:
            self._late.popitem(last=False)
        detail = {"tenant": ticket.tenant, "request_id": ticket.request, **msgspec.to_builtins(receipt)}
        self._record("ticket_receipt_late", ticket.machine, detail)


def settle(book: TicketBook, wanted: SettleTicket) -> TicketSettled:
    """Settles a ticket in the process that gave it."""
    receipt = None if wanted.receipt is None else msgspec.convert(wanted.receipt, Receipt)
    return TicketSettled(book.told(wanted.machine, wanted.id, wanted.ticket, receipt))


class TicketGauges:
    """What a process counts of tickets."""

    def __init__(self, book: TicketBook) -> None:
        self._book = book

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("gatehouse_tickets_open", "Direct tickets that are not settled", value=float(len(self._book)))
        ended = CounterMetricFamily("gatehouse_tickets", "Direct tickets that are over, by how they ended", labels=["outcome"])
        for outcome, count in self._book.counts.items():
            ended.add_metric([outcome], float(count))
        yield ended
