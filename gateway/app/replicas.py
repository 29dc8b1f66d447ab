"""What this process has to do with the other replicas on the same store: the roll of replicas, and the jobs that one does for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gateway.app.jobs import Job, Jobs
from gateway.app.membership import Membership
from gateway.app.release import release
from gateway.store.store import Store

PRUNE_SECONDS: Final = 600.0
"""Between two times that one replica clears the store of what is over."""


class Replicas:
    """record: (event, target, detail) for the audit log. Life: `start` once the addresses of the listeners are known; `aclose` before the
    store closes."""

    def __init__(self, store: Store, replica: str, record: Callable[[str, str, dict[str, Any]], None]) -> None:
        self.members = Membership(store, replica, release(), record)
        self._jobs = Jobs(store, self.members.holder, (Job("prune", PRUNE_SECONDS, store.prune),))

    def start(self, data: str, admin: str, workers: int = 0) -> None:
        """data, admin: the addresses of the listeners."""
        self.members.start(data, admin, workers)
        self._jobs.start()

    async def aclose(self) -> None:
        """Gives back what it holds, and leaves the roll."""
        await self._jobs.aclose()
        await self.members.aclose()
