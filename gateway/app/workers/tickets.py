"""Direct tickets in a worker: the control process signs them, and hands over what machines tell of them."""

from __future__ import annotations

from typing import Final

from gateway.app.engines.tickets import settle
from gateway.app.workers.channel import Channel, Handlers
from gateway.core.tickets import SettleTicket, Signed, SignTicket, WithdrawTicket
from gateway.pipeline.ticketing import TicketBook

SECONDS: Final = 5.0


class FeedTickets:
    """Implements gateway.core.tickets.TicketDesk over the feed."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def sign(self, wanted: SignTicket) -> Signed:
        return await self._channel.ask(wanted, SECONDS)

    def withdraw(self, wanted: WithdrawTicket) -> None:
        self._channel.tell(wanted)


def ticket_handlers(handlers: Handlers, book: TicketBook) -> None:
    """What a worker is told of tickets."""
    handlers.answer(SettleTicket, lambda _, ask: settle(book, ask))
