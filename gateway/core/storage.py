"""The store's frozen records, and the Protocol through which the control plane and the admin API use it.

The store (gateway.store) implements `ControlStore`; the admin API, the key cache and the feed know only these records. Times are seconds
since the epoch. Tenants are names; "" means the installation as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from gateway.core.deliveries import DeliveryStorage
from gateway.core.idempotency import IdempotencyStorage
from gateway.core.people import LoginRecord, PersonRecord, Seen
from gateway.core.secret import Secret
from gateway.core.types import Priority
from gateway.core.usage_storage import UsageStorage

T = TypeVar("T")


class Resource(Struct, frozen=True):
    """One thing that operators manage. `version` is its ETag: 1 at first, then one more for each write. `actor` wrote it last."""

    kind: str
    name: str
    tenant: str
    version: int
    body: dict[str, Any]
    created: float
    updated: float
    actor: str


OVERLAP_SECONDS: Final = 86400.0
"""For how long the old secret of a rotated key is accepted, unless the rotation says otherwise."""


class KeySettings(Struct, frozen=True, kw_only=True):
    """An operator's decisions about an API key.

    models: patterns of the models it may use. operations: those it may call (chat, completions, embeddings, rerank, score, classify,
    moderations, images, speech, transcriptions, translations, tokenize, infer); empty: all. cidrs: networks it may be used from (IPv4 or
    IPv6); empty: everywhere. expires: the moment it ends. limits: names of limits that apply to this key alone. roles: for the admin API.
    """

    models: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()
    expires: float | None = None
    limits: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    priority: Priority = "standard"
    description: str = ""


class KeyRecord(KeySettings, frozen=True, kw_only=True):
    """An API key as the store knows it: everything but the key. `prefix` is its beginning, to recognise it by.

    overlap_until: until when a former secret is accepted, after a rotation. rotated_to: the id of the key that replaced this one, which
    ends at `overlap_until`; only earlier versions of Gatehouse replaced keys. `last_used` is written in batches, up to a minute late.
    """

    id: str
    tenant: str
    prefix: str
    version: int
    created: float
    updated: float
    actor: str
    rotated_to: str | None = None
    overlap_until: float | None = None
    revoked: float | None = None
    last_used: float | None = None
    user: str = ""
    issued: float | None = None

    def ends(self) -> float | None:
        """The first moment at which the key is no longer accepted, or None."""
        replaced = self.overlap_until if self.rotated_to is not None else None
        moments = [moment for moment in (self.expires, replaced, self.revoked) if moment is not None]
        return min(moments, default=None)

    def state(self, now: float) -> Literal["active", "rotated", "expired", "revoked"]:
        """`rotated`: replaced by another key, and beyond the overlap."""
        if self.revoked is not None:
            return "revoked"
        if self.expires is not None and self.expires <= now:
            return "expired"
        replaced = self.rotated_to is not None and self.overlap_until is not None and self.overlap_until <= now
        return "rotated" if replaced else "active"

    def settings(self) -> KeySettings:
        """The operator's part, to be changed with `msgspec.structs.replace` and passed to `update_key`."""
        return KeySettings(**{name: getattr(self, name) for name in KeySettings.__struct_fields__})


def engine_secret(engine: str, url: str | None, field: str) -> str:
    """The purpose of an engine's sealed secret: one field, at one address. It is never sent elsewhere."""
    return f"engines/{engine} {url or ''} {field}"


class StoreChange(Struct, frozen=True):
    """One committed write. `seq` has no gaps and grows in the order of commits. kind: a resource's kind, or `keys`.

    action: created, updated, deleted; for keys also rotated, revoked. `name` is the resource's name or the key's id.
    """

    seq: int
    kind: str
    name: str
    action: str
    time: float


class Page(Struct, Generic[T], frozen=True):
    """One page of a list, ordered by name (bytewise). `cursor` is for the next page; None: this is the last."""

    items: tuple[T, ...]
    cursor: str | None = None


class ChangePage(Struct, frozen=True):
    """Changes after a sequence number, oldest first. `head`: the newest number. `gap`: the next changes are no longer kept, or a backup was
    restored, so fetch the whole state and go on from `head`."""

    changes: tuple[StoreChange, ...]
    head: int
    gap: bool = False


class Write(Struct, frozen=True):
    """One resource to be written with others. version: of the one it replaces; None: it must not exist yet. needs: other resources (kind,
    name) that must exist after the write."""

    kind: str
    name: str
    body: Mapping[str, Any]
    tenant: str = ""
    version: int | None = None
    needs: tuple[tuple[str, str], ...] = ()


class Removal(Struct, frozen=True):
    """One resource, or key (kind `keys`, by its id), to be deleted with other writes. version: that it must have."""

    kind: str
    name: str
    version: int


class KeyWrite(Struct, frozen=True):
    """The settings of one key, to be written with others. version: that it must have."""

    id: str
    settings: KeySettings
    version: int


class ConfigurationRow(Struct, frozen=True):
    """One entry of the configuration's history. number: of the change that it belongs to. told: `of` (file or store), `changed` (paths),
    `count` (of these) and `rolled_back_to`; for a file also `source`, `replica` and `version`. whole: whether its settings were kept."""

    number: int
    made: float
    actor: str
    told: dict[str, Any]
    whole: bool


class ReplicaRecord(Struct, frozen=True, kw_only=True):
    """One process that serves, as it last reported itself to the store. Moments are by the database's clock.

    incarnation: made anew at each start. data, admin: the addresses of its listeners. workers: its data workers; 0: it serves itself.
    skew: seconds by which its clock is ahead of the database's.
    """

    id: str
    incarnation: str
    host: str
    data: str = ""
    admin: str = ""
    version: str = ""
    workers: int = 0
    started: float = 0.0
    seen: float = 0.0
    skew: float = 0.0


class Roll(Struct, frozen=True):
    """All processes that serve or served until lately, by id and start. now: by the database's clock."""

    now: float
    replicas: tuple[ReplicaRecord, ...]


class Lease(Struct, frozen=True):
    """The right to do a job for all replicas, until `expires` by the database's clock. fence: grows with each holder.

    done: when the job was last finished, 0 for never. holder "": nobody has it.
    """

    name: str
    holder: str
    fence: int
    expires: float
    done: float


class LeaseRoll(Struct, frozen=True):
    """All leases that were ever taken, by name. now: by the database's clock."""

    now: float
    leases: tuple[Lease, ...]


CounterName = tuple[str, str, tuple[str, ...]]
"""A counter of a limit that lasts: the limit's name, which of its amounts, the key of its bucket."""


CounterChange = Callable[[float, Sequence[str | None]], Sequence[tuple[str, float]]]
"""(time by the database's clock, bodies) -> new bodies, each with the moment at which it expires. None: there is no such counter yet."""


class CounterRow(Struct, frozen=True):
    """A counter as it is kept. body: what only the limits understand."""

    name: CounterName
    body: str


class ControlStore(UsageStorage, DeliveryStorage, IdempotencyStorage, Protocol):
    """Everything the control plane asks of the store. Every call has a deadline.

    Errors (gateway.core.errors): StoreUnavailable (503) when the database does not answer; NotFound (404); AlreadyExists (409);
    VersionMismatch (412) for a lost update; RequestError (400) for a name, cursor or value that cannot be stored.
    `dry_run=True` runs a write and rolls it back: the same errors, the same answer, no change. `actor` is who asked for it. `version` is
    the expected one (If-Match); None overwrites any version.
    """

    # --- resources

    async def get(self, kind: str, name: str) -> Resource: ...
    async def those(self, kind: str, names: Sequence[str]) -> Sequence[Resource]: ...  # as far as there are any

    async def list(
        self, kind: str, *, tenant: str | Sequence[str] | None = None, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[Resource]:
        """tenant: one or several, or None for all. prefix: of the name. limit: 1 to 1000."""
        ...

    async def everything(
        self, kinds: Sequence[str], *, keys: Collection[str] | None, most: int
    ) -> tuple[dict[str, tuple[Resource, ...]], tuple[KeyRecord, ...]]:
        """All as they were at one moment; where there are more than `most`, not all. keys: those in use, and of these ids; None: none."""
        ...

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
        """needs: others (kind, name) that must be there when it is written; NotFound without one of them."""
        ...

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
        """Replaces the whole body. tenant: None leaves it unchanged. needs: as for `create`."""
        ...

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
        """Makes all of these creations, replacements and deletions in one transaction, or none; returns what was written. What each needs,
        and whether something deleted is still in use, is checked after everything is written. restores: the entry of the history that this
        goes back to. since: the number of a change, and kinds: VersionMismatch if one of these kinds was changed after it."""
        ...

    async def delete(self, kind: str, name: str, *, actor: str, version: int | None = None, dry_run: bool = False) -> Resource:
        """Deletes and returns the resource. VersionMismatch (409 `in_use`) for a limit that keys name. A user's own keys are revoked."""
        ...

    # --- the history of the configuration: each write of resources adds to it

    async def note_configuration(self, told: Mapping[str, Any], kept: str | None, *, actor: str) -> int:
        """Adds a configuration that was put into force from a file or a text. kept: its payload, compressed, to be sealed; None: it is too
        large. Returns its number; 0: no history is kept."""
        ...

    async def configurations(self, *, limit: int = 100, cursor: str | None = None) -> Page[ConfigurationRow]:
        """The newest first."""
        ...

    async def configuration(self, number: int) -> tuple[ConfigurationRow, dict[str, Any]]:
        """One entry with its payload; for the store's: `units`, each with `kind`, `name`, `before` and `after` (bodies). Raises NotFound;
        ConfigError if it was sealed with another pepper."""
        ...

    # --- keys

    async def create_key(
        self, tenant: str, settings: KeySettings, *, actor: str, id: str | None = None, dry_run: bool = False
    ) -> tuple[KeyRecord, Secret]:
        """Returns the record and the key itself, which is kept nowhere and cannot be shown again (never put it in an idempotency record).
        id: a name for it, or None to make one."""
        ...

    async def create_own_key(
        self, tenant: str, user: str, settings: KeySettings, *, actor: str, count: int, id: str | None = None, dry_run: bool = False
    ) -> tuple[KeyRecord, Secret]:
        """A key of a user. NotFound when the user has no record; VersionMismatch (409 `too_many_keys`) when `count` are active."""
        ...

    async def get_key(self, id: str) -> KeyRecord: ...

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
        """prefix: of the id. state: active, rotated, expired or revoked. user: whose own keys."""
        ...

    async def update_key(
        self, id: str, settings: KeySettings, *, actor: str, version: int | None = None, dry_run: bool = False
    ) -> KeyRecord: ...

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
        """Gives a key a new secret; its id and settings stay. Old secrets are accepted for at most `overlap` more seconds, and not for
        longer than they would have been without. expires: the key's new end; None: as before.
        Returns the record and the new secret. VersionMismatch (409 `key_not_active`) when the key is revoked."""
        ...

    async def revoke_key(self, id: str, *, actor: str, version: int | None = None, dry_run: bool = False) -> KeyRecord:
        """Refuses the key from now on. Revoking it again changes nothing."""
        ...

    async def delete_key(self, id: str, *, actor: str, version: int | None = None, dry_run: bool = False) -> KeyRecord:
        """Deletes the key with its record; its usage stays."""
        ...

    async def find_key(self, digest: bytes, key: str) -> KeyRecord | None:
        """The record of a presented key, whatever its state, or None. `digest` is the key's SHA-256, for stores that need it."""
        ...

    async def touch_keys(self, used: Mapping[str, float]) -> None:
        """Sets last_used of many keys (id to time). Never moves one back; ignores unknown ids."""
        ...

    # --- people

    async def find_person(self, tenant: str, user: str, groups: Sequence[str]) -> PersonRecord:
        """What the store says of a caller. groups: those that the login named. user "": of the tenant's keys."""
        ...

    async def note_logins(self, seen: Sequence[Seen], *, limit: int) -> int:
        """Keeps the last login of each user, and makes records of those who have none while there are fewer users than `limit`. Returns
        how many were made."""
        ...

    async def logins(self, ids: Sequence[str]) -> dict[str, LoginRecord]:
        """What is known of the logins of these users, by their full names."""
        ...

    async def members(self, group: str, *, limit: int = 100, cursor: str | None = None) -> Page[Resource]:
        """The users to whom a group, by its full name, is assigned."""
        ...

    # --- changes

    async def changes_since(self, seq: int, limit: int = 1000) -> ChangePage: ...

    def subscribe(self, callback: Callable[[StoreChange], None]) -> Callable[[], None]:
        """Calls back on the event loop with each change that this process commits, before the write returns. Returns a function that
        unsubscribes. Changes of other processes come through the feed (gateway.store.feed)."""
        ...

    # --- replicas

    async def beat(self, told: ReplicaRecord, *, stale: float) -> Roll:
        """Notes that this process serves; the store sets the moments and the skew. Earlier processes of its id that were not seen for
        `stale` seconds are forgotten."""
        ...

    async def leave(self, id: str, incarnation: str) -> None:
        """The process ends as planned and is forgotten at once."""
        ...

    async def roll(self) -> Roll: ...

    # --- leases: jobs that one replica does for all

    async def leases(self) -> LeaseRoll: ...

    async def take_lease(self, name: str, holder: str, seconds: float, *, period: float = 0.0) -> Lease | None:
        """None: somebody else holds it, or the job was finished less than `period` seconds ago."""
        ...

    async def renew_lease(self, lease: Lease, seconds: float) -> Lease:
        """Extends it to `seconds` from now on. Raises LeaseLost if it was taken over."""
        ...

    async def finish_lease(self, lease: Lease, *, done: bool) -> None:
        """Gives it back. done: the job was done and is not due for its period. Raises LeaseLost if it was taken over."""
        ...

    # --- counters of limits that last

    async def change_counters(self, names: Sequence[CounterName], change: CounterChange) -> None:
        """Replaces the bodies of these counters, which must differ, in one transaction that locks them. `change` runs in another thread."""

    async def counters_of(self, limit: str, most: int = 1000, after: str = "", keys: Sequence[Sequence[str]] = ()) -> Sequence[CounterRow]:
        """Counters in the order of their keys (as JSON), beginning behind `after`. keys: only these, if any are given."""

    async def counters_of_each(self, limits: Sequence[str], each: int, most: int) -> Sequence[CounterRow]:
        """So many of each of these limits at most, and so many of all together."""

    async def forget_counters(self, limit: str, key: tuple[str, ...] | None = None) -> int:
        """Deletes the counters of one key, or all of the limit; returns how many."""

    async def sweep_counters(self) -> int:
        """Deletes what has expired."""

    # --- secrets within bodies

    def seal(self, secret: Secret, purpose: str) -> str:
        """Encrypts a secret to be stored in a body. purpose: what it belongs to; it can be opened only for that purpose."""
        ...

    def unseal(self, sealed: str, purpose: str) -> Secret:
        """Raises ConfigError for a text sealed with another pepper or for another purpose."""
        ...

    # --- health

    @property
    def available(self) -> bool:
        """Whether the last call reached the database."""
        ...
