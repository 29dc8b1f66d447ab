"""The port of the cache of answers. It keeps what an engine sent, so an answer from the cache passes the same checks as one from an
engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import field

from gateway.core.messages import Ask, Message
from gateway.core.slices import Steps
from gateway.core.types import InferenceRequest, Principal
from gateway.core.waiting import Signal


class Answer:
    """An engine's whole answer with status 200. headers: those that the relay reads. foreign: as in the request that it answered. parts:
    the body, cut before and after its identifier. prefix: how identifiers of its kind begin."""

    __slots__ = ("foreign", "headers", "parts", "prefix")

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], foreign: bool, parts: list[bytes], prefix: bytes = b"") -> None:
        self.headers, self.foreign, self.parts, self.prefix = headers, foreign, parts, prefix

    def body(self, identity: bytes) -> bytes:
        """The body with a new identifier: the prefix, then this text."""
        return self.parts[0] if len(self.parts) == 1 else (b'"%b%b"' % (self.prefix, identity)).join(self.parts)


class Purge(Message, frozen=True):
    """Which answers are to be forgotten: those that match every given field. key: in hex, as in the audit log. tenants: any of these,
    instead of `tenant`."""

    model: str | None = None
    tenant: str | None = None
    key: str | None = None
    dry_run: bool = False
    tenants: tuple[str, ...] = ()

    def owners(self) -> tuple[str | None, ...]:
        """The tenants whose answers are forgotten; None: all tenants."""
        return self.tenants or (self.tenant,)


class CachesAsked(Ask["CachesTold"], frozen=True):
    """Has a process that serves purge its caches, if `purge` is given, and asks for their statistics."""

    purge: Purge | None = None


class CachesTold(Message, frozen=True):
    """models: statistics by model, as gateway.caches.memory.Statistics has them. purged: how many answers were forgotten. behind: what
    was counted of the disk and Redis, by name, as gateway.caches.behind.BehindCounts has it."""

    models: dict[str, dict[str, int]]
    purged: int = 0
    behind: dict[str, dict[str, int]] = field(default_factory=dict)


class Looked(NamedTuple):
    """What a look behind the memory found. marks: those of the purges so far, to be kept with the answer if an engine has to be asked.
    value: the answer and the seconds for which it is still valid; None for a miss."""

    marks: bytes
    value: bytes | None = None
    left: float = 0.0


class Question:
    """A request that the answer to a similar request may serve. domain, bucket: only requests with the same ones are compared. vector: of
    its text, from an embedding model; None if none can be asked. read: what the cache has read of the text."""

    __slots__ = ("bucket", "domain", "read", "tenant", "text", "vector")

    def __init__(self, tenant: str, domain: bytes, bucket: bytes, text: str, read: Any) -> None:
        self.tenant, self.domain, self.bucket, self.text, self.read = tenant, domain, bucket, text, read
        self.vector: Signal[tuple[float, ...] | None] | None = None


class Similar(NamedTuple):
    """The answer to a similar request. key: of the answer. source: the identifier of that request. similarity: the cosine."""

    key: bytes
    answer: Answer | Steps[Answer]
    source: str
    similarity: float


class AnswerCache(Protocol):
    """The cache of one model, as one Snapshot has it. Nothing here raises."""

    charge: bool
    """Whether an answer from the cache is charged like an engine's."""
    largest: int
    """The most bytes of an answer that is kept."""
    shares: bool
    """Whether equal requests share one engine call."""
    semantic: bool
    """Whether some requests get the answers to similar ones."""
    backed: bool
    """Whether there is something behind the memory."""
    flights: dict[bytes, Any]
    """The engine calls under way that others may share (gateway.pipeline.flights), by key."""

    @property
    def epoch(self) -> int:
        """Rises with each purge."""
        ...

    def concerns(self, request: InferenceRequest) -> bool:
        """Whether answers to such requests are kept."""
        ...

    def key(self, principal: Principal, request: InferenceRequest) -> bytes:
        """The key of a request's answer. To be computed from the request as the engine would get it."""
        ...

    def key_steps(self, principal: Principal, request: InferenceRequest) -> Steps[bytes]:
        """The same in slices, for large requests."""
        ...

    def find(self, key: bytes) -> Answer | Steps[Answer] | None:
        """The answer in memory, which counts as a hit; of a large one the steps to it. A caller that then asks an engine calls `missed`."""
        ...

    def look(self, key: bytes, tenant: str) -> Signal[Looked | None] | None:
        """Looks behind the memory. None, or a Signal with None, if there is nothing behind it, or nothing that answers in time; never
        fails."""
        ...

    def taken(self, key: bytes, tenant: str, looked: Looked, epoch: int) -> Answer | None:
        """The answer that was found behind the memory, which keeps it from now on; it counts as a hit. epoch: from before the look."""
        ...

    def store(self, key: bytes, answer: Answer, tenant: str, epoch: int, marks: bytes = b"") -> None:
        """epoch, marks: from before the engine was asked; without marks it is kept in memory only."""
        ...

    def store_steps(self, key: bytes, answer: Answer, tenant: str, epoch: int, marks: bytes = b"") -> Steps[None]:
        """The same in slices, for large answers."""
        ...

    def later(self, steps: Steps[None], size: int) -> None:
        """Has this done in slices, between other work. Too much of it at once is dropped. size: bytes that it holds meanwhile."""
        ...

    def question(self, principal: Principal, request: InferenceRequest) -> Steps[Question | None]:
        """What is compared with other requests, in slices, with the vector already asked for; None if only an equal request may have the
        answer."""
        ...

    def rivals(self, question: Question) -> bool:
        """Whether there is any answer to compare with."""
        ...

    def nearest(self, question: Question) -> Similar | None:
        """The answer to the most similar request, once the vector is there; it counts as found."""
        ...

    def learn(self, question: Question, key: bytes, source: str, epoch: int) -> None:
        """The answer with this key, which is kept, may be given to similar requests. source: the identifier of its request."""
        ...

    def missed(self) -> None:
        """Counts a request for which an engine is asked."""
        ...

    def joined(self) -> None:
        """Counts a request that shares an engine call."""
        ...

    def bypassed(self) -> None:
        """Counts a request for which the client declined the cache."""
        ...
