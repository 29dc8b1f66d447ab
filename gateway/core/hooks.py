"""The interface of hooks: code that runs before a request is forwarded and after it has ended."""

from __future__ import annotations

from typing import Protocol

from gateway.core.types import IntentRecord, OutcomeRecord


class Hook(Protocol):
    """Both methods run on the event loop, for every inference request, and must return at once: they count, decide, hand over."""

    def before(self, request: IntentRecord) -> None:
        """The request is authenticated, authorised, within its limits and inspected, not yet recorded or forwarded. A GatehouseError raised
        here is the answer; any other exception refuses the request too (500)."""
        ...

    def after(self, outcome: OutcomeRecord) -> None:
        """How the request ended, even if it was refused before `before` saw it. An exception is logged and changes nothing."""
        ...
