"""The names of the keys in Redis. They have one hash tag, so that in a Redis Cluster one server has them all."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import combinations
from typing import Final

from gateway.limits.bucket import Shape

MOST_PLAIN: Final = 64
"""Characters of a scope that is written out."""
MOST_PARTS: Final = 4
MOST_SLASHES: Final = 12
HASHED: Final = "#"
"""What a scope begins with that is shown by its hash."""


class Names:
    """The keys below one prefix: PREFIX:{limits}:bucket:LIMIT:KIND:SCOPE and the like. The kind is what the limit counts and for whom."""

    def __init__(self, prefix: str) -> None:
        self._prefix = b"%b:{limits}:" % prefix.encode()

    def process(self, who: str) -> bytes:
        """The key of a process."""
        return b"%bprocess:%b" % (self._prefix, who.encode())

    def of_limit(self, shape: Shape) -> bytes:
        """What all buckets of a limit begin with."""
        kind = blake2b(repr((shape.spec.per, shape.layout)).encode(), digest_size=6).hexdigest()
        return b"%bbucket:%b:%b:" % (self._prefix, shape.name.encode(), kind.encode())

    @property
    def any_bucket(self) -> bytes:
        """What the keys of all limits' buckets match."""
        return self._prefix + b"bucket:*"

    def bucket(self, shape: Shape, key: tuple[str, ...]) -> bytes:
        return self.of_limit(shape) + _scope(key)

    def told(self, bucket: bytes) -> bytes:
        """The key that holds which share of a budget was announced."""
        return bucket.replace(b"{limits}:bucket:", b"{limits}:told:", 1)

    def took_by(self, shape: Shape, replica: str) -> bytes:
        """What the keys match of all that the processes of a replica took of a limit's budget, each by itself and what is settled."""
        return took_of(self.of_limit(shape), holder_of(replica, "*")) + b"*"

    def replica(self, name: str) -> bytes:
        """Shows that a replica counts here."""
        return b"%breplica:%b" % (self._prefix, name.encode())

    def claim(self, id: str) -> bytes:
        """Where it is kept which replica tells of something."""
        return b"%balert:%b" % (self._prefix, id.encode())

    def meant(self, shape: Shape, scope: str) -> Iterator[bytes]:
        """The buckets that a scope can mean as operators see it: written out, its parts joined by slashes, or by its hash."""
        before = self.of_limit(shape)
        if scope.startswith(HASHED):
            yield before + scope.removeprefix(HASHED).encode()
            return
        for key in keys_of(scope):
            yield before + _scope(key)


def keys_of(scope: str) -> Iterator[tuple[str, ...]]:
    """The keys that a scope can mean, its parts joined by slashes."""
    parts = scope.split("/")
    if len(parts) > MOST_SLASHES:
        return
    for count in range(min(MOST_PARTS, len(parts))):
        for cuts in combinations(range(1, len(parts)), count):
            ends = (*cuts, len(parts))
            yield tuple("/".join(parts[begin:end]) for begin, end in zip((0, *cuts), ends, strict=True))


def took_of(bucket: bytes, holder: bytes) -> bytes:
    """The key of what one process, or all that a replica has settled, took of a budget (`holder_of`)."""
    return bucket.replace(b"{limits}:bucket:", b"{limits}:took:%b:" % holder, 1)


def bucket_of(took: bytes) -> tuple[bytes, str]:
    """The bucket of such a key, and which process of its replica it is; empty: those that are settled."""
    before, after = took.split(b"{limits}:took:", 1)
    holder, rest = after.split(b":", 1)
    return before + b"{limits}:bucket:" + rest, holder.rpartition(b"-")[2].decode(errors="replace")


def holder_of(replica: str, who: str = "") -> bytes:
    """How a process is named in what it took of budgets. Without `who`: all of its replica that are settled."""
    return b"%b-%b" % (blake2b(replica.encode(), digest_size=6).hexdigest().encode(), who.encode())


def _scope(key: tuple[str, ...]) -> bytes:
    scope = "/".join(key)
    if len(scope) > MOST_PLAIN or "/" in "".join(key) or not (scope.isascii() and scope.isprintable()) or " " in scope:
        return blake2b(repr(key).encode(), digest_size=16).hexdigest().encode()
    return scope.encode()


def shown(bucket: bytes, before: bytes) -> str:
    """The scope of a bucket's key, as operators see it."""
    scope = bucket[len(before) :].decode(errors="replace")
    plain = "/" in scope or len(scope) != 32 or not set(scope) <= set("0123456789abcdef")
    return scope if plain else f"{HASHED}{scope}"
