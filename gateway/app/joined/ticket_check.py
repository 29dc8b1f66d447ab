"""Whether a machine runs what it is asked with a ticket: who signed that, for what, until when, and that it was not used before."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gateway.core.clock import Clock
from gateway.core.errors import AuthenticationError, Overloaded, RequestError
from gateway.core.tickets import SKEW, TICKET, Ticket, opened

MOST_USED: Final = 100_000
"""Tickets that were used and have not expired: beyond, none are taken, because one could come twice."""


class Checker:
    """One machine's, for the life of its process. keys: of the gateways that are heard now, base64."""

    def __init__(self, machine: str, engines: Collection[str], keys: Callable[[], Iterable[str]], clock: Clock) -> None:
        self.boot = secrets.token_hex(16)
        """Names this process: what was used before its start is not known, so tickets for another process are refused."""
        self._machine, self._engines, self._keys, self._wall = machine, engines, keys, clock.wall
        self._used: dict[str, float] = {}
        self._withdrawn: dict[str, float] = {}
        self._tidied = 0.0
        self._over = 0.0
        """No ticket that expires until then is taken: it may have been used, and forgotten before somebody set the clock back."""

    def ticket(self, text: str) -> Ticket:
        """The ticket, verified. Raises AuthenticationError."""
        try:
            found, signed, signature = opened(TICKET, text, Ticket)
        except ValueError:
            raise AuthenticationError("This is no ticket of a gateway.", code="invalid_ticket") from None
        if not any(_verified(key, signature, signed) for key in self._keys()):
            raise AuthenticationError("The ticket is not signed by a gateway that this machine serves.", code="invalid_ticket")
        if (found.machine, found.boot) != (self._machine, self.boot) or found.engine not in self._engines:
            raise AuthenticationError("The ticket is for another machine, or for this one before it was restarted.", code="invalid_ticket")
        now = self._wall()
        if now > found.expires + SKEW:
            raise AuthenticationError("The ticket has expired.", code="expired_ticket")
        if found.issued > now + SKEW:
            raise AuthenticationError("The ticket is of a time that has not come here: the clocks differ.", code="invalid_ticket")
        return found

    def use(self, ticket: Ticket, path: str, body: bytes) -> None:
        """Uses it up, if the request is the one that it is for. Raises RequestError, AuthenticationError,
        Overloaded."""
        if path != ticket.path:
            raise RequestError(f"The ticket is for {ticket.path}.", code="ticket_mismatch")
        if len(body) != ticket.size or not hmac.compare_digest(hashlib.sha256(body).hexdigest(), ticket.sha256):
            raise RequestError("The body is not the one that the ticket is for: send `body` as it came.", code="ticket_mismatch")
        now = self._wall()
        self._tidy(now)
        if ticket.id in self._withdrawn:
            raise RequestError("The gateway has withdrawn the ticket.", code="used_ticket", status=409)
        if ticket.id in self._used:
            raise RequestError("The ticket was used before.", code="used_ticket", status=409)
        if now > ticket.expires + SKEW or ticket.expires <= self._over:
            raise AuthenticationError("The ticket has expired.", code="expired_ticket")
        if len(self._used) >= MOST_USED:
            raise Overloaded("Too many tickets were used just now.", retry_after=1.0)
        self._used[ticket.id] = ticket.expires + 2 * SKEW

    def _tidy(self, now: float) -> None:
        """Forgets what is over, once a second."""
        if abs(now - self._tidied) < 1.0:
            return
        self._tidied = now
        for id in [id for id, until in self._used.items() if until < now]:
            self._over = max(self._over, self._used.pop(id) - 2 * SKEW)
        for id in [id for id, until in self._withdrawn.items() if until < now]:
            del self._withdrawn[id]

    def withdraw(self, ids: Iterable[str], seconds: float) -> None:
        """Refuses these tickets from now on. seconds: how long that is remembered; the gateway repeats it."""
        until = self._wall() + seconds
        for id in ids:
            self._withdrawn[id] = until


def _verified(key: str, signature: bytes, signed: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(b64decode(key)).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True
