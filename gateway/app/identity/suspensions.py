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
        self._targets: dict[str, Stop] = {}
        """Stops by the name of their resource."""
        self._followed = Followed(store, KIND, self._take, owner, self._some)
        self.start, self.heard = self._followed.start, self._followed.heard

    @property
    def settled(self) -> bool:
        """Whether everything that was heard of is in force in this process."""
        return not self._followed.stale

    def _take(self, found: list[Resource]) -> None:
        self._targets = {one.name: _stop(one) for one in found}
        self._standing.replace(KIND, self._targets.values())

    def _some(self, found: list[Resource], gone: list[str]) -> None:
        stops = [_stop(one) for one in found]
        before = [self._targets.pop(name).target for name in (*gone, *[one.name for one in found]) if name in self._targets]
        self._targets.update(zip([one.name for one in found], stops, strict=True))
        self._standing.change(KIND, stops, before)


def _stop(resource: Resource) -> Stop:
    return Stop(str(resource.body.get("target", resource.name)), "suspended", admin=True)
