"""What one connection holds of the process's memory budget (gateway.pipeline.memory): the body of the request being served, and its answer
until the client has taken it. Until then the request's limits count it as under way, too.
"""

from __future__ import annotations

from gateway.core.ports import Reservation
from gateway.core.specs import ListenSpec
from gateway.core.types import Usage
from gateway.pipeline.memory import UNCOUNTED, MemoryBudget
from gateway.server.request import ParsedRequest


class Account:
    """One connection's. It serves one request at a time, so there is one answer that is not taken."""

    __slots__ = ("_answer", "_budget", "_owner", "_unsettled")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._answer = 0
        self._owner = ""
        self._unsettled: tuple[Reservation, Usage | None] | None = None

    @property
    def open(self) -> bool:
        """Whether anything waits for the client to take its answer."""
        return self._answer > 0 or self._unsettled is not None

    def admit(self, request: ParsedRequest, limits: ListenSpec) -> None:
        """Takes memory for a request's body before it is read. Raises Overloaded, LimitExceeded."""
        length = request.declared()
        wanted = request.size if length is None else length
        if wanted > UNCOUNTED:
            self.grow(request, wanted, limits)
        request.admitted = True

    def grow(self, request: ParsedRequest, amount: int, limits: ListenSpec) -> None:
        """Takes more memory for a body. Raises Overloaded, LimitExceeded."""
        if not request.owner:
            request.owner = owner_of(request)
        self._budget.take(request.owner, amount, limits)
        request.reserved += amount
        request.room = max(request.room, request.reserved)

    def release(self, request: ParsedRequest) -> None:
        """The body of a request is not needed any more."""
        if request.reserved:
            self._budget.give_back(request.owner, request.reserved)
            request.reserved = 0

    def reserve(self, request: ParsedRequest, size: int, limits: ListenSpec) -> None:
        """Takes memory for an answer. Raises Overloaded, LimitExceeded."""
        owner = owner_of(request)
        self._budget.take(owner, size, limits)
        self._answer += size
        self._owner = owner

    def settle_when_taken(self, reservation: Reservation, usage: Usage | None) -> None:
        self._unsettled = (reservation, usage)

    def taken(self) -> None:
        """The client has taken its last answer, all but what one buffer holds, or is gone."""
        if self._answer:
            self._budget.give_back(self._owner, self._answer)
            self._answer = 0
        if self._unsettled is not None:
            (reservation, usage), self._unsettled = self._unsettled, None
            reservation.settle(usage)


def owner_of(request: ParsedRequest) -> str:
    """Whose share of the memory a request counts to: its caller's, or its peer's as long as nobody knows the caller."""
    handler = request.handler
    if handler is None:
        return ""
    principal = handler.principal
    return f"peer {handler.peer.address}" if principal is None else f"{principal.tenant}/{principal.kind}/{principal.id}"
