"""What the workers have asked about callers, remembered by the control process, for the same reasons as keys (key_records.py)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core.people import PersonRecord, full_name

Find = Callable[[str, str, tuple[str, ...]], Awaitable[PersonRecord]]
"""(tenant, user, groups) -> what the store says. Raises StoreUnavailable."""
CAPACITY: Final = 65536


class PersonRecords:
    """For one event loop. Must hear of a change before the workers do."""

    def __init__(self, find: Find, capacity: int = CAPACITY) -> None:
        self._find, self._capacity = find, capacity
        self._known: OrderedDict[tuple[str, str, tuple[str, ...]], PersonRecord] = OrderedDict()
        self._subjects: dict[str, dict[str, set[tuple[str, str, tuple[str, ...]]]]] = {}
        """Those remembered, by tenant and by the user's full name."""
        self._changes = 0

    def __len__(self) -> int:
        return len(self._known)

    async def find(self, tenant: str, user: str, groups: tuple[str, ...]) -> PersonRecord:
        """Raises StoreUnavailable."""
        subject = (tenant, user, groups)
        record = self._known.get(subject)
        if record is not None:
            self._known.move_to_end(subject)
            return record
        asked = self._changes
        record = await self._find(tenant, user, groups)
        if asked == self._changes:  # no change has overtaken the answer
            self._known[subject] = record
            self._subjects.setdefault(tenant, {}).setdefault(full_name(user, tenant), set()).add(subject)
            if len(self._known) > self._capacity:
                self._forget(next(iter(self._known)))
        return record

    def _forget(self, subject: tuple[str, str, tuple[str, ...]]) -> None:
        del self._known[subject]
        users, id = self._subjects[subject[0]], full_name(subject[1], subject[0])
        users[id].discard(subject)
        if not users[id]:
            del users[id]
        if not users:
            del self._subjects[subject[0]]

    def changed(self, kind: str, name: str) -> None:
        """Drops whom a change concerns; kind, name: as the store says it."""
        self._changes += 1
        tenant = name if kind == "tenants" else name.rpartition("@")[2]
        users = self._subjects.get(tenant, {})
        for subject in [subject for id in ([name] if kind in ("users", "logins") else list(users)) for subject in users.get(id, ())]:
            self._forget(subject)

    def clear(self) -> None:
        """Changes were missed."""
        self._changes += 1
        self._known.clear()
        self._subjects.clear()
