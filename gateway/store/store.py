"""The store: everything that operators decide and that must last. SQLite embedded, PostgreSQL for several machines, one code path.

A write and its numbered change are one transaction. The data plane does not read the store per request: it caches what it needs
(gateway.identity.stored) and hears of changes (gateway.store.feed).
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from gateway.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from gateway.core.errors import AlreadyExists, StoreUnavailable
from gateway.core.idempotency import HOLD_SECONDS, Idempotent
from gateway.core.people import LoginRecord, PersonRecord, Seen, parts
from gateway.core.plugins import StoreRow, Table
from gateway.core.secret import Secret
from gateway.core.storage import (
    OVERLAP_SECONDS,
    ChangePage,
    ConfigurationRow,
    CounterChange,
    CounterName,
    CounterRow,
    KeyRecord,
    KeySettings,
    KeyWrite,
    Lease,
    Page,
    Removal,
    Resource,
    StoreChange,
    Write,
)
from gateway.store import (
    bulk,
    change_rows,
    config_rows,
    key_rows,
    leases,
    limit_rows,
    people_rows,
    replica_rows,
    resources,
    rows,
    tombstones,
)
from gateway.store.approvals import StoredApprovals
from gateway.store.batches import StoredBatches
from gateway.store.data_keys import StoredDataKeys
from gateway.store.database import STORES, Database, make_engine
from gateway.store.deliveries import DeliveryTables
from gateway.store.directory_models import StoredDirectoryModels
from gateway.store.files import StoredFiles
from gateway.store.hints import CHANNEL, Hint
from gateway.store.jobs import StoredJobs
from gateway.store.kept_answers import KeptAnswers
from gateway.store.key_finder import KeyFinder
from gateway.store.key_rows import KeyFormat
from gateway.store.migrate import DEADLINE as MIGRATION_DEADLINE
from gateway.store.migrate import migrate
from gateway.store.model_copies import StoredModelCopies
from gateway.store.model_uses import StoredModelUses
from gateway.store.notifier import ChangeNotifier, NotifyAfterCommit
from gateway.store.pepper import choose_pepper, peppers
from gateway.store.postgres_hints import NOTIFY, PostgresHints, arguments
from gateway.store.replicas import ReplicaTables
from gateway.store.rows import Transaction
from gateway.store.seal import Sealer
from gateway.store.usage import UsageTables

T = TypeVar("T")
DEADLINE = 5.0
"""Seconds after which a call fails."""
FIRST_LOGIN_TRIES = 2
"""Times that users are noted again because somebody else has made one of them at the same moment."""


class _TakenBack(Exception):
    """Rolls back the transaction of a dry run and carries the answer of the write."""

    def __init__(self, result: Any) -> None:
        self.result = result


class Store(UsageTables, DeliveryTables, ReplicaTables):
    """Implements gateway.core.storage.ControlStore; its docstrings say what the methods do.

    url: its scheme names a row of `stores`: `sqlite` (a file in `state_dir`) or postgresql://... format: how keys are made and hashed (the
    module gateway.identity.keys). given_pepper: the value of GATEHOUSE_PEPPER.
    database_clock: what all replicas agree on. history: entries of the configuration's history that are kept; 0: none is made.
    Life: `start`, `aclose`. Raises ConfigError if the settings cannot be used.
    """

    def __init__(
        self,
        url: str,
        state_dir: Path,
        format: KeyFormat,
        *,
        given_pepper: str | None = None,
        clock: Clock | None = None,
        database_clock: Callable[[sa.Connection], float] = rows.database_time,
        entropy: Entropy | None = None,
        deadline: float = DEADLINE,
        stores: Table[StoreRow] = STORES,
        history: int = 0,
    ) -> None:
        self._history = history
        self._clock: Clock = clock or SystemClock()
        self._now = database_clock
        self._entropy: Entropy = entropy or SystemEntropy()
        self._format = format
        self._peppers = peppers(state_dir, self._entropy, given_pepper)
        self._pepper = self._peppers[0]
        self._sealer = Sealer(self._pepper, self._entropy)
        self._database = Database(make_engine(url, state_dir, deadline, stores), deadline)
        self._finder = KeyFinder(self._find_keys)
        self.approvals = StoredApprovals(self._database, self._now, lambda: self.derived("approvals"), self._entropy)
        self.kept_answers = KeptAnswers(self._database, self._now, lambda: self.derived("kept answers"), self._entropy)
        self.files = StoredFiles(self._database, self._now)
        self.batches = StoredBatches(self._database, self._now)
        self.jobs = StoredJobs(self._database, self._now)
        self.model_copies = StoredModelCopies(self._database, self._now)
        self.model_uses = StoredModelUses(self._database, self._now)
        self.directory_models = StoredDirectoryModels(self._database, self._now)
        self.data_keys = StoredDataKeys(self._database, self._write, self._entropy)
        self._notifier = ChangeNotifier()

    # --- life

    async def start(self) -> None:
        """Connects, brings the schema up to date, checks the pepper. Raises StoreUnavailable, and ConfigError for a schema of a newer
        Gatehouse or a pepper other than the one that hashed the store's keys."""

        def open_it(connection: sa.Connection) -> int:
            migrate(connection)
            return choose_pepper(connection, [self._format.fingerprint("gatehouse", pepper).hex() for pepper in self._peppers])

        try:
            chosen = await self._database.run(open_it, write=True, deadline=MIGRATION_DEADLINE)
        except StoreUnavailable as error:
            raise StoreUnavailable(f"The store cannot be opened: {error.__cause__ or error.message}") from None
        self._pepper = self._peppers[chosen]
        self._sealer = Sealer(self._pepper, self._entropy)

    async def aclose(self) -> None:
        await self._finder.aclose()
        await self._database.aclose()

    def derived(self, purpose: str) -> bytes:
        """A secret of 32 bytes for another purpose, derived from the pepper: the same on all machines that share a store."""
        return hmac.digest(self._pepper, f"gatehouse {purpose} 1".encode(), "sha256")

    @property
    def available(self) -> bool:
        return self._database.available

    @property
    def lost(self) -> float | None:
        """Since when the database has not been reached, in seconds since the epoch; None while it answers."""
        return self._database.lost

    @property
    def pending(self) -> int:
        """Calls under way."""
        return self._database.pending

    def subscribe(self, callback: Callable[[StoreChange], None]) -> Callable[[], None]:
        return self._notifier.subscribe(callback)

    def seal(self, secret: Secret, purpose: str) -> str:
        return self._sealer.seal(secret, purpose)

    def unseal(self, sealed: str, purpose: str) -> Secret:
        return self._sealer.unseal(sealed, purpose)

    async def _write(
        self,
        work: Callable[[Transaction], T],
        *,
        dry_run: bool = False,
        heard: Callable[[tuple[StoreChange, ...]], None] = lambda changes: None,
        deadline: float | None = None,
    ) -> T:
        def numbered(connection: sa.Connection) -> tuple[T, tuple[StoreChange, ...]]:
            transaction = Transaction(connection, self._now(connection))
            result = work(transaction)
            if dry_run:
                raise _TakenBack(result)
            told = config_rows.body_of(transaction, self._sealer.seal) if self._history else None
            changes = transaction.number()
            if told is not None and changes:
                config_rows.keep(transaction, changes[-1].seq, told, self._history)
            return result, changes

        try:
            after_commit = NotifyAfterCommit(self._notifier)
            result, changes = await self._database.run(numbered, write=True, committed=after_commit, deadline=deadline)
        except _TakenBack as taken_back:
            return cast(T, taken_back.result)
        await after_commit.over.wait()
        heard(changes)
        return result

    # --- the history of the configuration

    async def note_configuration(self, told: Mapping[str, Any], kept: str | None, *, actor: str) -> int:
        def note(tx: Transaction) -> None:
            tx.changed(config_rows.KIND, "file", "created")
            tx.note, tx.actor = (dict(told), kept), rows.text(actor, "actor")

        if not self._history:
            return 0
        numbers: list[int] = []
        await self._write(note, heard=lambda changes: numbers.append(changes[-1].seq))
        return numbers[0]

    async def configurations(self, *, limit: int = 100, cursor: str | None = None) -> Page[ConfigurationRow]:
        page = await self.list(config_rows.KIND, limit=limit, cursor=cursor)
        return Page(tuple(self._configuration(one.name, one.body, one.created, one.actor) for one in page.items), page.cursor)

    async def configuration(self, number: int) -> tuple[ConfigurationRow, dict[str, Any]]:
        row = await self._database.run(lambda connection: config_rows.row(connection, number))
        sealed = row.body.get("sealed")
        payload = await asyncio.to_thread(config_rows.unpacked, sealed, self._sealer.unseal) if sealed else {}
        return self._configuration(row.name, row.body, row.created, row.actor), payload

    @staticmethod
    def _configuration(name: str, body: Mapping[str, Any], made: float, actor: str) -> ConfigurationRow:
        told = {key: value for key, value in body.items() if key != "sealed"}
        return ConfigurationRow(config_rows.number_of(name), made, actor, told, bool(body.get("sealed")))

    # --- resources

    async def get(self, kind: str, name: str) -> Resource:
        return await self._database.run(lambda connection: resources.get(connection, kind, name))

    async def those(self, kind: str, names: Sequence[str]) -> Sequence[Resource]:
        return await self._database.run(lambda connection: resources.those(connection, kind, names))

    async def list(
        self, kind: str, *, tenant: str | Sequence[str] | None = None, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[Resource]:
        return await self._database.run(lambda connection: resources.page(connection, kind, tenant, prefix, limit, cursor))

    async def everything(
        self, kinds: Sequence[str], *, keys: Collection[str] | None, most: int
    ) -> tuple[dict[str, tuple[Resource, ...]], tuple[KeyRecord, ...]]:
        now = self._clock.wall()
        return await self._database.run(lambda connection: bulk.read(connection, kinds, keys, most, now), deadline=bulk.SECONDS)

    async def create(
        self,
        kind: str,
        name: str,
        body: Mapping[str, Any],
        *,
        actor: str,
        tenant: str = "",
        dry_run: bool = False,
        needs: Sequence[tuple[str, str]] = (),
    ) -> Resource:
        kept = resources.body_of(body)

        def make(tx: Transaction) -> Resource:
            resources.need(tx.connection, needs)
            return resources.create(tx, kind, name, kept, tenant, rows.text(actor, "actor"))

        return await self._write(make, dry_run=dry_run)

    async def update(
        self,
        kind: str,
        name: str,
        body: Mapping[str, Any],
        *,
        actor: str,
        version: int | None = None,
        tenant: str | None = None,
        dry_run: bool = False,
        needs: Sequence[tuple[str, str]] = (),
    ) -> Resource:
        kept = resources.body_of(body)

        def change(tx: Transaction) -> Resource:
            resources.need(tx.connection, needs)
            return resources.update(tx, kind, name, kept, version, tenant, rows.text(actor, "actor"))

        return await self._write(change, dry_run=dry_run)

    async def write_all(
        self,
        writes: Sequence[Write],
        *,
        actor: str,
        removals: Sequence[Removal] = (),
        keys: Sequence[KeyWrite] = (),
        dry_run: bool = False,
        restores: int | None = None,
        since: tuple[int, Sequence[str]] | None = None,
    ) -> Sequence[Resource]:
        seconds = self._database.deadline + bulk.WRITE_SECONDS * (len(writes) + len(removals) + len(keys))

        def all_of_it(tx: Transaction) -> Sequence[Resource]:
            tx.restores = restores
            kept = [(write, resources.body_of(write.body)) for write in writes]  # here, as thousands would hold the event loop
            return bulk.write(tx, kept, removals, keys, rows.text(actor, "actor"), since)

        return await self._write(all_of_it, dry_run=dry_run, deadline=seconds)

    async def delete(self, kind: str, name: str, *, actor: str, version: int | None = None, dry_run: bool = False) -> Resource:
        by = rows.text(actor, "actor")

        def remove(tx: Transaction) -> Resource:
            removed = bulk.remove(tx, kind, {name: version}, by)
            bulk.unused(tx, kind, [name])
            return removed[0]

        return await self._write(remove, dry_run=dry_run)

    # --- keys

    async def create_key(
        self, tenant: str, settings: KeySettings, *, actor: str, id: str | None = None, dry_run: bool = False
    ) -> tuple[KeyRecord, Secret]:
        chosen, key, fingerprint = self._new_key(id)
        return await self._write(
            lambda tx: key_rows.create(tx, tenant, settings, rows.text(actor, "actor"), chosen, key, fingerprint), dry_run=dry_run
        )

    async def create_own_key(
        self, tenant: str, user: str, settings: KeySettings, *, actor: str, count: int, id: str | None = None, dry_run: bool = False
    ) -> tuple[KeyRecord, Secret]:
        chosen, key, fingerprint = self._new_key(id)
        return await self._write(
            lambda tx: key_rows.create_own(tx, tenant, user, settings, rows.text(actor, "actor"), chosen, key, fingerprint, count),
            dry_run=dry_run,
        )

    def _new_key(self, id: str | None) -> tuple[str, str, bytes]:
        key = self._format.generate(self._entropy)
        return id if id is not None else f"key-{self._entropy.bytes(8).hex()}", key, self._format.fingerprint(key, self._pepper)

    async def get_key(self, id: str) -> KeyRecord:
        return await self._database.run(lambda connection: key_rows.get(connection, id))

    async def list_keys(
        self,
        *,
        tenant: str | Sequence[str] | None = None,
        prefix: str = "",
        state: str | None = None,
        user: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[KeyRecord]:
        now = self._clock.wall()
        return await self._database.run(lambda connection: key_rows.page(connection, tenant, prefix, state, user, now, limit, cursor))

    async def update_key(
        self, id: str, settings: KeySettings, *, actor: str, version: int | None = None, dry_run: bool = False
    ) -> KeyRecord:
        return await self._write(lambda tx: key_rows.update(tx, id, settings, version, rows.text(actor, "actor")), dry_run=dry_run)

    async def rotate_key(
        self,
        id: str,
        *,
        actor: str,
        overlap: float = OVERLAP_SECONDS,
        expires: float | None = None,
        version: int | None = None,
        dry_run: bool = False,
    ) -> tuple[KeyRecord, Secret]:
        _, key, fingerprint = self._new_key(id)
        return await self._write(
            lambda tx: key_rows.rotate(tx, id, version, overlap, rows.text(actor, "actor"), key, fingerprint, expires), dry_run=dry_run
        )

    async def revoke_key(self, id: str, *, actor: str, version: int | None = None, dry_run: bool = False) -> KeyRecord:
        return await self._write(lambda tx: key_rows.revoke(tx, id, version, rows.text(actor, "actor")), dry_run=dry_run)

    async def delete_key(self, id: str, *, actor: str, version: int | None = None, dry_run: bool = False) -> KeyRecord:
        return await self._write(lambda tx: key_rows.delete(tx, {id: version})[0], dry_run=dry_run)

    async def find_key(self, digest: bytes, key: str) -> KeyRecord | None:
        return await self._finder.find(self._format.fingerprint(key, self._pepper))

    async def _find_keys(self, fingerprints: Sequence[bytes]) -> dict[bytes, KeyRecord]:
        return await self._database.run(lambda connection: key_rows.find(connection, fingerprints))

    async def touch_keys(self, used: Mapping[str, float]) -> None:
        kept = {id: moment for id, moment in used.items() if rows.storable(id)}
        if kept:
            await self._database.run(lambda connection: key_rows.touch(connection, kept), write=True)

    # --- people

    async def find_person(self, tenant: str, user: str, groups: Sequence[str]) -> PersonRecord:
        return await self._database.run(lambda connection: people_rows.find(connection, tenant, user, groups))

    async def note_logins(self, seen: Sequence[Seen], *, limit: int) -> int:
        for _ in range(FIRST_LOGIN_TRIES):
            try:
                return await self._write(lambda tx: people_rows.note(tx, seen, limit))
            except AlreadyExists:
                continue  # somebody else has made one of these users at the same moment: now the record is there
        return await self._write(lambda tx: people_rows.note(tx, seen, limit))

    async def logins(self, ids: Sequence[str]) -> dict[str, LoginRecord]:
        return await self._database.run(lambda connection: people_rows.every(connection, ids))

    async def members(self, group: str, *, limit: int = 100, cursor: str | None = None) -> Page[Resource]:
        name, tenant = parts(group)
        return await self._database.run(lambda connection: people_rows.members(connection, tenant, name, limit, cursor))

    # --- changes

    async def changes_since(self, seq: int, limit: int = 1000) -> ChangePage:
        return await self._database.run(lambda connection: change_rows.since(connection, seq, limit))

    async def notify(self, payload: str) -> None:
        """Sends a hint to the other replicas, where the database can (PostgreSQL)."""
        await self._database.run(
            lambda connection: connection.execute(NOTIFY, {"channel": CHANNEL, "payload": payload}).close(), write=True
        )

    def hints(self, incarnation: str, hear: Callable[[Hint], None], changed: Callable[[], None]) -> PostgresHints | None:
        """The database's own way of carrying hints, not started; None where it has none."""
        if self._database.engine.dialect.name != "postgresql":
            return None
        return PostgresHints(arguments(self._database.engine), incarnation, self.notify, hear, changed, self._entropy)

    async def prune(self, lease: Lease | None = None) -> None:
        """Deletes old changes, expired idempotency keys, ended secrets and replicas that are gone. Raises LeaseLost, and deletes nothing,
        if the lease was taken over."""

        def forget(connection: sa.Connection) -> None:
            if lease is not None:
                leases.guard(connection, lease)
            now = self._now(connection)
            change_rows.prune(connection, now)
            tombstones.prune(connection, now)
            key_rows.prune(connection, now)
            replica_rows.prune(connection, now)

        await self._database.run(forget, write=True)

    # --- counters of limits that last

    async def change_counters(self, names: Sequence[CounterName], change: CounterChange) -> None:
        await self._database.run(lambda connection: limit_rows.change(connection, self._now, names, change), write=True)

    async def counters_of(self, limit: str, most: int = 1000, after: str = "", keys: Sequence[Sequence[str]] = ()) -> Sequence[CounterRow]:
        return await self._database.run(lambda connection: limit_rows.of_limit(connection, limit, most, after, keys))

    async def counters_of_each(self, limits: Sequence[str], each: int, most: int) -> Sequence[CounterRow]:
        return await self._database.run(lambda connection: limit_rows.of_limits(connection, limits, each, most))

    async def forget_counters(self, limit: str, key: tuple[str, ...] | None = None) -> int:
        return await self._database.run_in_portions(lambda connection: limit_rows.forget(connection, limit, key), limit_rows.PORTION)

    async def sweep_counters(self) -> int:
        return await self._database.run_in_portions(lambda connection: limit_rows.sweep(connection, self._now(connection)))

    # --- idempotency keys

    async def begin_idempotent(
        self, key: str, actor: str, route: str, fingerprint: str, *, holder: str = "", ttl: float = HOLD_SECONDS
    ) -> Idempotent | None:
        def begin(connection: sa.Connection) -> Idempotent | None:
            return change_rows.begin(connection, key, actor, route, fingerprint, holder, self._now(connection), ttl)

        for _ in range(3):
            try:
                return await self._database.run(begin, write=True)
            except sa.exc.IntegrityError:
                continue  # another process inserted between our look and our insert: look again
        raise StoreUnavailable("The idempotency key is contended.", retry_after=1.0)

    async def renew_idempotent(self, key: str, actor: str, route: str, holder: str, *, ttl: float = HOLD_SECONDS) -> bool:
        return await self._database.run(lambda c: change_rows.renew(c, key, actor, route, holder, self._now(c) + ttl), write=True)

    async def finish_idempotent(
        self, key: str, actor: str, route: str, status: int, body: str, *, holder: str = "", ttl: float = 86400.0
    ) -> bool:
        return await self._database.run(
            lambda c: change_rows.finish(c, key, actor, route, holder, status, body, self._now(c) + ttl), write=True
        )

    async def abandon_idempotent(self, key: str, actor: str, route: str, *, holder: str = "") -> None:
        await self._database.run(lambda connection: change_rows.abandon(connection, key, actor, route, holder), write=True)
