"""Ports for requests whose bodies are passed on while they arrive."""

from __future__ import annotations

from typing import Protocol


class BodySink(Protocol):
    """A request under way to an engine that takes the rest of its body."""

    def more(self, data: bytes) -> None:
        """Sends some of the body."""
        ...

    def last(self) -> None:
        """The body is complete."""
        ...


class BodySource(Protocol):
    """What gives the rest of a body. sent: all of it was given."""

    sent: bool

    def attached(self, sink: BodySink) -> None:
        """The engine's connection is there, and what came before was written to it."""
        ...

    def pause(self) -> None:
        """The engine takes what was written slowly: nothing more is to come."""
        ...

    def resume(self) -> None:
        """It has taken most of it."""
        ...
