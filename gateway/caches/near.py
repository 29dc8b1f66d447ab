"""Which kept answers belong to requests like another one: their vectors, and a search for the nearest. The answers lie in the AnswerStore.

Requests are compared within a bucket: one isolation domain, one version of everything, and the same request but for the words of its last
question. A vector's signs are compared first, as one integer (the number of those that differ estimates the angle: Charikar, 2002), and of
the few nearest the cosine is computed. A nearer one that the signs hide is a miss.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import dist, fsum, inf, isfinite, sqrt
from typing import Final, Generic, NamedTuple, TypeVar

MOST: Final = 100_000
"""Vectors of one model, over all domains."""
CLOSEST: Final = 4
"""How many of the vectors with the nearest signs are compared exactly."""
Q = TypeVar("Q")
Vector = tuple[float, ...]


class Found(NamedTuple):
    """key: of the answer. source: the identifier of the request that it was given to. similarity: the cosine, 1.0 at most."""

    key: bytes
    source: str
    similarity: float


class _Entry(Generic[Q]):
    __slots__ = ("bucket", "domain", "question", "source", "tenant", "vector")

    def __init__(self, tenant: str, domain: bytes, bucket: bytes, vector: array[float], question: Q, source: str) -> None:
        self.tenant, self.domain, self.bucket = tenant, domain, bucket
        self.vector, self.question, self.source = vector, question, source


class NearAnswers(Generic[Q]):
    """The vectors of one model. Q: what is known of a request's question."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._entries: OrderedDict[bytes, _Entry[Q]] = OrderedDict()
        self._buckets: dict[bytes, dict[bytes, int]] = {}
        self._domains: dict[bytes, OrderedDict[bytes, None]] = {}
        self._tenants: dict[str, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def any(self, bucket: bytes) -> bool:
        """Whether there is anything to compare with."""
        return bucket in self._buckets

    def find(self, bucket: bytes, vector: Vector, least: float, fits: Callable[[Q], bool]) -> Found | None:
        """The nearest one that is `least` near and fits."""
        there = self._buckets.get(bucket)
        if there is None:
            return None
        signs = signs_of(vector)
        apart = [(other ^ signs).bit_count() for other in there.values()]
        worst = min(apart) + len(vector) // 16
        near = sorted((bits, key) for key, bits in zip(there, apart, strict=True) if bits <= worst)[:CLOSEST]
        best: Found | None = None
        for _, key in near:
            entry = self._entries[key]
            if len(entry.vector) == len(vector) and fits(entry.question):
                similarity = cosine(vector, tuple(entry.vector))
                if similarity >= least and (best is None or similarity > best.similarity):
                    best = Found(key, entry.source, similarity)
        return best

    def add(self, key: bytes, tenant: str, domain: bytes, bucket: bytes, vector: Vector, question: Q, source: str, most: int) -> None:
        """most: entries of one domain; the oldest goes first."""
        self.drop(key)
        mine = self._domains.get(domain)
        while mine and len(mine) >= most:
            self.drop(next(iter(mine)))
        while len(self._entries) >= self._most:
            self.drop(next(iter(self._entries)))
        self._entries[key] = _Entry(tenant, domain, bucket, array("f", vector), question, source)
        self._buckets.setdefault(bucket, {})[key] = signs_of(vector)
        self._domains.setdefault(domain, OrderedDict())[key] = None
        self._tenants.setdefault(tenant, set()).add(domain)

    def drop(self, key: bytes) -> None:
        """The answer is not there any more."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        bucket, mine = self._buckets[entry.bucket], self._domains[entry.domain]
        del bucket[key], mine[key]
        if not bucket:
            del self._buckets[entry.bucket]
        if not mine:
            del self._domains[entry.domain]
            domains = self._tenants[entry.tenant]
            domains.discard(entry.domain)
            if not domains:
                del self._tenants[entry.tenant]

    def keep(self, tenants: frozenset[str]) -> None:
        """Forgets the vectors of all other tenants."""
        for tenant in [one for one in self._tenants if one not in tenants]:
            self.purge(tenant=tenant)

    def purge(self, *, tenant: str | None = None, key: bytes | None = None) -> None:
        """Forgets the vectors of the answers that AnswerStore.purge forgets."""
        if key is not None:
            entry = self._entries.get(key)
            if entry is not None and tenant in (None, entry.tenant):
                self.drop(key)
        elif tenant is not None:
            for domain in tuple(self._tenants.get(tenant, ())):
                for each in tuple(self._domains[domain]):
                    self.drop(each)
        else:
            self._entries, self._buckets, self._domains, self._tenants = OrderedDict(), {}, {}, {}


def unit(vector: Sequence[float]) -> Vector | None:
    """The vector with the length 1; None for one that has no direction. Raises ValueError where a number is none, or is too large."""
    try:
        length = sqrt(fsum([number * number for number in vector]))
    except OverflowError:
        length = inf
    if not isfinite(length):
        raise ValueError("a number of its vector is infinite, none or too large")
    if not vector or length < 1e-12:
        return None
    return tuple([number / length for number in vector])


def cosine(one: Vector, other: Vector) -> float:
    """The cosine of two unit vectors, in a sixth of the time of a sum of products."""
    apart = dist(one, other)
    return 1.0 - apart * apart / 2.0


def signs_of(vector: Vector) -> int:
    return int("".join(["1" if number > 0 else "0" for number in vector]), 2)
