"""Model files on their way into the store of model files, and out of it: by one replica at a time, under a lease of the gateways' store.

What the store of model files has stands in the gateways' store like a replica's copies, under its name: first without an address, which
says that a replica is about to put it, so that whatever a crash leaves there is known and deleted with the model. That it is whole is only
written under the lease: a replica that was paused and taken over writes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol

from engines.host.catalogue.checksums import Stopped
from gateway.app.shared_models.bucket import Bucket, Sent
from gateway.core.errors import GatehouseError, LeaseLost
from gateway.core.modelshare import Copy, LocalModel, SharedModel
from gateway.core.storage import Lease
from gateway.core.tasks import TaskOwner
from gateway.store.model_copies import StoredModelCopies

log = logging.getLogger("gatehouse.models")
HOLD: Final = 20.0
"""Seconds for which a lease lasts without being renewed."""
AGAIN: Final = 15.0
"""Seconds between two tries with a model after a failure."""
LEASES: Final = "model-store-"
"""How their names begin; the first digit of the model's digest ends them, so that sixteen models may be on their way at once."""
Work = Callable[[Lease], Coroutine[Any, Any, None]]


class Leases(Protocol):
    """As gateway.core.storage.ControlStore has them."""

    async def take_lease(self, name: str, holder: str, seconds: float, *, period: float = 0.0) -> Lease | None: ...
    async def renew_lease(self, lease: Lease, seconds: float) -> Lease: ...
    async def finish_lease(self, lease: Lease, *, done: bool) -> None: ...


class Stowing:
    """holder: this process, unlike every other. record: (event, model, detail) for the audit log. wake: has the replica compare again."""

    def __init__(
        self,
        bucket: Bucket,
        stored: StoredModelCopies,
        leases: Leases,
        holder: str,
        record: Callable[[str, str, dict[str, Any]], None],
        wake: Callable[[], None],
    ) -> None:
        self.bucket, self._stored, self._leases, self._holder = bucket, stored, leases, holder
        self._record, self._wake = record, wake
        self._owner = TaskOwner("model store")
        self._task: asyncio.Task[None] | None = None
        self._after: dict[str, float] = {}
        """Monotonic seconds from which on a model may be tried again."""
        self._failed: dict[str, float] = {}
        """When each model last failed. Models that failed wait behind the others, so that one that always fails holds up none."""
        self.problems: dict[str, str] = {}
        """Models that could not be put or deleted, and why."""
        bucket.on_change = self._changed

    async def aclose(self) -> None:
        await self.bucket.aclose()
        await self._owner.aclose()

    def _changed(self, problem: str | None) -> None:
        place = self.bucket.name
        if problem is None:
            log.info("the store of models %s works again", place)
            self._record("model_store_back", place, {})
        else:
            log.warning("the store of models %s: %s; model files come from the other replicas until it works again", place, problem)
            self._record("model_store_failed", place, {"reason": problem})

    def holder(self, copies: tuple[Copy, ...], digest: str) -> list[Copy]:
        """The store as one to ask for a model, first of all, if it has it whole and did not just fail."""
        return [copy for copy in copies if copy.replica == self.bucket.name and copy.digest == digest and copy.address and self._works()]

    def _works(self) -> bool:
        return not self.bucket.resting

    async def bad(self, name: str, digest: str, why: str) -> None:
        """The bucket's copy of a model is missing or altered: forgets it, so that a replica that has the model uploads it again. Raises
        StoreUnavailable."""
        self._record("model_store_altered", name, {"digest": digest, "reason": why})
        await self._stored.drop(name, self.bucket.name, digest)

    def settle(self, shared: dict[str, SharedModel], here: dict[str, LocalModel]) -> None:
        """Begins the next thing that is to be done there, if there is one."""
        if self._task is not None and not self._task.done():
            return
        now = time.monotonic()
        self._after = {name: moment for name, moment in self._after.items() if moment > now}
        self.problems = {name: why for name, why in self.problems.items() if name in shared}
        self._failed = {name: moment for name, moment in self._failed.items() if name in shared}
        if not self._works():
            return
        waits = False
        for one in sorted(shared.values(), key=lambda one: self._failed.get(one.name, 0.0)):
            there = one.copy_of(self.bucket.name)
            model = here.get(one.name)
            if there is not None and (one.removed or there.digest != one.digest):
                digest, work, what = there.digest, self._take_out(one.name, there.digest), "take out"
            elif not one.removed and (there is None or not there.address) and model is not None and model.digest == one.digest:
                digest, work, what = one.digest, self._put(one, model, again=there is not None), "put"
            else:
                continue
            if one.name not in self._after:
                self._task = self._owner.spawn(self._do(one.name, digest, work), name=what)
                return
            waits = True
        if self.bucket.problem is not None and not waits:  # others did it, and nothing else would find that it works again
            self._task = self._owner.spawn(self._look(), name="look")

    async def _look(self) -> None:
        with suppress(GatehouseError):
            await self.bucket.probe()
        self._wake()

    async def _do(self, name: str, digest: str, work: Work) -> None:
        """One thing, under the lease of its model; `work` takes the lease."""
        try:
            lease = await self._leases.take_lease(f"{LEASES}{digest[0]}", self._holder, HOLD)
            if lease is None:  # another replica is at it
                self._after[name] = time.monotonic() + HOLD / 4
                return
            await self._leased(work, lease)
            self.problems.pop(name, None)
            self._failed.pop(name, None)
        except LeaseLost as error:
            log.warning("model %s and the store of models: %s", name, error.message)
            await self._tidy(name, digest)
            self._after[name] = time.monotonic() + AGAIN
        except (GatehouseError, OSError) as error:
            why = error.message if isinstance(error, GatehouseError) else f"The disk refused: {error.strerror}."
            self._failed[name] = time.monotonic()
            self._after[name] = self._failed[name] + AGAIN
            if self.problems.get(name) != why:
                log.warning("model %s and the store of models: %s", name, why)
            self.problems[name] = why
        except Stopped:
            return
        finally:
            self._wake()

    async def _tidy(self, name: str, digest: str) -> None:
        """What a replica that was paused has put there after somebody else had deleted it."""
        try:
            await self.bucket.settled()
            one = (await self._stored.every()).get(name)
            if one is None or ((one.removed or one.digest != digest) and one.copy_of(self.bucket.name) is None):
                await self.bucket.remove(digest)
        except GatehouseError as error:
            log.warning("what was put into %s for the model %s could not be deleted: %s", self.bucket.name, name, error.message)

    async def _leased(self, work: Work, lease: Lease) -> None:
        """Gives the lease back, whatever comes of the work: another replica may be able to do it. Raises what that does, and LeaseLost."""
        running = self._owner.spawn(work(lease), name="with lease")
        try:
            while not (await asyncio.wait((running,), timeout=HOLD / 4))[0]:
                await self._leases.renew_lease(lease, HOLD)
            await running
        finally:
            if not running.done():
                running.cancel()
                await asyncio.wait((running,))
            with suppress(GatehouseError):  # it ends by itself
                await self._leases.finish_lease(lease, done=False)

    def _put(self, one: SharedModel, here: LocalModel, *, again: bool) -> Work:
        async def work(lease: Lease) -> None:
            name, began, going = self.bucket.name, time.monotonic(), [True]
            if not await self._stored.hold(one.name, one.digest, name, "", lease):
                return
            at = dict(zip((file.path for file in here.files or ()), here.paths, strict=True))
            try:
                for number, file in enumerate(one.files):
                    sent = Sent(file, *at[file.path], one.name, lambda: bool(going))
                    await self.bucket.put(one.digest, number, sent, again=again)
            finally:
                going.clear()
            if not await self._stored.hold(one.name, one.digest, name, name, lease):
                await self._out(one.name, one.digest)  # it was removed or replaced meanwhile
                return
            seconds = time.monotonic() - began
            log.info("model %s was put into %s: %d bytes in %.1f s", one.name, name, one.size, seconds)
            self._record("model_stored", one.name, {"digest": one.digest, "bytes": one.size, "store": name})

        return work

    def _take_out(self, name: str, digest: str) -> Work:
        async def work(lease: Lease) -> None:
            await self._leases.renew_lease(lease, HOLD)
            await self._out(name, digest)
            log.info("model %s was deleted from %s", name, self.bucket.name)

        return work

    async def _out(self, name: str, digest: str) -> None:
        await self.bucket.remove(digest)
        await self._stored.drop(name, self.bucket.name, digest)
