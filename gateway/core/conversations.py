"""Answers that are kept so that a later request can continue from them: the messages with which the data plane stores and finds them.

Every answer belongs to a tenant. To other tenants it does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from msgspec import Struct

from gateway.core.messages import Ask, Done, Message
from gateway.core.values import Principal


class Said(Struct, frozen=True, kw_only=True):
    """What is kept of one answer. items: the conversation that led to it and its own output; answer: all of it. Both as JSON. labels: of
    its data."""

    items: bytes
    answer: bytes
    labels: tuple[str, ...] = ()


class KeepAnswer(Ask[Done], frozen=True, kw_only=True):
    """Keeps an answer. began: when its request did (time.perf_counter, which the processes of a machine share). Refused with RequestError
    where it is too large, Overloaded where the tenant has too many, PermissionDenied where the caller was deleted since; StoreUnavailable.
    """

    id: str
    tenant: str
    owner: str
    model: str
    said: Said
    began: float


class AnswerFound(Message, frozen=True, kw_only=True):
    """said: None where the tenant has no such answer. model: that gave it; owner: whom it was given to (`owner_of`)."""

    model: str = ""
    owner: str = ""
    said: Said | None = None


class FindAnswer(Ask[AnswerFound], frozen=True, kw_only=True):
    """Looks for an answer. erase: also deletes it."""

    id: str
    tenant: str
    erase: bool = False


def owner_of(caller: Principal) -> str:
    """The owner of an answer within its tenant: a person, whichever of their credentials they use, or a credential that has no person."""
    return owner("user", caller.user) if caller.user else owner(caller.kind, caller.id)


def owner(kind: str, id: str) -> str:
    """kind: `user`, or that of a credential."""
    return f"{kind} {id}"


class ConversationDesk(Protocol):
    """Where a data plane has answers kept. Both fail with StoreUnavailable."""

    def keep(self, wanted: KeepAnswer) -> Awaitable[Done]: ...

    def find(self, wanted: FindAnswer) -> Awaitable[AnswerFound]: ...
