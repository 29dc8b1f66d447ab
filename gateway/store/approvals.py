"""Kept answers that wait for a decision. What they say is encrypted; what is needed to find, show and bind them is not.

AES-256-GCM under a key derived from the pepper: every replica that shares the store can open it, the database alone cannot. The fields that
bind an approval (its id, who asked, for which request, what for, until when) are authenticated together with it, so a row that was changed
in the database cannot be opened. Moments are by the database's clock.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, get_args

import msgspec
import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.core.approvals import MAX_REASON, ApprovalRecord, Bounds, HeldUse, Hold, Requester, State, Take, Taken
from gateway.core.clock import Entropy
from gateway.core.conversations import owner
from gateway.core.errors import ConfigError, NotFound, Overloaded, RequestError, VersionMismatch
from gateway.core.storage import Page
from gateway.store import rows, tombstones
from gateway.store.database import Database
from gateway.store.tables import approvals as table

PREFIX: Final = "apr-"
_NONCE: Final = 12
_REQUESTER: Final = msgspec.json.Decoder(Requester)
"""Made here so that its shape is known before threads read rows (see gateway.store.batches)."""
OPEN: Final = ("pending", "approved")
STATES: Final = get_args(State)
MARGIN: Final = 3600.0
"""Seconds: for so long beyond its end an answer is looked for that no sweep may have erased, whatever the clocks did."""
MOST_ENDED: Final = 1000
"""Answers that one sweep erases."""
PORTION: Final = 500
"""Approvals that are forgotten in one transaction."""
_CLOSED: Final = {"sealed": None, "size": 0}


class Content(msgspec.Struct):
    """What is encrypted."""

    uses: list[HeldUse]
    body: bytes


class Swept(NamedTuple):
    """What `sweep` found. expired: approvals that have just expired. counts: of all that are kept, by state. size: bytes kept."""

    expired: list[ApprovalRecord]
    counts: dict[str, int]
    size: int


class StoredApprovals:
    """key: 32 secret bytes that all replicas share, once the store has been started."""

    def __init__(self, database: Database, now: Callable[[sa.Connection], float], key: Callable[[], bytes], entropy: Entropy) -> None:
        self._database, self._now, self._key, self._entropy = database, now, key, entropy
        self._swept = float("-inf")
        """When all were looked at last; for MARGIN after that, those that expired within MARGIN are enough."""

    # --- for the data plane

    async def hold(self, wanted: Hold, bounds: Bounds) -> ApprovalRecord:
        """Keeps an answer. Raises Overloaded when too much is kept, RequestError for an answer that is too long, PermissionDenied where
        whoever asked was deleted meanwhile."""
        content = msgspec.msgpack.encode(Content(wanted.uses, wanted.body))
        if len(content) > bounds.answer:
            raise RequestError(
                f"The answer is too long to be kept for approval: it has {len(content)} bytes, and {bounds.answer} are allowed.",
                code="approval_too_large",
            )
        unique = self._entropy.bytes(16).hex()
        nonce = self._entropy.bytes(_NONCE)
        return await self._database.run(lambda connection: self._insert(connection, wanted, bounds, content, unique, nonce), write=True)

    def _insert(self, connection: sa.Connection, wanted: Hold, bounds: Bounds, content: bytes, unique: str, nonce: bytes) -> ApprovalRecord:
        now, who = self._now(connection), wanted.requester
        tombstones.check(connection, now, wanted.began, who.tenant, owner("user", who.user) if who.user else owner(who.kind, who.id))
        record = ApprovalRecord(
            id=f"{PREFIX}{int(now * 1000):011x}{unique}",
            state="pending",
            form=wanted.form,
            guardrail=wanted.guardrail,
            model=wanted.model,
            operation=wanted.operation,
            request_id=wanted.request_id,
            requester=wanted.requester,
            request=wanted.request,
            tools=tuple((use.tool[:256], use.sha256, use.action, use.reversibility) for use in wanted.uses),
            approvers=wanted.approvers,
            created=now,
            expires=now + wanted.seconds,
            size=len(content),
        )
        rows.one_by_one(connection, f"approvals of {record.requester.hashed}")  # the sum over all callers is not that exact
        kept = _bytes(connection, now)
        mine = sa.select(sa.func.count()).where(
            table.c.principal == wanted.requester.hashed, table.c.state == "pending", table.c.expires > now
        )
        if kept + len(content) > bounds.total or connection.execute(mine).scalar_one() >= bounds.pending:
            raise Overloaded("Too many answers wait for approval.", code="approvals_full", retry_after=30.0)
        sealed = nonce + AESGCM(self._key()).encrypt(nonce, content, bound(record))
        connection.execute(sa.insert(table).values(**_values(record), sealed=sealed))
        return record

    async def take(self, wanted: Take) -> Taken:
        return await self._database.run(lambda connection: self._taken(connection, wanted), write=not wanted.look)

    def _taken(self, connection: sa.Connection, wanted: Take) -> Taken:
        """Takes an answer. If several try at once, one gets it: the row is locked, and changed in the same transaction."""
        found = _locked(connection, wanted.id)
        if found is None:
            return Taken(state="unknown")
        record = _record(found)
        if record.requester.hashed != wanted.requester.hashed or wanted.made > record.created:
            return Taken(state="unknown")
        if record.request != wanted.request:
            return Taken(state="other")
        now = self._now(connection)
        state = "expired" if record.state in OPEN and record.expires <= now else record.state
        hashes = tuple(digest for _, digest, _, _ in record.tools)
        if state != "approved" or (wanted.look and not wanted.read):
            return Taken(state=state, held=record.held, form=record.form, hashes=hashes, model=record.model)
        if not hmac.compare_digest(found.proof, self._proof(record)):
            raise ConfigError("the approval was not decided here: its decision was changed, or made with another pepper")
        content = self._opened(found)
        if wanted.look:
            return Taken(state=state, held=record.held, form=record.form, body=content.body, hashes=hashes, model=record.model)
        change = sa.update(table).where(table.c.id == record.id, table.c.state == "approved").values(state="used", used=now, **_CLOSED)
        if connection.execute(change).rowcount != 1:
            return Taken(state="used", held=record.held, form=record.form)
        return Taken(state="taken", held=record.held, form=record.form, body=content.body, hashes=hashes, model=record.model)

    def _opened(self, row: Any) -> Content:
        """Raises ConfigError for a row that was changed, or sealed with another pepper."""
        sealed: bytes = row.sealed
        try:
            return msgspec.msgpack.decode(AESGCM(self._key()).decrypt(sealed[:_NONCE], sealed[_NONCE:], bound(_record(row))), type=Content)
        except (InvalidTag, msgspec.MsgspecError, ValueError):
            raise ConfigError("the approval cannot be opened here: it was changed, or stored with another pepper") from None

    def _proof(self, record: ApprovalRecord) -> str:
        """That this decision was made by a process that knows the pepper."""
        told = msgspec.json.encode([record.id, record.state, record.decided, record.decider, record.reason])
        return hmac.new(self._key(), b"decision " + told, "sha256").hexdigest()

    # --- for operators

    async def page(self, *, tenant: str | Sequence[str] | None, state: str | None, limit: int, cursor: str | None) -> Page[ApprovalRecord]:
        """The oldest first. state: as it is at this moment."""

        def read(connection: sa.Connection) -> Page[ApprovalRecord]:
            now = self._now(connection)
            wanted = [rows.of_tenants(table.c.tenant, tenant), rows.after(table.c.id, cursor), _in_state(state, now)]
            query = sa.select(*_SHOWN).where(*wanted).order_by(table.c.id).limit(rows.page_size(limit) + 1)
            found = [_current(_record(row), now) for row in connection.execute(query)]
            more = len(found) > limit
            return Page(tuple(found[:limit]), rows.cursor_after(found[limit - 1].id) if more else None)

        return await self._database.run(read)

    async def get(self, id: str) -> ApprovalRecord:
        """Raises NotFound."""
        return (await self._database.run(lambda connection: self._whole(connection, id)))[0]

    async def read(self, id: str) -> tuple[ApprovalRecord, Content | None]:
        """One approval with its encrypted part, or None for that once it is erased. Raises NotFound, ConfigError."""
        return await self._database.run(lambda connection: self._whole(connection, id, open=True))

    def _whole(self, connection: sa.Connection, id: str, open: bool = False) -> tuple[ApprovalRecord, Content | None]:
        row = connection.execute(sa.select(table).where(table.c.id == id[:64])).first() if rows.storable(id) else None
        if row is None:
            raise NotFound(f"There is no approval {id[:64]!r}.")
        content = self._opened(row) if open and row.sealed is not None else None
        return _current(_record(row), self._now(connection)), content

    async def decide(self, id: str, approve: bool, decider: str, reason: str, *, dry_run: bool = False) -> ApprovalRecord:
        """Raises NotFound; VersionMismatch (409 `already_decided`, `approval_expired`)."""

        def change(connection: sa.Connection) -> ApprovalRecord:
            found = _locked(connection, id)
            if found is None:
                raise NotFound(f"There is no approval {id[:64]!r}.")
            now = self._now(connection)
            record = _current(_record(found), now)
            if record.state == "expired":
                raise VersionMismatch("The approval has expired.", code="approval_expired", status=409)
            if record.state != "pending":
                raise VersionMismatch(f"The approval is {record.state} already.", code="already_decided", status=409)
            values: dict[str, Any] = {
                "state": "approved" if approve else "denied",
                "decided": now,
                "decider": rows.text(decider, "actor"),
                "reason": rows.text(reason, "reason", MAX_REASON),
                **({} if approve else _CLOSED),
            }
            decided: ApprovalRecord = msgspec.structs.replace(
                record, **{name: value for name, value in values.items() if name in ApprovalRecord.__struct_fields__}
            )
            if not dry_run:
                proof = self._proof(decided)
                connection.execute(sa.update(table).where(table.c.id == record.id).values(**values, proof=proof))
            return decided

        return await self._database.run(change, write=True)

    async def sweep(self, keep: float) -> Swept:
        """Erases what has expired, and forgets what has been over for `keep` seconds."""

        def clear(connection: sa.Connection) -> tuple[list[ApprovalRecord], float]:
            now = self._now(connection)
            lately = self._swept <= now < self._swept + MARGIN
            over = [_STATE.in_(OPEN), table.c.expires <= now, *([table.c.expires > now - MARGIN] if lately else [])]
            ended = [_record(row) for row in connection.execute(sa.select(*_SHOWN).where(*over).limit(MOST_ENDED).with_for_update())]
            if ended:
                ids = table.c.id.in_([record.id for record in ended])
                connection.execute(sa.update(table).where(ids).values(state="expired", **_CLOSED))
            return ended, self._swept if lately or len(ended) == MOST_ENDED else now

        def forget(connection: sa.Connection) -> int:
            return rows.delete_some(connection, table.c.id, PORTION, table.c.expires < self._now(connection) - keep, _STATE.not_in(OPEN))

        def counted(connection: sa.Connection) -> tuple[dict[str, int], int]:
            found = connection.execute(_COUNTS).one()
            return {state: count for state, count in zip(STATES, found, strict=True) if count}, _bytes(connection, self._now(connection))

        ended, self._swept = await self._database.run(clear, write=True)
        await self._database.run_in_portions(forget, PORTION)
        return Swept(ended, *await self._database.run(counted))


def _bytes(connection: sa.Connection, now: float) -> int:
    """The sum over all kept answers. A sweep has erased expired ones, so only the index of the others is read."""
    size = sa.select(sa.func.coalesce(sa.func.sum(table.c.size), 0)).where(table.c.expires > now - MARGIN)
    return int(connection.execute(size).scalar_one())


_STATE: Final = sa.func.coalesce(table.c.state, "")
"""Where few have expired and many are open: so the index of `expires` is read, not that of the states."""
_SHOWN: Final = [column for column in table.c if column.name != "sealed"]


_COUNTS: Final = sa.select(*[sa.func.count(sa.case((table.c.state == state, 1))) for state in STATES])
"""Grouped by state, a database would sort them all."""


def bound(record: ApprovalRecord) -> bytes:
    """What is authenticated with the kept answer."""
    return msgspec.json.encode(
        [
            record.id,
            record.form,
            record.guardrail,
            record.model,
            record.requester,
            record.request,
            record.tools,
            record.created,
            record.expires,
        ]
    )


def _locked(connection: sa.Connection, id: str) -> Any:
    if not rows.storable(id):
        return None
    return connection.execute(sa.select(table).where(table.c.id == id[:64]).with_for_update()).first()


def _values(record: ApprovalRecord) -> dict[str, Any]:
    kept = ("id", "state", "form", "guardrail", "model", "operation", "request_id", "request", "created", "expires", "size")
    return {
        **{name: getattr(record, name) for name in kept},
        "tenant": record.requester.tenant,
        "principal": record.requester.hashed,
        "requester": msgspec.to_builtins(record.requester),
        "tools": msgspec.to_builtins(record.tools),
        "approvers": list(record.approvers),
        "decider": "",
        "reason": "",
        "proof": "",
    }


def _record(row: Any) -> ApprovalRecord:
    return ApprovalRecord(
        id=row.id,
        state=row.state,
        form=row.form,
        guardrail=row.guardrail,
        model=row.model,
        operation=row.operation,
        request_id=row.request_id,
        requester=msgspec.convert(row.requester, Requester),
        request=row.request,
        tools=tuple((tool, digest, action, reversibility) for tool, digest, action, reversibility in row.tools),
        approvers=tuple(row.approvers),
        created=row.created,
        expires=row.expires,
        decided=row.decided,
        decider=row.decider,
        reason=row.reason,
        used=row.used,
        size=row.size,
    )


def _current(record: ApprovalRecord, now: float) -> ApprovalRecord:
    """As it is at this moment: one that nobody has erased yet may have expired."""
    over = record.state in OPEN and record.expires <= now
    return msgspec.structs.replace(record, state="expired") if over else record


def _in_state(state: str | None, now: float) -> sa.ColumnElement[bool]:
    if state is None:
        return sa.true()
    if state in OPEN:
        return sa.and_(table.c.state == state, table.c.expires > now)
    if state == "expired":
        return sa.or_(table.c.state == state, sa.and_(table.c.state.in_(OPEN), table.c.expires <= now))
    return table.c.state == state
