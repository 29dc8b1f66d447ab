"""Data keys of the audit log's encryption in the process that has the store: made, opened by the master key, rotated, destroyed.

Each tenant has keys of its own, wrapped by the master key, in the store: whichever replica first needs one makes it, and of two that do so
at once one wins. What was destroyed is noted in the state directory too (`keys/audit-shredded`): should somebody put an older store back,
its keys are destroyed again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.audit.keyring import DataKey, KeyRing
from gateway.audit.masters import KEY_BYTES, bound_to, master_of, opened_by, wrap_key
from gateway.audit.opening import NO_SUCH_KEY, SHREDDED
from gateway.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from gateway.core.deadlines import within
from gateway.core.errors import AlreadyExists, ConfigError, GatehouseError, MasterUnavailable, NotFound, PermissionDenied, Shredded
from gateway.core.ports import Change
from gateway.core.secret import Secret
from gateway.core.specs.audit import EncryptionSpec
from gateway.core.storage import StoreChange
from gateway.core.tasks import TaskOwner
from gateway.core.vault import DataKeyGiven, DataKeyOpened, DataKeyRow, ShredPlan
from gateway.core.waiting import as_future
from gateway.store.data_keys import KIND, StoredDataKeys
from gateway.store.feed import CHANGE, RESYNC

log = logging.getLogger("gatehouse.audit")
TOMBSTONES: Final = "audit-shredded"
MANY: Final = 64
"""Ids that one event names."""
PREFIX: Final = "dk-"
TRIES: Final = 5
THREADS: Final = 4
"""That ask the master key: of their own, because those of everything else may be waiting for a key."""
LOOK_SECONDS: Final = 0.5
Record = Callable[..., None]


class Vault:
    """Life: `start` once the store has been started, then `heard` for the feed. Needs a running loop.

    ring: what this process encrypts with. dropped: called with the tenant whose keys have changed (None: any), for the workers.
    held (may block): says why a tenant's texts may not be destroyed (a legal hold), or "".
    """

    def __init__(
        self,
        settings: EncryptionSpec,
        kept: StoredDataKeys,
        state_dir: Path,
        base: Path,
        environ: Mapping[str, str],
        record: Record,
        owner: TaskOwner,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self._settings, self._kept, self._record, self._owner = settings, kept, record, owner
        self._clock: Clock = clock or SystemClock()
        self._entropy: Entropy = entropy or SystemEntropy()
        self._master = master_of(settings.master, base, environ)
        self._former = [master_of(one, base, environ) for one in settings.former]
        self._patience = settings.master.timeout + 1.0
        self._tombstones = Tombstones(state_dir / "keys" / TOMBSTONES)
        self.ring = KeyRing(self._fetch, owner, self._clock)
        self.dropped: list[Callable[[str | None], None]] = []
        self.held: Callable[[str], str] = lambda tenant: ""
        self.settle: Callable[[], Awaitable[None]] | None = None
        """Called before keys are destroyed: what must be read with them before."""
        self.forget: Callable[[str], Awaitable[int]] | None = None
        """Erases what is kept of a tenant besides its records, before its keys are destroyed; returns how many answers that was."""
        self._fault, self._failures = "", 0
        self._checked: tuple[str, Sequence[DataKeyRow]] | None = None
        self._destroying = asyncio.Lock()
        self._doomed = ""
        """The tenant whose keys are destroyed while the lock is held."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="gatehouse-master")

    # --- life

    async def start(self) -> None:
        """Raises ConfigError, StoreUnavailable."""
        current, rows = self._checked or await self.check()
        await self._bury(rows)
        self._record("audit.encryption", current, {"scope": self._settings.scope})

    async def check(self) -> tuple[str, Sequence[DataKeyRow]]:
        """Checks that the master key is there and is the one that wrapped the active keys. From then on there are keys: whoever needs
        them before `start` calls it first. Raises ConfigError, StoreUnavailable."""
        await asyncio.to_thread(self._tombstones.read)
        try:
            current = await self._ask(self._probe)
        except MasterUnavailable as error:
            raise ConfigError(f"the master key cannot be used: {error.message}", path="audit.encryption.master") from None
        known = {current}
        for one in self._former:
            try:
                known.add(await self._ask(one.id))
            except MasterUnavailable as error:
                log.warning("a former master key cannot be used: %s", error.message)
        rows = await self._kept.every()
        strange = sorted({row.master for row in rows if row.state != "shredded"} - known)
        if strange:
            count = sum(row.master in strange for row in rows if row.state != "shredded")
            raise ConfigError(
                f"{count} data keys of the store are wrapped by {', '.join(strange)}, and this master key is {current}; "
                "name the right one, or list the one before under `former`",
                path="audit.encryption.master",
            )
        self._checked = current, rows
        return self._checked

    def _probe(self) -> str:
        """The master's id, once it has wrapped and opened something."""
        noise = self._entropy.bytes(KEY_BYTES)
        if self._master.unwrap(self._master.wrap(noise)) != noise:
            raise MasterUnavailable("what it wraps it does not open")
        return self._master.id()

    def heard(self, change: Change) -> None:
        """For the feed: somebody has made, rotated or destroyed keys."""
        _, kind, payload = change
        if kind == RESYNC:
            self._drop(None)
        elif kind == CHANGE and isinstance(payload, StoreChange) and payload.kind == KIND:
            if payload.action != "created":
                self._drop(payload.name)
            if payload.action == "shredded":
                self._owner.spawn(self._learn(payload.name), name="shredded keys")

    def _drop(self, tenant: str | None) -> None:
        self.ring.drop(tenant)
        for tell in self.dropped:
            tell(tenant)

    async def _learn(self, tenant: str) -> None:
        """Notes here, too, what another replica has destroyed."""
        while True:
            try:
                rows = await self._kept.every([tenant])
                break
            except GatehouseError:
                await asyncio.sleep(LOOK_SECONDS)
        await self._bury(rows)

    async def _bury(self, rows: Sequence[DataKeyRow]) -> None:
        """Notes destroyed keys, and destroys again those that have come back, for example with a restored backup."""
        await asyncio.to_thread(self._tombstones.add, [row.id for row in rows if row.state == "shredded"])
        back: dict[str, list[str]] = {}
        for row in rows:
            if row.state != "shredded" and row.id in self._tombstones:
                back.setdefault(row.tenant, []).append(row.id)
        for tenant, ids in back.items():
            log.error("data keys of the tenant %r that were destroyed are in the store again: they are destroyed anew", tenant)
            await self._kept.shred(tenant, None)
            self._record("audit.keys_returned", tenant, {"tenant": tenant, "keys": ids[:MANY]}, outcome="failed")

    # --- encrypting

    async def give(self, tenant: str) -> DataKeyGiven:
        """Answers a worker: the key that encrypts for a tenant now. Raises MasterUnavailable, StoreUnavailable."""
        for _ in range(TRIES):
            key = self.ring.current(tenant)
            if not isinstance(key, DataKey):
                key = await as_future(key)
            try:
                secret = Secret(key.revealed())
            except Shredded:
                continue  # destroyed or replaced since it came
            return DataKeyGiven(id=key.id, tenant=tenant, version=key.version, key=secret, seconds=max(self.ring.left(tenant), 0.0))
        raise MasterUnavailable("the tenant's data keys change all the time")

    async def _fetch(self, tenant: str) -> DataKeyGiven:
        for _ in range(TRIES):
            if self._doomed == tenant:  # its next key is made once those before are gone: nothing fails meanwhile
                async with self._destroying:
                    pass
            row = await self._kept.current(tenant)
            if row is not None and row.id in self._tombstones:
                if self._doomed == tenant:
                    continue
                await self._bury([row])
                row = None
            key = None
            if row is None:
                row, key = await self._make(tenant, None)
            try:
                found = await self._opened(row) if key is None else key
            except Shredded:
                continue  # destroyed since it was read
            return DataKeyGiven(id=row.id, tenant=tenant, version=row.version, key=Secret(found.hex()), seconds=self._settings.cache)
        raise MasterUnavailable("the tenant's data keys are destroyed all the time")

    async def _make(self, tenant: str, replaces: DataKeyRow | None) -> tuple[DataKeyRow, bytes | None]:
        """A new key of a tenant, or the one that another process has made meanwhile, without its bytes."""
        for _ in range(TRIES):
            versions = [row.version for row in await self._kept.every([tenant])]
            id, version, key = f"{PREFIX}{self._entropy.bytes(12).hex()}", max(versions, default=0) + 1, self._entropy.bytes(KEY_BYTES)
            wrapped, master = await self._ask(self._wrapped, key, bound_to(tenant, id, version))
            row = DataKeyRow(id=id, tenant=tenant, version=version, state="active", master=master, wrapped=wrapped, created=0.0)
            try:
                return await self._kept.add(row, None if replaces is None else replaces.id), key
            except AlreadyExists:
                found = await self._kept.current(tenant)
                if found is not None and replaces is None:
                    return found, None
                if replaces is not None:
                    raise
        raise MasterUnavailable("a data key could not be made: others make some at the same time")

    def _wrapped(self, key: bytes, binding: bytes) -> tuple[str, str]:
        return wrap_key(self._master, key, binding), self._master.id()

    async def _opened(self, row: DataKeyRow) -> bytes:
        """Raises MasterUnavailable, ConfigError, Shredded."""
        if row.state == "shredded" or row.id in self._tombstones:
            raise Shredded(f"The data key {row.id} was destroyed.")
        opened: bytes = await self._ask(opened_by, (self._master, *self._former), row)
        return opened

    async def _ask(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Asks the master in a thread. Raises MasterUnavailable when it takes too long."""
        try:
            async with within(self._patience * (1 + len(self._former))):
                answer = await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        except MasterUnavailable as error:
            self._fault, self._failures = error.message, self._failures + 1
            raise
        except TimeoutError:
            self._fault, self._failures = f"the master key did not answer within {self._patience:g} s", self._failures + 1
            raise MasterUnavailable(self._fault) from None
        self._fault = ""
        return answer

    def troubles(self) -> Iterator[tuple[str, str, str]]:
        """For gateway.app.telemetry.troubles."""
        if self._fault:
            yield "master_key", "", self._fault

    async def key(self, id: str) -> tuple[DataKeyRow, DataKey]:
        """The key with this id, to decrypt what it has encrypted; callers do not keep it. Raises NotFound, Shredded, MasterUnavailable,
        ConfigError."""
        row = await self._kept.get(id)
        return row, DataKey(row.id, row.tenant, row.version, await self._opened(row))

    async def opening(self, id: str) -> DataKey | str:
        """A key by its id, or why it is gone for good. Raises MasterUnavailable, StoreUnavailable."""
        try:
            return (await self.key(id))[1]
        except Shredded:
            return SHREDDED
        except NotFound:
            return NO_SUCH_KEY
        except ConfigError as error:
            return error.message

    async def give_opened(self, id: str) -> DataKeyOpened:
        """The same for a worker."""
        found = await self.opening(id)
        if isinstance(found, str):
            return DataKeyOpened(why=found)
        key = Secret(found.revealed())
        found.drop()
        return DataKeyOpened(given=DataKeyGiven(id=found.id, tenant=found.tenant, version=found.version, key=key, seconds=0.0))

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("gatehouse_audit_master_up", "Whether the master key answers", value=float(not self._fault))
        yield CounterMetricFamily("gatehouse_audit_master_failures", "Questions that the master key did not answer", value=self._failures)
        yield GaugeMetricFamily("gatehouse_audit_data_keys", "Opened data keys that this process keeps for a while", value=self.ring.size)

    # --- for operators

    async def views(self, tenants: Sequence[str] | None) -> list[DataKeyRow]:
        return await self._kept.every(tenants)

    async def tenant_of(self, id: str) -> str:
        """Raises NotFound."""
        return (await self._kept.get(id)).tenant

    async def rotate(self, tenant: str | None, actor: str, *, dry_run: bool = False) -> list[DataKeyRow]:
        """New data keys for a tenant, or for all that have one; those before go on to open what they encrypted. Returns the new ones (in a
        dry run: those that would be retired). Raises NotFound for a tenant without keys, MasterUnavailable."""
        active = [row for row in await self._kept.every(None if tenant is None else [tenant]) if row.state == "active"]
        if tenant is not None and not active:
            raise NotFound(f"The tenant {tenant[:128]!r} has no data key.")
        if dry_run:
            return active
        made = []
        for row in active:
            try:
                made.append((await self._make(row.tenant, row))[0])
            except AlreadyExists:
                continue  # another process has rotated it just now
        if made:
            detail = {"tenant": tenant or "*", "keys": [row.id for row in made][:MANY], "count": len(made)}
            self._record("audit.keys_rotated", tenant or "*", detail, actor=actor)
        return made

    async def rewrap(self, actor: str, *, dry_run: bool = False) -> list[DataKeyRow]:
        """Wraps what a former master has wrapped by the present one. Returns those keys. Raises MasterUnavailable, ConfigError."""
        current = await self._ask(self._master.id)
        due = [row for row in await self._kept.every() if row.state != "shredded" and row.master != current]
        if dry_run:
            return due
        done = []
        for row in due:
            key = await self._opened(row)
            wrapped, master = await self._ask(self._wrapped, key, bound_to(row.tenant, row.id, row.version))
            if await self._kept.rewrap(row.id, row.wrapped, wrapped, master):
                done.append(msgspec.structs.replace(row, wrapped=wrapped, master=master))
        if done:
            detail = {"master": current, "keys": [row.id for row in done][:MANY], "count": len(done)}
            self._record("audit.keys_rewrapped", current, detail, actor=actor)
        return done

    async def plan(self, tenant: str) -> ShredPlan:
        """What shredding would destroy. Raises NotFound for a tenant without keys."""
        ids = tuple(row.id for row in await self._kept.every([tenant]) if row.state != "shredded")
        if not ids:
            raise NotFound(f"The tenant {tenant[:128]!r} has no data keys, or they were destroyed.")
        digest = sha256(msgspec.json.encode([tenant, ids])).hexdigest()[:16]
        return ShredPlan(tenant=tenant, keys=ids, digest=digest, held=await asyncio.to_thread(self.held, tenant))

    async def shred(self, tenant: str, reason: str, confirm: str, actor: str) -> ShredPlan:
        """Destroys the keys of a tenant. confirm: the digest of the plan. Raises NotFound, VersionMismatch (409) where the plan is another
        by now, PermissionDenied under a legal hold, OSError where the state directory cannot be written: then nothing is destroyed, nor
        where the log cannot be counted before (MasterUnavailable, StoreUnavailable)."""
        plan = await self.plan(tenant)
        if plan.held:
            self._record("audit.shred", tenant, {"tenant": tenant, "reason": reason, "why": plan.held}, actor=actor, outcome="denied")
            raise PermissionDenied(f"The tenant is under a legal hold: {plan.held}", code="legal_hold")
        if confirm != plan.digest:
            raise AlreadyExists("The tenant has other keys by now: look again.", code="plan_changed", param="confirm")
        if self.settle is not None:
            await self.settle()
        answers = 0 if self.forget is None else await self.forget(tenant)
        async with self._destroying:
            self._doomed = tenant
            try:
                self._drop(tenant)
                gone = await self._kept.shred(tenant, plan.keys, self._tombstones.add)  # noted only where they are the plan's
                self._drop(tenant)
            finally:
                self._doomed = ""
        detail = {
            "tenant": tenant,
            "reason": reason,
            "keys": [row.id for row in gone][:MANY],
            "count": len(gone),
            "kept_responses": answers,
        }
        self._record("audit.shred", tenant, detail, actor=actor)
        return plan


class Tombstones:
    """The file that names the destroyed keys, an id a line. Its methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids: set[str] = set()

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    def read(self) -> None:
        """Raises ConfigError."""
        try:
            self._ids |= set(self._path.read_text(encoding="ascii").split())
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self._path} cannot be read: {error}", path="state_dir") from None

    def add(self, ids: Sequence[str]) -> None:
        """They are on the disk when this returns. Raises OSError."""
        fresh = [id for id in ids if id not in self._ids]
        if not fresh:
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a disk that was full: a line of its own for each id
            rest = b"\n" * torn + "".join(f"{id}\n" for id in fresh).encode("ascii")
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._ids |= set(fresh)
