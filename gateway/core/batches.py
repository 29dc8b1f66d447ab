"""Files and batches of clients (OpenAI's Files and Batch APIs): their records in the store, and the ports through which the data listener
reaches them. Moments are seconds since the epoch by the database's clock."""

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
"""The operations that lines of a batch may use."""
TOKENS: Final = ("oidc", "gateway_token")
"""The kinds of callers whose tokens can be revoked while they have a batch or a schedule."""
MIN_EXPIRY: Final = 3600.0
"""The fewest seconds after which a client may let its files expire."""
MOST_ERRORS: Final = 100
"""The most errors that a batch lists."""
State = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
OVER: Final = ("failed", "completed", "expired", "cancelled")


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file. owner: the name of the credential that sent it, or whose batch made it. caller: to whom it belongs within the tenant
    (gateway.core.conversations.owner_of), or "" for nobody. size: bytes of the content. key: the data key with which it is encrypted, with
    its own `salt`; "" for a key derived from the pepper. labels: given by a trusted peer, and applied to every request that uses the file;
    lists leave them out."""

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
    """Who created a batch, as the credential says. The rights are looked up again for every line. labels: those of the request that created
    it; its lines have them too. logins: (issuer, `jti`, `iat`) of the token, of the gateway's key that signed it (KEY_ID), and of the
    tokens it was issued for; the batch goes on while none of them is revoked. acting: (actor, user, issuer, `jti`, `iat`) of the
    credentials of those who act in the token, which must not be revoked either. made: as in Principal; None if an earlier version wrote
    this."""

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
        """The creator with what can end or bound the batch besides the creator's rights: labels, and every token that can be revoked."""
        logins, login = list[tuple[str, str, float | None]](), principal.login if principal.kind in TOKENS else None
        acting = () if login is None else tuple((one.id, one.user, one.issuer, one.token_id, one.issued) for one in login.acting)
        while login is not None:
            logins.append((login.issuer, login.token_id, login.issued))
            if login.signer:
                logins.append((login.issuer, KEY_ID + login.signer, login.issued))
            login = login.source
        return msgspec.structs.replace(cls.of(principal, peer), labels=tuple(sorted(labels)), logins=tuple(logins), acting=acting)

    def labelled(self, labels: Collection[str]) -> Creator:
        """A copy with these labels added."""
        return msgspec.structs.replace(self, labels=tuple(sorted({*self.labels, *labels})))

    def tokens(self) -> list[tuple[str, str, str, float | None]]:
        """(issuer, `jti`, subject, `iat`) of every token that must not be revoked."""
        own = [(issuer, token, self.id, issued) for issuer, token, issued in self.logins]
        return own + [(issuer, token, actor, issued) for actor, _, issuer, token, issued in self.acting]

    def made_with(self, key: KeyRecord) -> bool:
        """Whether this key of the store is the creator, and not a newer key with the same id."""
        same = (key.tenant, key.user) == (self.tenant, self.user)
        return same and (self.made is None or key.created == self.made)

    @property
    def name(self) -> str:
        return f"{self.tenant}/{self.id}"

    @property
    def owner(self) -> str:
        """The owner, as gateway.core.conversations.owner_of gives it for a Principal."""
        return owner("user", self.user) if self.user else owner(self.kind, self.id)


def reached(settings: FilesSpec, owner: str) -> str | None:
    """Whose files and batches this caller can see within its tenant: its own owner, or None for all."""
    return owner if settings.scope == "caller" else None


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    """line: number in the input file, from 1; None for an error of the whole batch."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. moments: when each state began. repeated: lines that were run again because a crash lost their outcome; unknown: lines that
    lost it and were not run again. fence: grows with each process that takes the batch on. cancels: whether somebody asked to cancel it.
    keep: seconds for which its results are kept; 0: as long as any file."""

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
    keep: float = 0.0


class LineRow(NamedTuple):
    """One line that was begun. number: from 1. sealed: its outcome, encrypted; None while there is none."""

    number: int
    attempt: int
    state: str
    sealed: bytes | None


class Upload(Protocol):
    """One file that is being received. Exactly one of `finish` and `abandon` is called in the end."""

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
