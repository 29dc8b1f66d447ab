"""What becomes of receipts whose tickets a worker gave that has been killed since."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.app.engines.tickets import LATE, SECRET, TicketOffice
from gateway.core.clock import FakeClock
from gateway.core.errors import Overloaded
from gateway.core.tickets import RECEIPT, TICKET, Receipt, Report, ReportedTicket, SettleTicket, TicketSettled, sealed
from tests.unit.gateway.core.test_tickets import ticket


async def test_a_killed_workers_receipt_waits_for_it_and_is_recorded_once_its_time_is_over() -> None:
    clock, events = FakeClock(), list[tuple[str, str, dict[str, Any]]]()
    members: Any = SimpleNamespace(replica="gw-1", serving=frozenset(("gw-1",)))
    secret = {SECRET: b"s" * 32}
    office = TicketOffice(secret.__getitem__, lambda _: None, str, lambda: None, members, lambda *told: events.append(told), clock)

    async def gone(worker: str, wanted: SettleTicket) -> TicketSettled:
        raise Overloaded(f"There is no worker {worker}.")

    office.elsewhere = gone
    given = ticket(issuer="gw-1/gw-1-1", issued=clock.wall(), expires=clock.wall() + 20.0)
    text = sealed(TICKET, given, Ed25519PrivateKey.from_private_bytes(secret[SECRET]).sign)
    receipt = sealed(RECEIPT, Receipt(ticket=given.id, machine=given.machine, outcome="ok", status=200), lambda signed: b"x" * 64)
    report = Report(told=(ReportedTicket(ticket=text, receipt=receipt),))
    assert (await office.told(given.machine, report)).ids == () and events == [], "it may come again"
    clock.advance(20.0 + given.seconds + LATE)
    for _ in range(2):
        assert (await office.told(given.machine, report)).ids == (given.id,)
    assert [(event, machine, detail["request_id"]) for event, machine, detail in events] == [
        ("ticket_receipt_late", given.machine, given.request)
    ]
