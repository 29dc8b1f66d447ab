"""Suspensions of tenants, users and keys: kept in the store as resources, in force wherever the store is known (gateway.core.standing).

A suspension is a resource of its own, not a setting of what it suspends. So it also reaches keys and tenants of the configuration file and
users without a record, and it outlives a user who is deleted and made again by the next login.
"""

from __future__ import annotations

from typing import Final

from gateway.app.store.following import Followed
from gateway.core.standing import Standing, Stop
from gateway.core.storage import ControlStore, Resource
from gateway.core.tasks import TaskOwner

KIND: Final = "suspensions"


class Suspensions:
    """Life: `start`, then `heard` for the feed; the owner ends its tasks."""

    def __init__(self, store: ControlStore, standing: Standing, owner: TaskOwner) -> None:
        self._standing = standing
        self._followed = Followed(store, KIND, self._take, owner)
        self.start, self.heard = self._followed.start, self._followed.heard

    @property
    def settled(self) -> bool:
        """Whether everything that was heard of is in force in this process."""
        return not self._followed.stale

    def _take(self, found: list[Resource]) -> None:
        self._standing.replace(KIND, [Stop(str(one.body.get("target", one.name)), "suspended", admin=True) for one in found])
