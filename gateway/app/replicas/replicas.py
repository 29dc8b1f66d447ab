"""What this process has to do with the other replicas on the same store: the roll of replicas, the jobs that one does for all, hints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gateway.app.engines.fleet import Fleet
from gateway.app.release import release
from gateway.app.replicas.endpoint_hints import EndpointHints
from gateway.app.replicas.hints import Hints
from gateway.app.replicas.jobs import Job, Jobs
from gateway.app.replicas.membership import Membership
from gateway.app.shared_models.directory import SharedDirectory
from gateway.app.shared_models.noting import Noting
from gateway.app.shared_models.sharing import ModelSharing
from gateway.app.store.link import StoreLink
from gateway.core.clock import SystemEntropy
from gateway.core.specs import RedisSpec
from gateway.store.redis_hints import RedisHints

PRUNE_SECONDS: Final = 600.0
"""Between two times that one replica clears the store of what is over."""


class Replicas:
    """record: (event, target, detail) for the audit log. Life: `start` once the addresses of the listeners are known; `aclose` before the
    store closes."""

    def __init__(
        self,
        link: StoreLink,
        fleet: Fleet,
        replica: str,
        record: Callable[[str, str, dict[str, Any]], None],
        redis: RedisSpec | None = None,
    ) -> None:
        store, poller = link.store, link.poller
        self.members = Membership(store, replica, release(), record)
        self._jobs = Jobs(store, self.members.holder, (Job("prune", PRUNE_SECONDS, store.prune),))
        self.endpoints = EndpointHints(fleet.registry, lambda digests: self.hints.send(endpoints=digests))
        fleet.on_endpoint = self.endpoints.changed
        self.hints = Hints(self.members.incarnation, poller.hinted, self.members.called, self.endpoints.heard, self._sure)
        self._poller = poller
        parts = (store.model_copies, store.derived, fleet.files, fleet.state_dir, replica, fleet.sharing, fleet.reserve, record)
        self.models = ModelSharing(*parts, lambda: fleet.on_change(), store, self.members.holder)
        fleet.on_lacking, fleet.elsewhere = self.models.lacked, self.models.known
        self.directory = None if fleet.sharing.directory is None else self._directory(link, fleet, replica)
        self.members.call = lambda: self.hints.send(roll=True)
        poller.unhinted = self.hints.verify
        if (carrier := store.hints(self.members.incarnation, self.hints.heard, self.hints.changed)) is not None:
            self.hints.add(carrier)
        if redis is not None:
            self.hints.add(RedisHints(redis, self.members.incarnation, self.hints.heard, self.hints.changed, SystemEntropy()))
            store.subscribe(self.hints.written)

    def _directory(self, link: StoreLink, fleet: Fleet, replica: str) -> SharedDirectory:
        """The registry that the replicas share."""
        store, members = link.store, self.members
        noting = Noting(fleet.registry_folder, store.directory_models, replica)
        parts = (fleet.registry_folder, store.model_uses, noting, store, replica, members.holder, fleet.models_used)
        made = SharedDirectory(*parts, lambda: members.serving, lambda: fleet.on_change())
        fleet.files.neighbours, fleet.files.trust.notes, fleet.on_lacking = made, noting, made.lacked
        return made

    def start(self, data: str, admin: str, workers: int = 0) -> None:
        """data, admin: the addresses of the listeners. Raises ConfigError where model files cannot be shared."""
        self.hints.start()
        self.members.start(data, admin, workers)
        self._jobs.start()
        self.models.start()
        if self.directory is not None:
            self.directory.start()

    def _sure(self, sure: bool) -> None:
        self._poller.relaxed = sure
        self._poller.look()

    async def aclose(self) -> None:
        """Gives back what it holds, and leaves the roll."""
        self.endpoints.close()
        await self.models.aclose()
        if self.directory is not None:
            await self.directory.aclose()
        await self.hints.aclose()
        await self._jobs.aclose()
        await self.members.aclose()
