"""The logins that processes have seen, on their way to the store: bounded, in batches, off the hot path.

A first login makes the user's record. However many people log in at once, at most `BATCH` of them are written in a second by one replica,
and no more users are made than `limit`; who finds no room is noted at a later login. A caller's rights never wait for this.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from gateway.core.people import Seen
from gateway.core.storage import ControlStore

BATCH: Final = 200
MAX_WAITING: Final = 16384


class Logins:
    """limit: users that there may be before first logins make no more; 0: they make none."""

    def __init__(self, store: ControlStore, limit: int = 100_000) -> None:
        self._store, self.limit = store, limit
        self._waiting: dict[tuple[str, str], Seen] = {}
        self.dropped = 0
        """Logins that found no room here."""
        self.made = 0
        """Users made at their first login."""

    def __len__(self) -> int:
        return len(self._waiting)

    def saw(self, logins: Iterable[Seen]) -> None:
        """Notes logins; of several logins of one user, only the last."""
        for seen in logins:
            who = (seen.tenant, seen.user)
            before = self._waiting.get(who)
            if before is None and len(self._waiting) >= MAX_WAITING:
                self.dropped += 1
            elif before is None or before.time <= seen.time:
                self._waiting[who] = seen

    async def write(self) -> None:
        """Writes one batch. Raises what the store raises; then nothing is lost."""
        await self._write(list(islice(self._waiting.items(), BATCH)))

    async def write_of(self, tenant: str, user: str) -> None:
        """Writes one user's login, if it waits."""
        seen = self._waiting.get((tenant, user))
        await self._write([] if seen is None else [((tenant, user), seen)])

    async def _write(self, batch: list[tuple[tuple[str, str], Seen]]) -> None:
        if not batch:
            return
        self.made += await self._store.note_logins([seen for _, seen in batch], limit=self.limit)
        for who, seen in batch:
            if self._waiting.get(who) is seen:
                del self._waiting[who]
