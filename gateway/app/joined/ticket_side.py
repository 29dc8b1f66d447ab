"""Tickets at a machine that joins: its port for clients, its receipts, and what gateways say of both in the answers to its beats."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.app.joined.caller import Caller
from gateway.app.joined.identity import Identity
from gateway.app.joined.machines import parse_address
from gateway.app.joined.receipts import Receipts, Send
from gateway.app.joined.ticket_check import Checker
from gateway.app.joined.ticket_port import TicketPort
from gateway.core.clock import SystemClock
from gateway.core.errors import ConfigError
from gateway.core.host_port import HostPort
from gateway.core.joining import Heard
from gateway.core.joining import TicketPort as Told
from gateway.core.pauses import Pauses
from gateway.core.tasks import TaskOwner
from gateway.server.listener import address_of, bind

log = logging.getLogger("gatehouse.machine")
ALONE_SECONDS: Final = 10.0
"""Seconds without a gateway after which requests with tickets are ended, because nobody could halt them."""
LOOK_SECONDS: Final = 1.0
BEAT_SECONDS: Final = 3.0
"""Seconds that a beat and its answer may take after a pause of the machine. In the pause no request with a ticket ran."""


@dataclass(frozen=True)
class PortWanted:
    """listen: ADDRESS:PORT. advertise: what clients are told; None: the same."""

    listen: str
    advertise: HostPort | None

    @classmethod
    def of(cls, listen: str, advertise: str | None) -> PortWanted:
        """Raises ConfigError."""
        place = parse_address(f"{listen.removesuffix(':0')}:1" if listen.endswith(":0") else listen)
        if place is None:
            raise ConfigError(f"--tickets {listen!r} is not ADDRESS:PORT, such as 10.0.0.5:8444")
        told = None if advertise is None else parse_address(advertise)
        if advertise is not None and told is None:
            raise ConfigError(f"--tickets-advertise {advertise!r} is not ADDRESS:PORT, such as 10.0.0.5:8444")
        if told is None and place.host in ("0.0.0.0", "::"):
            raise ConfigError(f"--tickets {listen} is all of this machine's addresses: say with --tickets-advertise where clients reach it")
        return cls(listen, told)


class TicketSide:
    """Life: `start`, `drain`, `aclose`. place: (engine) -> where it is served. Raises OSError where receipts cannot be kept."""

    def __init__(
        self, name: str, identity: Identity, engines: Collection[str], callers: Sequence[Caller], place: Callable[[str], str | None]
    ) -> None:
        self._identity, self._callers = identity, callers
        self._owner = TaskOwner("tickets")
        self._pauses, self._patient_until = Pauses(LOOK_SECONDS, time.monotonic()), 0.0
        folder: Path = identity.certificate.parent
        self._tell: dict[str, Send] = {caller.url: caller.report for caller in callers}
        self._receipts = Receipts(folder / "receipts", list(self._tell.values()))
        checker = Checker(name, engines, lambda: {caller.tickets for caller in callers if caller.tickets}, SystemClock())
        self._port = TicketPort(name, identity.key, checker, self._receipts, place, lambda: self._reached(0.0))

    def _reached(self, within: float) -> bool:
        return any(caller.reached(within) for caller in self._callers)

    def start(self, wanted: PortWanted) -> Told:
        """Listens. Raises ConfigError where it cannot."""
        self.present()
        listening = bind(wanted.listen, "--tickets")
        self._port.start(listening)
        self._owner.spawn(self._receipts.tell(), name="receipts")
        self._owner.every(LOOK_SECONDS, self._look, name="reached")
        address = address_of(listening) if wanted.advertise is None else wanted.advertise.text
        return Told(address=address, boot=self._port.checker.boot)

    def present(self) -> None:
        """The machine's certificate, for new connections. Raises OSError, ssl.SSLError."""
        self._port.present(self._identity.certificate, self._identity.key_file)

    def heard(self, caller: Caller, heard: Heard | None) -> None:
        """What a gateway has answered to a beat; None: nothing."""
        if heard is None:
            return
        self._receipts.reached(self._tell[caller.url])
        if heard.withdrawn:
            self._port.withdraw(heard.withdrawn)

    async def _look(self) -> None:
        now = time.monotonic()
        if self._pauses.since(now):  # this machine stood still: the gateways are asked again before they count as gone
            self._patient_until = now + BEAT_SECONDS
        if now >= self._patient_until and self._port.running and not self._reached(ALONE_SECONDS):
            log.warning("no gateway has been heard for too long: requests with tickets are ended")
            self._port.stop_all()

    async def drain(self, seconds: float) -> None:
        await self._port.drain(seconds)
        await self._receipts.flush(everything=True)

    async def aclose(self) -> None:
        await self._port.aclose()
        await self._owner.aclose()
        self._receipts.close()
