"""Approvals: the messages about answers and requests that wait for a person's decision.

A data worker sees such an answer, but only the process with the store can keep it: the worker sends it `Hold` and `Take`, over the feed or
directly. Two rules are here as well: when a retry is the same request, and when two callers may be the same person.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from hashlib import sha256
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Raw, Struct

from gateway.core.messages import Ask, Message
from gateway.core.types import Principal

HEADER: Final = b"x-gatehouse-approval"
State = Literal["pending", "approved", "denied", "expired", "used"]
Form = Literal["whole", "stream", ""]
MAX_REASON: Final = 1024
_FIELDS: Final = msgspec.json.Decoder(dict[str, Raw])
_FREE: Final = frozenset({"stream", "stream_options"})
"""A retry may ask for a stream where the first request did not, and the other way round."""


class Requester(Message, frozen=True, kw_only=True):
    """Who sent a request. identities: all names under which the caller may be known (`identities`)."""

    tenant: str
    id: str
    kind: str
    user: str = ""
    agent: str = ""
    identities: tuple[str, ...] = ()

    @property
    def hashed(self) -> str:
        """Only this caller may take what was kept."""
        return sha256(msgspec.json.encode([self.tenant, self.id, self.kind, self.user, self.agent])).hexdigest()


class HeldUse(Message, frozen=True, kw_only=True):
    """One use of a tool in what is kept; calls that are allowed are listed too. action: what the rule said."""

    tool: str
    of: str
    arguments: str
    sha256: str
    action: str
    rule: int = -1
    reversibility: str = "unknown"
    place: str = ""


class Held(Message, frozen=True):
    """What the client learns of a request that waits for approval. expires: seconds since the epoch."""

    id: str
    tool: str
    sha256: str
    expires: float


class Hold(Ask[Held], frozen=True, kw_only=True):
    """Keeps an answer (`body`, as it would have been sent), or notes that a request waits (`form` ""). seconds: until it expires.
    request: the hash of the request. began: when it did (time.perf_counter, which the processes of a machine share)."""

    guardrail: str
    model: str
    operation: str
    request_id: str
    peer: str
    requester: Requester
    request: str
    uses: list[HeldUse]
    approvers: tuple[str, ...]
    seconds: float
    form: Form
    began: float
    body: bytes = b""


class Taken(Message, frozen=True, kw_only=True):
    """What there is on an approval. state: also `unknown` (there is none, or it is another caller's) and `other` (for another request).
    form: of the kept answer. body: its bytes, once it is taken or read. hashes: of what was approved. model: whose answer it is."""

    state: str
    held: Held | None = None
    form: Form = ""
    body: bytes = b""
    hashes: tuple[str, ...] = ()
    model: str = ""


class Take(Ask[Taken], frozen=True, kw_only=True):
    """Looks at an approval, or takes what is approved; it can be taken once. look: change nothing. read: with a look, the body of what is
    approved, too. made: when the caller's key was created: one that is newer than the approval is not the key that asked, even if it has
    the same id."""

    id: str
    requester: Requester
    request: str
    request_id: str
    look: bool = False
    made: float = 0.0
    read: bool = False


class ApprovalDesk(Protocol):
    """Where a data plane has answers kept. Both fail with StoreUnavailable, Overloaded."""

    def hold(self, wanted: Hold) -> Awaitable[Held]: ...

    def take(self, wanted: Take) -> Awaitable[Taken]: ...


class ApprovalRecord(Struct, frozen=True, kw_only=True):
    """An approval as the store has it, without what is encrypted. tools: (tool, hash, action, reversibility) of each use."""

    id: str
    state: State
    form: Form
    guardrail: str
    model: str
    operation: str
    request_id: str
    requester: Requester
    request: str
    tools: tuple[tuple[str, str, str, str], ...]
    approvers: tuple[str, ...]
    created: float
    expires: float
    decided: float | None = None
    decider: str = ""
    reason: str = ""
    used: float | None = None
    size: int = 0

    @property
    def held(self) -> Held:
        tool, digest = next(((tool, digest) for tool, digest, action, _ in self.tools if action == "hold"), ("", ""))
        return Held(self.id, tool, digest, self.expires)


class Bounds(Struct, frozen=True, kw_only=True):
    """What may be kept: bytes of one answer, of all together, and approvals of one caller that wait at a time."""

    answer: int
    total: int
    pending: int


def request_hash(path: bytes, body: bytes) -> str:
    """A request's hash. Requests that differ only in `stream`, `stream_options` and the order of their top-level fields have the same. A
    body that is no JSON object, such as tensors in binary form, counts byte for byte."""
    found = sha256(b"%d:%b" % (len(path), path))
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found.update(b"-:")
        found.update(body)
        return found.hexdigest()
    for name, value in sorted(fields.items()):
        if name not in _FREE:
            key, raw = name.encode(), bytes(value)
            found.update(b"%d:%b%d:" % (len(key), key, len(raw)))
            found.update(raw)
    return found.hexdigest()


def identities(principal: Principal) -> tuple[str, ...]:
    """All names under which a caller may be known: the key, the user, the agent and everybody who acts or acted in the token, and the
    subjects of the logins that the token comes from. A key without a user stands for its whole tenant, as anybody there may hold it."""
    found: set[str] = set()
    tenant = principal.tenant

    def named(name: str) -> None:
        if name:
            found.add(f"name {tenant} {name.casefold().removesuffix('@' + tenant.casefold())}")

    if principal.kind == "api_key":
        found.add(f"key {tenant} {principal.id}")
        if not principal.user:
            found.add(f"tenant {tenant}")
    else:
        named(principal.id)
    named(principal.user)
    named(principal.agent)
    login = principal.login
    while login is not None:
        for actor in login.actors:
            named(actor)
        if login.issuer and principal.kind != "api_key":
            found.add(f"subject {login.issuer} {principal.id}")
        login = login.source
    return tuple(sorted(found))


def named(tenant: str, name: str) -> str:
    """The identity of somebody who is known by name only."""
    return f"name {tenant} {name.casefold().removesuffix('@' + tenant.casefold())}"


def requester_of(principal: Principal) -> Requester:
    return Requester(
        tenant=principal.tenant,
        id=principal.id,
        kind=principal.kind,
        user=principal.user,
        agent=principal.agent,
        identities=identities(principal),
    )


def shared(requester: Requester, operator: Sequence[str]) -> list[str]:
    """The identities that the requester and an operator have in common: they may be the same person. A key without a user may belong to
    anybody of its tenant, even to somebody who asked with another credential."""
    found = set(requester.identities) & set(operator)
    if (anybody := f"tenant {requester.tenant}") in operator:
        found.add(anybody)
    return sorted(found)
