"""An operation of the admin API, one line of a resource's table, and what its handler gets and returns.

Routes, permissions and the OpenAPI document are read from the same tables.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from admin.context import Ports
from admin.permissions import Access
from admin.rechecking import arriving
from gateway.core.errors import NotFound, StoreUnavailable
from gateway.core.storage import ControlStore

PREFIX: Final = "/admin/v1"
MAX_BODY: Final = 256 * 1024
JSON: Final = "application/json"
SSE: Final = "text/event-stream"
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
OCTETS: Final = "application/offset+octet-stream"


class NoQuery(msgspec.Struct, forbid_unknown_fields=True):
    """An operation without parameters."""


class Written(msgspec.Struct, forbid_unknown_fields=True):
    """dry_run: check and answer with the difference; change nothing."""

    dry_run: bool = False


MAX_WAIT: Final = 60.0
"""Seconds that a caller may wait for a write to be in force."""
IN_FORCE: Final = "x-gatehouse-in-force"


class Waiting(msgspec.Struct, forbid_unknown_fields=True):
    """A parameter of every write. wait: seconds to wait, once it is done, until it is in force in every process of the gateway."""

    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT)]


@dataclass(frozen=True, slots=True)
class Answer:
    """A handler's result. version: the ETag's content. location: of the created resource. response: sent as is, instead of JSON.

    remember: what an idempotency key repeats when the value holds a secret and must not be kept. bare: headers only.
    """

    value: Any = None
    status: int = 200
    version: str | None = None
    location: str | None = None
    response: Response | None = None
    remember: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """A header that an operation reads, with its schema for the document."""

    name: str
    schema: Mapping[str, Any]
    required: bool = False


@dataclass(frozen=True)
class Operation:
    """One method of one path below /admin/v1. `permission` is needed somewhere; the handler asks again for the tenant at hand.

    body: the struct of a JSON body; bytes: taken as it is (media types in `accepts`). answer: the type of the JSON answer, for the
    document. media: the answer's type unless it is JSON; further_media:
    those that it may have besides. conditional: If-Match is looked at, and 412 possible.
    creates: takes an Idempotency-Key. engine: may fail because of an engine (502). finds: looks for what a parameter names (404).
    streams: the handler reads the body itself as it arrives (`Call.parts`). takes: headers that it reads. disk: may be refused for
    lack of disk space (507). refuses: further statuses of its errors. masks: the mask of a secret in the body stands for the stored one.
    """

    method: Method
    path: str
    permission: str
    summary: str
    handler: Callable[[Call], Awaitable[Answer]]
    answer: Any = None
    query: type[msgspec.Struct] = NoQuery
    body: Any = None
    status: int = 200
    accepts: tuple[str, ...] = (JSON,)
    media: str = JSON
    further_media: tuple[str, ...] = ()
    max_body: int = MAX_BODY
    conditional: bool = False
    creates: bool = False
    engine: bool = False
    quiet: bool = False
    finds: bool = False
    streams: bool = False
    takes: tuple[Header, ...] = ()
    disk: bool = False
    refuses: tuple[int, ...] = ()
    masks: bool = False

    @property
    def writes(self) -> bool:
        """Whether it changes something, and is audited. `quiet`: a POST that changes nothing."""
        return self.method not in ("GET", "HEAD") and not self.quiet

    @property
    def body_optional(self) -> bool:
        """Whether a request may come without a body, which then counts as {}: a POST whose fields are all optional. An empty PUT would
        reset what it replaces, and is rather a mistake."""
        if self.method != "POST" or self.body is None or self.body is bytes:
            return False
        return not any(one.required for one in msgspec.structs.fields(self.body))

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))


@dataclass
class Call:
    """One authorised request. `diff` is what a write changes, for the audit log; `target` names the resource."""

    ports: Ports
    access: Access
    operation: Operation
    path: dict[str, str]
    query: Any
    body: Any
    raw: bytes
    request: Request
    request_id: str
    if_match: str | None = None
    diff: list[dict[str, Any]] = field(default_factory=list)
    target: str = ""
    wait: float | None = None
    """Seconds to wait until a write is in force; None: the caller does not want to know."""
    tenants: set[str] = field(default_factory=set)
    """The tenants in which the caller needed a permission: those that a write is about."""
    asked: dict[str, Any] = field(default_factory=dict)
    """Answers of the fleet for this request, so that a long list asks only once."""
    stands: Callable[[], Awaitable[object]] | None = None
    """Raises once the caller may no longer do this (admin.rechecking)."""

    @property
    def dry_run(self) -> bool:
        return bool(getattr(self.query, "dry_run", False))

    @property
    def actor(self) -> str:
        return self.access.actor

    @property
    def store(self) -> ControlStore:
        """Raises StoreUnavailable when the installation has no store."""
        if self.ports.store is None:
            raise StoreUnavailable("This installation has no store: only the resources of the configuration file exist.")
        return self.ports.store

    def parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises ClientDisconnect when it breaks off, and what `stands` raises."""
        parts = aiter(self.request.stream())
        return parts if self.stands is None else arriving(parts, self.stands)

    def body_builtins(self) -> dict[str, Any]:
        """The body as plain values."""
        plain: dict[str, Any] = msgspec.to_builtins(self.body)
        return plain

    def require(self, permission: str, tenant: str | None = None) -> None:
        self.access.require(permission, tenant)
        if tenant:
            self.tenants.add(tenant)

    def seen(self, permission: str, tenant: str, kind: str, name: str) -> None:
        """Like `require`, but what the caller may not see does not exist for them (404)."""
        if not self.access.may(permission, tenant):
            raise NotFound(f"There is no {kind} {name!r}.")
        if tenant:
            self.tenants.add(tenant)

    def expected(self) -> int | None:
        """The version of If-Match; None when any will do. The store raises VersionMismatch for a version that never existed."""
        if self.if_match is None or self.if_match == "*":
            return None
        given = self.if_match
        return int(given) if given.isascii() and given.isdigit() and len(given) < 18 else -1
