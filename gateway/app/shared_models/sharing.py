"""Model files that replicas on one store share (docs/models.md): tells what this one has, fetches what it lacks, deletes what was deleted.
A store of model files (`stowing`) is one more that has them.

What a model is to be stands in the store (`SharedModel`), with who has it. Each replica compares that with its own registry, again and
again, so nothing depends on a message: one that was away catches up. It deletes only what it had told the others that it has.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engines.host.catalogue.library import Library
from gateway.app.shared_models.arrival import Arrival, BucketSource, NotHere, PeerSource, Source
from gateway.app.shared_models.bucket import Bucket
from gateway.app.shared_models.credentials import Credentials, folder_of
from gateway.app.shared_models.offering import Offering
from gateway.app.shared_models.stowing import Leases, Stowing
from gateway.core.errors import ConfigError, GatehouseError, NotFound, VersionMismatch
from gateway.core.modelfiles import UploadSettings, kind_of, model_of
from gateway.core.modelshare import BUCKET, UNREACHED, Copy, LocalModel, SharedModel, problem_of
from gateway.core.specs.fleet import ModelSharingSpec
from gateway.core.tasks import TaskOwner
from gateway.store.model_copies import StoredModelCopies

log = logging.getLogger("gatehouse.models")
LOOK_SECONDS: Final = 2.0
AGAIN: Final = 15.0
"""Between two tries to fetch a model that could not be fetched."""
REFUSED: Final = 300.0
"""The same for one that came whole and was refused: what the store names is unlikely to be better soon."""
WANTED_SECONDS: Final = 3600.0
"""How long a model that an engine lacked is looked for, unless it is asked for again."""
ANY: Final = ("0.0.0.0", "::")
MAX_WANTED: Final = 1000
TIDY_EVERY, FORGET_EVERY = 30, 1800
"""Looks between two."""
FOLDER: Final = "arriving"
Record = Callable[[str, str, dict[str, Any]], None]


@dataclass
class _Wanted:
    """A model that this replica lacks. until: monotonic seconds. after: of the next try, unless it is another one than `failed` by then."""

    until: float
    after: float = 0.0
    problem: str = ""
    failed: str = ""


class ModelSharing:
    """secret: derives 32 bytes from the store's pepper for a purpose. settings: read once. reserve: bytes of the disk that stay free.
    record: (event, model, detail) for the audit log. arrived: called when a model came. leases, holder: as for `Stowing`. Implements
    Sharing and ModelCopies of gateway.core.modelshare. Life: `start` once the store has been, `aclose`."""

    def __init__(
        self,
        stored: StoredModelCopies,
        secret: Callable[[str], bytes],
        library: Library,
        state_dir: Path,
        replica: str,
        settings: ModelSharingSpec,
        reserve: Callable[[], int],
        record: Record,
        arrived: Callable[[], None],
        leases: Leases,
        holder: str,
    ) -> None:
        self._stored, self._secret, self._leases, self._holder = stored, secret, leases, holder
        self._library, self._replica, self._settings = library, replica, settings
        self._state_dir, self._reserve, self._record, self._arrived = state_dir, reserve, record, arrived
        self._folder = state_dir / FOLDER
        self._owner = TaskOwner("shared models")
        self._wake = asyncio.Event()
        self._shared: dict[str, SharedModel] = {}
        self._here: dict[str, LocalModel] = {}
        self._wanted: dict[str, _Wanted] = {}
        self._arrivals: dict[str, Arrival] = {}
        self._adopting: list[UploadSettings] = []
        self._replaced: dict[str, bool] = {}
        """Models that people placed here and that the store does not know of yet: whether another one was to be replaced."""
        self._refused: dict[str, str] = {}
        """Models of this machine that are not shared, and why."""
        self._credentials: Credentials | None = None
        self._offering: Offering | None = None
        self.stowing: Stowing | None = None
        self._address = ""
        self._sums: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Raises ConfigError where it cannot listen, and for a store of model files that cannot be used."""
        settings = self._settings
        if settings.listen is None and settings.store is None:
            return
        if settings.store is not None:
            bucket = Bucket(settings.store, settings.parallel + 2)
            self.stowing = Stowing(bucket, self._stored, self._leases, self._holder, self._record, self._wake.set)
        self._address = UNREACHED if settings.listen is None else self._offer_at(settings.listen)
        self._library.sharing, self._loop = self, asyncio.get_running_loop()
        log.info("model files are shared with other replicas, which are told %s", self._address)
        self._owner.spawn(self._look(), name="compare")

    def _offer_at(self, listen: str) -> str:
        """Listens, and returns the address that others are told. Raises ConfigError."""
        try:
            secret = self._secret("authority of replicas")
            self._credentials = Credentials(secret, folder_of(self._state_dir), self._replica)
        except OSError as error:
            raise ConfigError(f"the certificate for other replicas cannot be kept: {error}", path="state_dir") from None
        self._offering = Offering(self._credentials, self._library.local)
        port = self._offering.start(listen)
        host = listen.rpartition(":")[0]
        reached = socket.gethostname() if host.strip("[]") in ANY else host
        return self._settings.address or f"{reached}:{port}"

    async def aclose(self) -> None:
        await self._owner.aclose()
        if self.stowing is not None:
            await self.stowing.aclose()
        if self._offering is not None:
            await self._offering.aclose()

    # --- what is asked of it

    def lacked(self, name: str) -> None:
        """Somebody needs a model that is not here. May be called in any thread."""
        if self._loop is not None and "/" not in name:
            self._loop.call_soon_threadsafe(self._want, name)

    def _want(self, name: str) -> None:
        if name not in self._wanted and len(self._wanted) >= MAX_WANTED:
            return
        until = time.monotonic() + WANTED_SECONDS
        if name in self._wanted:
            self._wanted[name].until = until
        else:
            self._wanted[name] = _Wanted(until)
            self._wake.set()

    async def known(self, name: str) -> bool:
        """Whether another replica has a model that is not here. Raises StoreUnavailable."""
        if self._loop is None:
            return False
        if name not in self._shared:
            self._shared = await self._stored.every()
        found = self._shared.get(name)
        return found is not None and not found.removed

    async def contents(self, name: str) -> tuple[Path, list[tuple[Path, int, str]]]:
        """As the library's; one that another replica has is fetched. Raises NotFound until it is here."""
        try:
            return await self._library.contents(name)
        except NotFound:
            shared = self._shared.get(name)
            self.lacked(name)
            if shared is None or shared.removed:
                raise
            raise NotFound(f"The model file {name!r} is on its way from another replica.") from None

    async def view(self) -> list[dict[str, Any]]:
        """Each model with who has it and what it is here. Raises StoreUnavailable."""
        if self._loop is None:
            return []
        shared = await self._stored.every()
        here = {model.name: model for model in await self._library.local()}
        return [self._shown(one, here.get(name)) for name, one in sorted(shared.items()) if not one.removed or one.copies]

    def _shown(self, one: SharedModel, here: LocalModel | None) -> dict[str, Any]:
        arrival, wanted = self._arrivals.get(one.name), self._wanted.get(one.name)
        same = here is not None and here.digest == one.digest
        state = "here" if same else "fetching" if arrival is not None else "differs" if here is not None else "absent"
        if one.removed:
            state = "removed"
        have = [copy for copy in one.copies if copy.digest == one.digest and copy.address]
        unstored = None if self.stowing is None else self.stowing.problems.get(one.name)
        return {
            "name": one.name,
            "revision": one.revision,
            "digest": one.digest,
            "size": one.size,
            "replicas": [copy.replica for copy in have if not copy.replica.startswith(BUCKET)],
            "away": [copy.replica for copy in one.copies if copy.away],
            "stored": any(copy.replica.startswith(BUCKET) for copy in have),
            "state": state,
            "fetched": 0 if arrival is None else arrival.have,
            "source": None if arrival is None else arrival.source or None,
            "problem": self._refused.get(one.name) or ("" if wanted is None else wanted.problem) or unstored,
            "changed_at": one.changed,
        }

    def store(self) -> dict[str, Any] | None:
        if self.stowing is None:
            return None
        bucket = self.stowing.bucket
        since = None if bucket.problem is None else bucket.since
        return {"place": bucket.name, "up": bucket.problem is None, "problem": bucket.problem, "since": since}

    async def forget(self, replica: str, *, dry_run: bool = False) -> int:
        if self._loop is None or not any(one.copy_of(replica) for one in (await self._stored.every()).values()):
            raise NotFound(f"No replica {replica[:64]!r} is known to have a model file.", param="replica")
        count = None if replica == self._replica or replica.startswith(BUCKET) else await self._stored.leave(replica, dry_run=dry_run)
        if count is None:
            raise GatehouseError(f"The replica {replica!r} is there; only one that is away can be forgotten.", status=409, code="in_use")
        if not dry_run:
            self._record("model_copies_forgotten", replica, {"models": count})
            self._wake.set()
        return count

    def collect(self) -> Iterator[Metric]:
        """For `Metrics.gauges`."""
        if self.stowing is not None:
            bucket = self.stowing.bucket
            up = float(bucket.problem is None)
            yield GaugeMetricFamily("gatehouse_model_store_up", "Whether the store of model files works", value=up)
            yield CounterMetricFamily(
                "gatehouse_model_store_failures", "Calls to the store of model files that failed", value=bucket.failures
            )

    # --- gateway.core.modelshare.Sharing

    async def admit(self, settings: UploadSettings) -> None:
        if any(one is settings for one in self._adopting) or settings.replace:
            return
        found = (await self._stored.every()).get(model_of(settings.name))
        if found is None or found.removed or self._has(found, settings) or self._holds(found):
            return
        who = ", ".join(copy.replica for copy in found.copies if copy.digest == found.digest) or "other replicas"
        raise GatehouseError(
            f"There is another model {found.name!r} on {who} already; say that it may be replaced, or take another name.",
            status=409,
            code="already_exists",
            param="name",
        )

    @staticmethod
    def _has(found: SharedModel, settings: UploadSettings) -> bool:
        return any((file.path, file.sha256) == (settings.name, settings.sha256) for file in found.files)

    def _holds(self, found: SharedModel) -> bool:
        """Whether this replica has it, or had: the library has checked then whether it may be added to."""
        copy = found.copy_of(self._replica)
        return copy is not None and copy.digest == found.digest and bool(copy.address)

    async def added(self, settings: UploadSettings) -> None:
        if any(one is settings for one in self._adopting):
            return
        name = model_of(settings.name)
        self._replaced[name] = settings.replace or self._replaced.get(name, False)
        try:
            await self._publish()
        except GatehouseError as error:
            log.warning("the other replicas could not be told yet that the model %s is here: %s", name, error.message)
            self._wake.set()

    async def removing(self, name: str) -> None:
        await self._stored.remove(name, self._replica)

    async def remove_elsewhere(self, name: str, *, dry_run: bool) -> dict[str, Any] | None:
        one = (await self._stored.every()).get(name)
        if one is None or one.removed or problem_of(name, one.files) is not None:
            return None
        if not dry_run:
            if not await self._stored.remove_elsewhere(name, one.digest):
                raise VersionMismatch(f"The model {name!r} has changed.")
            self._wake.set()
        kind = "folder" if kind_of(name) == "folder" else "split" if len(one.files) > 1 else "file"
        parts = [{"name": file.path, "size": file.size, "sha256": file.sha256} for file in one.files]
        told = {"name": name, "runtime": "", "source": "elsewhere", "format": kind, "size": one.size, "files": len(parts)}
        return {**told, "modified_at": one.changed, "version": one.digest, "sha256": one.files[0].sha256, "parts": parts}

    async def _publish(self) -> None:
        """Tells of the models that people have placed here. Raises GatehouseError."""
        local = {model.name: model for model in await self._library.local()}
        for name, replaces in list(self._replaced.items()):
            here = local.get(name)
            if here is not None and here.files is not None and problem_of(name, here.files) is None:
                made = await self._stored.publish(name, here.files, self._replica, self._address, placed=True, replaces=replaces)
                if made.digest != here.digest:
                    log.warning("another replica has added another model %s at the same time: this one's is not shared", name)
                else:
                    self._record("model_shared", name, {"digest": made.digest, "bytes": made.size})
            if here is None or here.files is not None:
                self._replaced.pop(name, None)

    # --- the comparison

    async def _look(self) -> None:
        round = 0
        while True:
            self._wake.clear()  # before the comparison: what comes while it goes on may be more than it looked at
            try:
                await self._compare(tidy=round % TIDY_EVERY == 0)
                if round % FORGET_EVERY == 0:
                    await self._stored.forget()
            except GatehouseError as error:
                log.debug("the shared models could not be compared: %s", error.message)
            except Exception:  # boundary: one failed round does not stop the next
                log.exception("the shared models could not be compared")
            round += 1
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _compare(self, *, tidy: bool) -> None:
        if self._credentials is not None:
            await asyncio.to_thread(self._credentials.renew, datetime.now(UTC))
        if tidy:
            await self._stored.there(self._replica)
        await self._publish()
        shared = await self._stored.every()
        here = {model.name: model for model in await self._library.local()}
        self._shared, self._here = shared, here
        if tidy:
            lacking = {model.digest for name, model in shared.items() if not model.removed and name not in here}
            await asyncio.to_thread(self._tidy, lacking | {arrival.model.digest for arrival in self._arrivals.values()})
        for one in shared.values():
            await self._settle(one, here.get(one.name))
        for name, model in here.items():
            if name not in shared:
                await self._offer(name, model)
        self._begin(shared, here)
        if self.stowing is not None:
            self.stowing.settle(shared, here)

    def _tidy(self, wanted: set[str]) -> None:
        """Removes partly fetched models that have arrived since, or that nobody has any more."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name not in wanted:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    async def _settle(self, one: SharedModel, here: LocalModel | None) -> None:
        """Brings the store's row of this replica's copy, or the copy, to what it must be."""
        mine = one.copy_of(self._replica)
        if one.name in self._arrivals or one.name in self._replaced:
            return
        if here is not None and here.files is None:
            if mine is not None:
                self._compute(one.name)
            return
        if mine is None:
            if here is not None and not one.removed:
                await self._joins(one, here)
            return
        if here is None or here.digest != mine.digest:  # it is gone from here, or somebody has changed it
            await self._stored.drop(one.name, self._replica)
        elif one.removed or mine.digest != one.digest:
            await self._withdraw(one, here)
        elif mine.address != self._address:
            await self._stored.hold(one.name, one.digest, self._replica, self._address)

    async def _joins(self, one: SharedModel, here: LocalModel) -> None:
        if here.digest == one.digest:
            self._refused.pop(one.name, None)
            await self._stored.hold(one.name, one.digest, self._replica, self._address)
        elif one.name not in self._refused:
            self._refused[one.name] = "another model of this name is here, which is not shared"
            log.warning("model %s: another one of this name is here, which is not shared", one.name)

    async def _withdraw(self, one: SharedModel, here: LocalModel) -> None:
        """It was deleted or replaced at another replica: this copy goes, unless an engine uses it; then later."""
        try:
            await self._library.withdraw(one.name, here.version)
        except GatehouseError as error:
            self._refused[one.name] = error.message
            return
        self._refused.pop(one.name, None)
        why = "removed" if one.removed else "replaced"
        log.info("model %s was %s at another replica: the copy here is deleted", one.name, why)
        self._record("model_withdrawn", one.name, {"digest": here.digest, "why": why})
        await self._stored.drop(one.name, self._replica)

    async def _offer(self, name: str, here: LocalModel) -> None:
        """A model that was put into the registry by hand, or was there before models were shared."""
        if here.files is None:
            if name not in self._refused and "/" not in name:
                self._compute(name)
            return
        problem = problem_of(name, here.files)
        if problem is not None:
            self._refused[name] = problem
            return
        await self._stored.publish(name, here.files, self._replica, self._address, placed=False, replaces=False)

    def _compute(self, name: str) -> None:
        """Its checksums, one model at a time."""
        if self._sums is None or self._sums.done():
            self._sums = self._owner.spawn(self._checksum(name), name="checksum")

    async def _checksum(self, name: str) -> None:
        try:
            await self._library.checksum(name)
        except GatehouseError as error:
            log.debug("the checksum of %s: %s", name, error.message)
        self._wake.set()

    # --- fetching

    async def _source(self, holder: Copy, digest: str) -> Source:
        """Raises NotHere."""
        if holder.replica.startswith(BUCKET):
            assert self.stowing is not None
            return BucketSource(self.stowing.bucket, digest)
        if self._credentials is None:
            raise NotHere("this replica has no model_sharing.listen, so it asks no other")
        return await PeerSource.of(holder, digest, self._credentials.tls)  # as it is at present: it is renewed

    async def _bad(self, model: SharedModel, holder: Copy, why: str) -> None:
        if self.stowing is not None and holder.replica == self.stowing.bucket.name:
            await self.stowing.bad(model.name, model.digest, why)

    def _holders(self, model: SharedModel) -> list[Copy]:
        """Whom to ask: the store of model files, then the replicas, not all at the same one first; those that are away last."""
        copies = [one for one in model.copies if one.digest == model.digest and one.address not in ("", UNREACHED)]
        peers = [one for one in copies if one.replica != self._replica and not one.replica.startswith(BUCKET)]
        start = sum(self._replica.encode()) % max(1, len(peers))
        peers = sorted(peers[start:] + peers[:start], key=lambda one: one.away)
        return ([] if self.stowing is None else self.stowing.holder(model.copies, model.digest)) + peers

    def _begin(self, shared: dict[str, SharedModel], here: dict[str, LocalModel]) -> None:
        now = time.monotonic()
        if self._settings.fetch == "all":
            for name, one in shared.items():
                if not one.removed and name not in here:
                    self._wanted.setdefault(name, _Wanted(now + WANTED_SECONDS)).until = now + WANTED_SECONDS
        for name, wanted in list(self._wanted.items()):
            if name in here or wanted.until < now:
                self._wanted.pop(name)
                if name in here:
                    self._arrived()
                continue
            model = shared.get(name)
            if name in self._arrivals or model is None or model.removed or (now < wanted.after and wanted.failed == model.digest):
                continue
            if len(self._arrivals) >= self._settings.parallel:
                return
            problem = problem_of(name, model.files)
            unsigned = self._library.trust.lacking(name, [file.path for file in model.files])
            if problem is not None or unsigned is not None:
                wanted.problem = f"The store names a model that cannot be: {problem}." if problem else f"{unsigned}."
                wanted.after, wanted.failed = now + AGAIN, model.digest
                continue
            self._arrivals[name] = arrival = Arrival(
                model, self._folder, self._library, self._reserve, self._source, partial(self._bad, model)
            )
            self._owner.spawn(self._fetch(arrival, wanted), name=f"fetch {name}")

    async def _fetch(self, arrival: Arrival, wanted: _Wanted) -> None:
        model, began = arrival.model, time.monotonic()
        try:
            paths = await arrival.fetch(self._holders(model))
            await self._adopt(arrival, paths)
        except GatehouseError as error:
            if wanted.problem != error.message:
                log.warning("model %s: %s", model.name, error.message)
                self._record("model_fetch_failed", model.name, {"digest": model.digest, "reason": error.message})
            pause = REFUSED if error.status == 422 else AGAIN
            wanted.problem, wanted.after, wanted.failed = error.message, time.monotonic() + pause, model.digest
            if error.status in (409, 422):  # it will be no better with these bytes
                await arrival.clear()
        else:
            seconds = time.monotonic() - began
            log.info("model %s came from %s: %d bytes in %.1f s", model.name, arrival.source, model.size, seconds)
            self._record("model_fetched", model.name, {"digest": model.digest, "bytes": model.size, "from": arrival.source})
            self._wanted.pop(model.name, None)
            self._arrived()
        finally:
            self._arrivals.pop(model.name, None)
            self._wake.set()

    async def _adopt(self, arrival: Arrival, paths: list[Path]) -> None:
        """Raises GatehouseError."""
        model = arrival.model
        parcels = await arrival.parcels(paths)
        # From here on this replica is told of a deletion: what comes into the registry goes with the others'.
        if not await self._stored.hold(model.name, model.digest, self._replica, ""):
            raise GatehouseError(f"The model {model.name!r} was removed or replaced meanwhile.", status=409, code="model_invalid")
        for path, settings in parcels:
            self._adopting.append(settings)
            try:
                await self._library.adopt(path, settings, actor=f"replica/{arrival.source}")
            finally:
                self._adopting[:] = [one for one in self._adopting if one is not settings]
        await arrival.clear()
