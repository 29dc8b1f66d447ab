"""A registry of model files in a directory that several replicas mount (docs/models.md): one of them at a time moves files there, and none
deletes or replaces what an engine of another one uses.

Whose turn it is, and who uses what, stands in the gateways' store. A file system cannot refuse a replica that was paused in its turn and
taken over; so each step looks at the time first, nothing is ever overwritten, and what is deleted stays in a grave for a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from engines.host.catalogue import graves, moves
from engines.host.catalogue.graves import Grave
from engines.host.catalogue.install import INCOMING
from gateway.app.shared_models.noting import Noting
from gateway.app.shared_models.stowing import Leases
from gateway.core.errors import ConfigError, GatehouseError, LeaseLost
from gateway.core.modelshare import NotedModel, Turn
from gateway.core.storage import Lease
from gateway.core.tasks import TaskOwner
from gateway.store.model_uses import StoredModelUses, Uses

T = TypeVar("T")
log = logging.getLogger("gatehouse.models")
PATH: Final = "model_sharing.directory"
MARK: Final = ".gatehouse-models"
"""The file by which the directory is known."""
LEASE: Final = "model-directory"
HOLD: Final = 20.0
"""Seconds for which a turn lasts without being renewed."""
SURE: Final = 15.0
"""Seconds after its last renewal in which a step may begin."""
WAIT: Final = 30.0
"""Seconds to wait for a turn: long enough for the turn of a killed replica to expire."""
AGAIN: Final = 0.1
LOOK_SECONDS: Final = 2.0
TELL_SECONDS: Final = 10.0
"""Between two times that a replica says what it uses, if that does not change."""
AWAY_SECONDS: Final = 300.0
"""A replica that has said nothing for so long does not keep others from deleting what it used."""
KEPT_SECONDS: Final = 86400.0
"""How long models that a lost replica used stay in their graves, and what it was about to add stays where it is."""
GRACE: Final = 60.0
"""The least time that a grave is kept: a replica that has begun to use a model may not have said so yet."""
TIDY_EVERY: Final = 30
MAX_WANTED: Final = 1000


class SharedDirectory:
    """root: the directory. engines: (name, absolute path of its model) of this replica. serving: ids of the replicas that serve. arrived:
    called when a model is there that was lacked. holder: this process, unlike every other. Implements
    gateway.core.modelshare.Neighbours. Life: `begin` once the store has been started, `start`, `aclose`."""

    def __init__(
        self,
        root: Path,
        stored: StoredModelUses,
        noting: Noting,
        leases: Leases,
        replica: str,
        holder: str,
        engines: Callable[[], Iterable[tuple[str, str]]],
        serving: Callable[[], Collection[str]],
        arrived: Callable[[], None],
    ) -> None:
        self._root, self._stored, self.noting, self._leases = root, stored, noting, leases
        self._replica, self._holder, self._engines, self._serving, self._arrived = replica, holder, engines, serving, arrived
        self.mark = f"{replica}."
        self._known = ""
        """What the file MARK holds."""
        self._uses = Uses(0.0, ())
        self._told: tuple[tuple[str, str], ...] | None = None
        self._told_at = 0.0
        self._wanted: set[str] = set()
        self._one = asyncio.Lock()
        self._owner = TaskOwner("model directory")
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="gatehouse-model-directory")

    # --- life

    async def begin(self) -> None:
        """Raises ConfigError where it is not the others' directory, or not writable; StoreUnavailable."""
        if not await self._in_thread(self._root.is_dir):
            raise ConfigError(f"there is no directory {self._root}", path=PATH)
        async with self._turn(check=False):
            noted, found = await self._stored.directory(), await self._in_thread(self._mark)
            if noted is None:
                found = found or await self._in_thread(self._make_mark)
                noted = await self._stored.directory(found)
            if found != noted:
                raise ConfigError(
                    f"{self._root} is not the directory that the replicas of this store share: {'another' if found else 'no'} "
                    f"{MARK} is there. Is it mounted? Whoever moves the models to another directory moves that file with them",
                    path=PATH,
                )
            self._known = noted
            await self.noting.begin()
            with suppress(OSError):  # it is full, or will be written when somebody adds a model
                await self._in_thread(partial(graves.spare, self._root))

    def start(self) -> None:
        log.info("model files are in the directory %s, which replicas share", self._root)
        self._owner.spawn(self._look(), name="look")

    async def aclose(self) -> None:
        await self._owner.aclose()
        with suppress(GatehouseError):  # it is away for the others after a time
            await self._stored.leave(self._replica, self._holder)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def _mark(self) -> str:
        """Raises ConfigError."""
        try:
            return (self._root / MARK).read_bytes()[:64].decode("ascii", "replace").strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise ConfigError(f"{self._root / MARK} cannot be read: {error.strerror}", path=PATH) from None

    def _make_mark(self) -> str:
        """Raises ConfigError."""
        made, beside = secrets.token_hex(16), self._root / f"{MARK}.new"
        try:
            beside.write_text(f"{made}\n", encoding="ascii")
            moves.sync(beside)
            moves.rename(beside, self._root / MARK)
            moves.sync(self._root)
        except OSError as error:
            raise ConfigError(f"nothing can be written into {self._root}: {error.strerror}", path=PATH) from None
        return made

    # --- gateway.core.modelshare.Neighbours

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        async with self._turn() as turn:
            yield turn

    @asynccontextmanager
    async def _turn(self, *, check: bool = True, wait: float | None = None) -> AsyncIterator[Turn]:
        """wait: for how long it is waited for. Raises GatehouseError."""
        async with self._one:  # the store gives a lease again to the process that holds it
            held = await self._taken(time.monotonic() + (WAIT if wait is None else wait))
            async with self._kept(held):
                if check:
                    await self._sound()
                yield Turn(held.lease.expires - HOLD, held.sure)

    async def _taken(self, end: float) -> _Held:
        """Raises GatehouseError."""
        while True:
            began = time.monotonic()
            lease = await self._leases.take_lease(LEASE, self._holder, HOLD)
            if lease is not None:
                return _Held(lease, began)
            if time.monotonic() >= end:
                raise GatehouseError(
                    "Another replica is moving model files in the directory that they share; try again.",
                    status=503,
                    code="overloaded",
                    retry_after=5.0,
                )
            await asyncio.sleep(AGAIN)

    @asynccontextmanager
    async def _kept(self, held: _Held) -> AsyncIterator[None]:
        """Renews the lease, and gives it back."""
        renewing = self._owner.spawn(self._renew(held), name="renew")
        try:
            yield
        finally:
            held.until = 0.0
            renewing.cancel()
            await asyncio.wait((renewing,))
            with suppress(GatehouseError):  # it ends by itself
                await self._leases.finish_lease(held.lease, done=False)

    async def _renew(self, held: _Held) -> None:
        while True:
            await asyncio.sleep(HOLD / 4)
            now = time.monotonic()
            with suppress(GatehouseError):  # `sure` tells when it is too late
                held.lease = await self._leases.renew_lease(held.lease, HOLD)
                held.until = now + SURE

    async def _sound(self) -> None:
        """It is still the same directory, and nothing in it is half done. Raises GatehouseError."""
        try:
            async with asyncio.timeout(SURE):
                if await self._in_thread(self._mark) != self._known:
                    raise GatehouseError(f"{self._root} is not there, or not the replicas' any more.", status=503, code="storage_failed")
                back = await self._in_thread(partial(graves.heal, self._root))
        except TimeoutError:
            raise GatehouseError(f"{self._root} does not answer.", status=503, code="storage_failed") from None
        except OSError as error:
            raise GatehouseError(f"{self._root}: the disk refused: {error.strerror}.", code="storage_failed") from None
        for path in back:
            log.warning("model %s was being deleted or replaced by a replica that ended: it is back", path)

    def describe(self, name: str, source: Path, go_on: Callable[[], bool]) -> NotedModel:
        return self.noting.describe(name, source, go_on)

    def adding(self, model: NotedModel | None) -> AbstractAsyncContextManager[None]:
        assert model is not None
        return self.noting.adding(model)

    async def removed(self, paths: Iterable[Path]) -> None:
        await self.noting.removed(paths)

    async def look(self) -> None:
        self._uses = await self._stored.every()

    def uses(self) -> list[tuple[str, str]]:
        """Not those of engines that this replica has, too: engines of the store are everybody's."""
        mine = set(self._mine())
        return [
            (f"{one.replica}/{use.engine}", str(self._root / use.path))
            for one in self._uses.replicas
            if one.replica != self._replica and one.seen >= self._uses.now - AWAY_SECONDS
            for use in one.uses
            if (use.engine, use.path) not in mine
        ]

    def _mine(self) -> tuple[tuple[str, str], ...]:
        """(engine, path in the directory)"""
        root = f"{self._root}{os.sep}"
        return tuple(sorted({(engine, path.removeprefix(root)) for engine, path in self._engines() if path.startswith(root)}))

    # --- rounds

    def lacked(self, name: str) -> None:
        """An engine needs a model that is not there. May be called in any thread."""
        if len(self._wanted) < MAX_WANTED:
            self._wanted.add(name)

    async def _look(self) -> None:
        round = 0
        while True:
            try:
                await self._tell()
                await self.noting.note_seen()
                await self._find()
                await self._tend(tidy=round % TIDY_EVERY == TIDY_EVERY - 1)
            except (GatehouseError, OSError) as error:
                log.debug("the directory of models could not be looked after: %s", error)
            except Exception:  # boundary: one failed round does not stop the next
                log.exception("the directory of models could not be looked after")
            round += 1
            await asyncio.sleep(LOOK_SECONDS)

    async def _tell(self) -> None:
        mine, now = self._mine(), time.monotonic()
        if mine != self._told or now - self._told_at >= TELL_SECONDS:
            self._uses = await self._stored.tell(self._replica, self._holder, mine)
            self._told, self._told_at = mine, now
        else:
            await self.look()

    async def _find(self) -> None:
        """Looks for what was lacked: another replica may have added it."""
        wanted = list(self._wanted)
        there = await self._in_thread(lambda: [name for name in wanted if (self._root / name).exists()]) if wanted else []
        if there:
            self._wanted.difference_update(there)
            self._arrived()

    async def _tend(self, *, tidy: bool) -> None:
        """Ends what replicas that are gone have begun."""
        if await self._in_thread(partial(graves.unfinished, self._root)) and not self._one.locked():
            async with self._turn(wait=0.0):  # which puts back what is half done
                pass
        if tidy:
            await self._stored.forget(KEPT_SECONDS)
            await self.look()
            await self._in_thread(partial(graves.clear, self._root, self._over))
            with suppress(OSError):
                await self._in_thread(partial(graves.spare, self._root))
            await self._in_thread(partial(self._sweep, frozenset(self._serving())))

    def _over(self, grave: Grave) -> bool:
        """Whether no replica can still be reading the files in it."""
        until = grave.moment + GRACE
        kept = (use for one in self._uses.replicas for use in one.uses if use.since <= until)
        return self._uses.now > until and not any(
            use.path == path or use.path.startswith(f"{path}/") for use in kept for path in grave.paths
        )

    def _sweep(self, serving: Collection[str]) -> None:
        """Removes what replicas that do not serve any more were about to add."""
        for path in self._root.glob(f"{INCOMING}*"):
            replica, dot, _ = path.name.removeprefix(INCOMING).partition(".")
            with suppress(OSError):
                if dot and replica not in serving and path.lstat().st_ctime < time.time() - KEPT_SECONDS:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


class _Held:
    """until: monotonic seconds up to which a step may begin."""

    def __init__(self, lease: Lease, began: float) -> None:
        self.lease, self.until = lease, began + SURE

    def sure(self) -> None:
        """Raises LeaseLost."""
        if time.monotonic() > self.until:
            raise LeaseLost("This replica was too slow, so that another one may be moving model files now; try again.")
