"""What the control plane asks of the store about usage; part of gateway.core.storage.ControlStore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from gateway.core.ledger import EngineRow, Position, SessionAndEngineCounts, SessionRow, UsageRow


class UsageStorage(Protocol):
    """Sums of the audit logs."""

    async def add_usage(
        self,
        rows: Sequence[UsageRow],
        before: Position | None = None,
        after: Position | None = None,
        others: SessionAndEngineCounts | None = None,
    ) -> bool:
        """Adds to the counts, and to those of sessions and engines, and moves the position of a writer of the audit log from `before` to
        `after`, all in one transaction. If somebody else has moved it, adds nothing and returns False. before: as it was read, or with
        `segment` 0 where there is none."""
        ...

    async def usage_positions(self) -> dict[str, Position]:
        """Up to where the audit log of each writer is counted."""
        ...

    async def usage_counted_from(self) -> float:
        """When counting from the audit log began, in seconds since the epoch: what older records say was counted by an older version."""
        ...

    async def usage_of_writers(self, writers: Sequence[str]) -> tuple[dict[str, Position], Sequence[UsageRow]]:
        """What was counted from these writers' logs, and up to where, at one moment."""
        ...

    async def report_usage(
        self,
        group_by: Sequence[str] = ("tenant",),
        *,
        since: str = "",
        until: str = "9999-12-31",
        tenant: str | Sequence[str] | None = None,
        limit: int = 10000,
        after: Sequence[str] | None = None,
        **wanted: str | None,
    ) -> Sequence[dict[str, Any]]:
        """Sums for each combination of `group_by` (of tenant, key, user, agent, model, operation, currency, day), ordered by it. Days are
        inclusive on both sides. wanted: values that some of these must have. after: only combinations after this one. `cost` and `currency`
        are None where costs are in several currencies."""
        ...

    async def usage_of_engines(self, since: str, until: str) -> Sequence[EngineRow]:
        """How long requests held each engine with a rate in these days, inclusive, by day and engine."""
        ...

    async def usage_of_sessions(
        self,
        *,
        since: str = "",
        until: str = "9999-12-31",
        tenant: str | Sequence[str] | None = None,
        session: str | None = None,
        limit: int = 1000,
    ) -> Sequence[SessionRow]:
        """What sessions used, summed over these days, the last used first; `day` is the last one."""
        ...

    async def forget_sessions(self, before: str, most: int) -> int:
        """Deletes the sums of sessions of the days before this one, and beyond `most` rows those that were used longest ago; returns how
        many."""
        ...
