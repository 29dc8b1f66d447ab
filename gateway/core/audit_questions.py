"""What is asked of an audit log: what must be there, which records are wanted."""

from __future__ import annotations

import msgspec


class AuditScope(msgspec.Struct, frozen=True):
    """What of an audit log must be there and is verified: of each writer everything from the segment `first` on, or from its own in
    `starts` on (older ones were archived). archived: writers whose files may be gone as a whole."""

    first: int = 1
    starts: dict[str, int] = {}
    archived: tuple[str, ...] = ()

    def start(self, writer: str) -> int:
        """The oldest segment of a writer that must be there."""
        return self.starts.get(writer, self.first)


class AuditFilter(msgspec.Struct, frozen=True):
    """Which records are wanted: those that match all that is given. Times in seconds since the epoch; `until` is exclusive.

    tenant, principal, model: an outcome has these only when there was no intent; the outcomes of the intents that match are wanted too.
    event: an event's name, or its beginning with a `*` behind it.
    """

    request_id: str | None = None
    tenant: str | None = None
    principal: str | None = None
    model: str | None = None
    kind: str | None = None
    event: str | None = None
    outcome: str | None = None
    writer: str | None = None
    since: float | None = None
    until: float | None = None
