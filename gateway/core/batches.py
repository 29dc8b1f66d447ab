"""Files and batches of clients: what the store keeps of them, and the ports by which the data listener reaches them (as OpenAI's APIs).
Moments are seconds since the epoch by the database's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from gateway.core.conversations import owner
from gateway.core.errors import GatehouseError
from gateway.core.specs.batches import FilesSpec
from gateway.core.storage import KeyRecord
from gateway.core.tokens import KEY_ID
from gateway.core.types import Peer, Principal

FILE_PREFIX: Final = "file-"
BATCH_PREFIX: Final = "batch_"
ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""What the lines of a batch may ask for."""
TOKENS: Final = ("oidc", "gateway_token")
"""The kinds of callers whose tokens can be revoked while a batch or a schedule of theirs is there."""
MOST_ERRORS: Final = 100
"""Errors that a batch names."""
State = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
OVER: Final = ("failed", "completed", "expired", "cancelled")


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """owner: the credential that sent it, or whose batch made it, by its name; caller: whom it belongs to within the tenant
    (gateway.core.conversations.owner_of), "" where nobody. size: bytes of the content. key: of which data key, and `salt` of its own; ""
    for one that was derived from the pepper. labels: that a trusted peer gave it; whatever is asked of it has them. Lists are without."""

    id: str
    tenant: str
    owner: str
    name: str
    purpose: str
    size: int
    key: str
    created: float = 0.0
    expires: float = 0.0
    caller: str = ""
    labels: tuple[str, ...] = ()


class Creator(msgspec.Struct, frozen=True, kw_only=True):
    """Who made a batch, as far as a credential says it. What it may do is looked up again for every line. labels: of the request that made
    it; its lines have them. logins: (issuer, `jti`, `iat`) of the token, of the gateway's key that signed it (KEY_ID), and of those it was
    issued for: it counts while none of them is revoked. acting: (actor, user, issuer, `jti`, `iat`) of the credentials by which others act
    in the token; they must count, too. made: of the Principal; None where an earlier version wrote this."""

    id: str
    tenant: str
    kind: str
    user: str = ""
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    reach: tuple[str, ...] | None = None
    agent: str = ""
    session: str = ""
    address: str = ""
    labels: tuple[str, ...] = ()
    logins: tuple[tuple[str, str, float | None], ...] = ()
    acting: tuple[tuple[str, str, str, str, float | None], ...] = ()
    made: float | None = None

    @classmethod
    def of(cls, principal: Principal, peer: Peer) -> Creator:
        own = ("address", "labels", "logins", "acting")
        taken = {name: getattr(principal, name) for name in cls.__struct_fields__ if name not in own}
        return cls(**taken, address=peer.address)

    @classmethod
    def of_batch(cls, principal: Principal, peer: Peer, labels: Collection[str]) -> Creator:
        """The same with what ends or bounds a batch beside the rights of its creator."""
        logins, login = list[tuple[str, str, float | None]](), principal.login if principal.kind in TOKENS else None
        acting = () if login is None else tuple((one.id, one.user, one.issuer, one.token_id, one.issued) for one in login.acting)
        while login is not None:
            logins.append((login.issuer, login.token_id, login.issued))
            if login.signer:
                logins.append((login.issuer, KEY_ID + login.signer, login.issued))
            login = login.source
        return msgspec.structs.replace(cls.of(principal, peer), labels=tuple(sorted(labels)), logins=tuple(logins), acting=acting)

    def labelled(self, labels: Collection[str]) -> Creator:
        """The same, with more labels."""
        return msgspec.structs.replace(self, labels=tuple(sorted({*self.labels, *labels})))

    def tokens(self) -> list[tuple[str, str, str, float | None]]:
        """(issuer, `jti`, subject, `iat`) of all that must not be revoked."""
        own = [(issuer, token, self.id, issued) for issuer, token, issued in self.logins]
        return own + [(issuer, token, actor, issued) for actor, _, issuer, token, issued in self.acting]

    def made_with(self, key: KeyRecord) -> bool:
        """Whether it is this key of the store, and not another one of its id."""
        same = (key.tenant, key.user) == (self.tenant, self.user)
        return same and (self.made is None or key.created == self.made)

    @property
    def name(self) -> str:
        return f"{self.tenant}/{self.id}"

    @property
    def owner(self) -> str:
        """As gateway.core.conversations.owner_of says of a Principal."""
        return owner("user", self.user) if self.user else owner(self.kind, self.id)


def reached(settings: FilesSpec, owner: str) -> str | None:
    """Whose files and batches this caller reaches within its tenant: only its own, or None for all."""
    return owner if settings.scope == "caller" else None


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    """line: of the input file, from 1; None for one of the whole batch."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. moments: when each state began. repeated: lines that were run again because a crash took their outcome away; unknown: lines
    that were not, for the same reason. fence: grows with each process that takes it on. cancels: whether somebody has asked for its end."""

    id: str
    creator: Creator
    endpoint: str
    input: str
    state: State
    created: float
    expires: float
    window: str
    metadata: dict[str, str] | None = None
    moments: dict[str, float] = {}
    errors: tuple[BatchError, ...] = ()
    total: int = 0
    completed: int = 0
    failed: int = 0
    repeated: int = 0
    unknown: int = 0
    output: str = ""
    error: str = ""
    salt: str = ""
    key: str = ""
    holder: str = ""
    fence: int = 0
    cancels: bool = False


class LineRow(NamedTuple):
    """One line that was begun. number: from 1. sealed: what came of it, encrypted; None while that is not known."""

    number: int
    attempt: int
    state: str
    sealed: bytes | None


class Upload(Protocol):
    """One file on its way in. Exactly one of `finish` and `abandon` is called, whatever happened before."""

    async def write(self, data: bytes) -> None:
        """Raises RequestError (too large), StorageFull."""
        ...

    async def finish(self, name: str, purpose: str, expires_after: float | None) -> FileRecord:
        """Raises RequestError, StorageFull, StoreUnavailable."""
        ...

    async def abandon(self) -> None: ...


class KeptFiles(Protocol):
    """The records of files, in the store or by way of the process that has it. caller: whose alone; None for all of the tenant. All raise
    StoreUnavailable."""

    async def room(self, tenant: str) -> None:
        """Raises QuotaExceeded where the tenant may have no more."""
        ...

    async def add(self, record: FileRecord, keep: float, began: float) -> FileRecord:
        """keep: seconds. began: when the upload did (time.perf_counter). Raises QuotaExceeded; PermissionDenied where the tenant, or
        the caller, was deleted since."""
        ...

    async def get(self, tenant: str, id: str, caller: str | None) -> FileRecord:
        """Raises NotFound."""
        ...

    async def page(
        self, tenant: str, caller: str | None, limit: int, after: str | None, newest: bool, purpose: str | None
    ) -> tuple[list[FileRecord], bool]: ...

    async def delete(self, tenant: str, id: str, caller: str | None) -> FileRecord:
        """Raises NotFound; RequestError for the input of a batch that is not over."""
        ...


class FileKeys(Protocol):
    """The keys that encrypt what files and batches hold. Both raise StoreUnavailable, MasterUnavailable."""

    async def current(self, tenant: str) -> tuple[str, bytes]:
        """The id and the key for what is new."""
        ...

    async def opening(self, tenant: str, id: str) -> bytes:
        """Raises Shredded."""
        ...


class FileDesk(Protocol):
    """Files, as callers reach them: one of another tenant, or with `files.scope: caller` of another caller, is not there (NotFound)."""

    def begin(self, principal: Principal, labels: Collection[str] = ()) -> Upload:
        """labels: of its data. Raises Overloaded when too many are under way."""
        ...

    async def files(
        self, principal: Principal, *, limit: int, after: str | None, newest: bool, purpose: str | None
    ) -> tuple[list[FileRecord], bool]:
        """And whether there are more."""
        ...

    async def file(self, principal: Principal, id: str) -> FileRecord: ...

    async def content(self, principal: Principal, id: str) -> tuple[FileRecord, AsyncIterator[bytes]]: ...

    async def delete(self, principal: Principal, id: str) -> None: ...


class BatchDesk(Protocol):
    """Batches, as callers reach them (as FileDesk)."""

    async def create(
        self, principal: Principal, peer: Peer, wanted: Mapping[str, Any], began: float, labels: Collection[str] = ()
    ) -> BatchRecord:
        """wanted: the decoded body. began: when the request did (time.perf_counter). labels: of all its data. Raises RequestError,
        NotFound, PermissionDenied, LimitExceeded."""
        ...

    async def batch(self, principal: Principal, id: str) -> BatchRecord: ...

    async def batches(self, principal: Principal, *, limit: int, after: str | None) -> tuple[list[BatchRecord], bool]: ...

    async def cancel(self, principal: Principal, id: str) -> BatchRecord: ...


class LineLost(GatehouseError):
    """Whether a line has run is not known: whoever ran it is gone."""

    default_code = "outcome_unknown"


class LineOutcome(NamedTuple):
    """again: seconds after which the line may be tried again, as no engine has done it; None: this is its outcome."""

    status: int
    body: bytes
    request_id: str
    again: float | None


class Lines(Protocol):
    """Where the lines of batches run: in this process, or in workers."""

    async def place(self, model: str, begun: int) -> str | None:
        """A place where a line for the model may begin now, beside `begun` others that are about to; None where there is no room."""
        ...

    async def run(self, place: str, batch: BatchRecord, number: int, body: bytes, attempt: int) -> LineOutcome:
        """Raises PermissionDenied where whoever made the batch may do nothing any more; LineLost where it may have run, and nobody knows;
        other GatehouseErrors where it has not."""
        ...


class WorkDesk(NamedTuple):
    """What the data listener is given. batches: None where only files are kept."""

    files: FileDesk
    batches: BatchDesk | None
    max_bytes: int
    upload_seconds: float
