"""Base classes of what the processes of one gateway send each other over the feed (gateway.app.workers).

A message is a frozen record without behaviour; its kind on the wire is its class's name. Fields may have any type that msgspec can encode,
and `Secret`, which is opened only on the feed. A field that is added later needs a default, as the other process may be of the release
before.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct


class Message(Struct, frozen=True, omit_defaults=True):
    """Something that one process tells the other, without an answer."""


A_co = TypeVar("A_co", bound=Message, covariant=True)


class Ask(Message, Generic[A_co], frozen=True):
    """A question; its parameter is the type of the answer: `class FindKey(Ask[KeyFound], frozen=True)`."""


class Done(Message, frozen=True):
    """The answer that says no more than that it was done."""
