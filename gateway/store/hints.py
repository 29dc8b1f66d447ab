"""Hints between replicas: small messages that make another replica look at once at what it would look at soon anyway.

A hint proves nothing. Whoever can write to the carrier can make replicas look, at a bounded pace, and nothing else: what is true is
read from the store, or probed. So a hint needs no signature, may be lost, doubled or made up, and one that comes late does no harm.
"""

from __future__ import annotations

from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta, Struct, field

CHANNEL: Final = "gatehouse"
"""The channel in PostgreSQL (NOTIFY) and in Redis."""
LONGEST: Final = 2000
"""Bytes of a hint; PostgreSQL carries 7,999."""
MOST: Final = 32
"""Endpoints in one hint."""


class Hint(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """origin: who sent it, so that it is not heard there. seq: a change of this number was committed. roll: look at the roll of replicas.

    endpoints: digests of addresses (`gateway.app.replicas.endpoint_hints`) whose state has changed at the sender, to be probed.
    """

    origin: Annotated[str, Meta(max_length=64)] = field(default="", name="o")
    seq: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = field(default=0, name="c")
    roll: bool = field(default=False, name="r")
    endpoints: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=MOST)] = field(default=(), name="e")


class Carrier(Protocol):
    """One way by which hints travel. Life: `start`, `aclose`. Reports what it hears, and that `sure` has changed, to callbacks."""

    name: str
    transactional: bool
    """Whether the store sends a hint of each change over it, in the same transaction. Then who hears at all hears of every change."""

    @property
    def sure(self) -> bool:
        """Whether it was shown lately that hints arrive here."""
        ...

    def start(self) -> None: ...

    def verify(self) -> None:
        """A hint did not come that should have: finds out at once whether hints still arrive."""
        ...

    async def send(self, hint: Hint) -> None:
        """Raises StoreUnavailable when it certainly did not leave."""
        ...

    async def aclose(self) -> None: ...


def encode(hint: Hint) -> str:
    return msgspec.json.encode(hint).decode("ascii")


def decode(text: str | bytes) -> Hint | None:
    """None for anything that is not a hint."""
    if len(text) > LONGEST:
        return None
    try:
        return msgspec.json.decode(text, type=Hint)
    except (msgspec.DecodeError, UnicodeError):
        return None
