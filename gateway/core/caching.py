"""The port of the cache of answers. What is kept is what an engine sent, so what is given again passes all that the engine's answer did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import field

from gateway.core.messages import Ask, Message
from gateway.core.types import InferenceRequest, Principal
from gateway.core.waiting import Signal


class Answer:
    """An engine's whole answer with status 200. headers: those that the relay reads. foreign: as of the request that it was given to.
    parts: its body, cut where its identifier stands. prefix: what identifiers of its kind begin with."""

    __slots__ = ("foreign", "headers", "parts", "prefix")

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], foreign: bool, parts: list[bytes], prefix: bytes = b"") -> None:
        self.headers, self.foreign, self.parts, self.prefix = headers, foreign, parts, prefix

    def body(self, identity: bytes) -> bytes:
        """The body with another identifier, of which this is the part behind the prefix."""
        return self.parts[0] if len(self.parts) == 1 else (b'"%b%b"' % (self.prefix, identity)).join(self.parts)


class Purge(Message, frozen=True):
    """Which answers are to be forgotten: those that match all that is given. key: in hex, as in the audit log. tenants: any of these, in
    place of `tenant`."""

    model: str | None = None
    tenant: str | None = None
    key: str | None = None
    dry_run: bool = False
    tenants: tuple[str, ...] = ()

    def owners(self) -> tuple[str | None, ...]:
        """The tenants whose answers are meant; None: every tenant's."""
        return self.tenants or (self.tenant,)


class CachesAsked(Ask["CachesTold"], frozen=True):
    """Asks a process that serves for the statistics of its caches, after it has forgotten what is to be."""

    purge: Purge | None = None


class CachesTold(Message, frozen=True):
    """models: statistics by model, as gateway.caches.memory.Statistics has them. purged: how many answers were forgotten. behind: what
    was counted of the disk and Redis, by name, as gateway.caches.behind.BehindCounts has it."""

    models: dict[str, dict[str, int]]
    purged: int = 0
    behind: dict[str, dict[str, int]] = field(default_factory=dict)


class Looked(NamedTuple):
    """What a look behind the memory found. marks: of the purges so far, to be given with the answer that an engine will give. value: None
    for a miss; with it the seconds for which it may still be given."""

    marks: bytes
    value: bytes | None = None
    left: float = 0.0


class Question:
    """A request for which the answer to a similar one may do. domain, bucket: among which requests. vector: of its text, once an embedding
    model has said it; None where that cannot be asked. read: what whoever made it knows of the text."""

    __slots__ = ("bucket", "domain", "read", "tenant", "text", "vector")

    def __init__(self, tenant: str, domain: bytes, bucket: bytes, text: str, read: Any) -> None:
        self.tenant, self.domain, self.bucket, self.text, self.read = tenant, domain, bucket, text, read
        self.vector: Signal[tuple[float, ...] | None] | None = None


class Similar(NamedTuple):
    """The answer to a similar request. key: of the answer. source: the identifier of that request. similarity: the cosine."""

    key: bytes
    answer: Answer
    source: str
    similarity: float


class AnswerCache(Protocol):
    """The cache of one model, as one Snapshot has it. Nothing here raises."""

    charge: bool
    """Whether what is found costs what the engine's answer did."""
    largest: int
    """Bytes of an answer that may be kept."""
    shares: bool
    """Whether requests share engine calls that are under way."""
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
        """What the answers are kept by; to be asked once the request is as the engine would get it."""
        ...

    def find(self, key: bytes) -> Answer | None:
        """Counts a hit if there is one; whoever goes on to an engine says so (`missed`)."""
        ...

    def look(self, key: bytes, tenant: str) -> Signal[Looked | None] | None:
        """Looks behind the memory. None, or a Signal with None, where nothing is there to be asked or it does not answer in time; it does
        not fail."""
        ...

    def taken(self, key: bytes, tenant: str, looked: Looked, epoch: int) -> Answer | None:
        """The answer that was found behind the memory, which keeps it from now on; it counts as a hit. epoch: from before the look."""
        ...

    def store(self, key: bytes, answer: Answer, tenant: str, epoch: int, marks: bytes = b"") -> None:
        """epoch, marks: from before the engine was asked; without marks it is kept in memory only."""
        ...

    def question(self, principal: Principal, request: InferenceRequest) -> Question | None:
        """What may be compared of a request, with its vector asked for; None where only the same request gets an answer again."""
        ...

    def rivals(self, question: Question) -> bool:
        """Whether there is any answer that might do."""
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
        """Counts a request that the client wanted to have nothing to do with the cache."""
        ...
