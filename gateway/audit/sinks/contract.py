"""What an audit sink is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Batch(bytes):
    """Whole lines of one writer's log, in their order. (writer, seq) of a line is unique for ever: receivers remove duplicates by it."""

    writer: str = ""


def batch_of(writer: str, lines: bytes) -> Batch:
    made = Batch(lines)
    made.writer = writer
    return made


class Unacceptable(Exception):
    """The receiver will never take this batch: not as a whole, or, where it is one line, not at all. It says why."""


class Sink(Protocol):
    """Takes batches of lines, those of a writer in order. Called in a thread of its own, where it may block, each call up to a deadline of
    the sink's. A batch comes again until it is accepted, and may come again after that."""

    def write(self, batch: Batch) -> None:
        """Accepts whole lines, all of them or none. Raises OSError when it cannot now, Unacceptable when it never will."""
        ...

    def probe(self) -> None:
        """Raises OSError when a write would not succeed now."""
        ...

    async def aclose(self) -> None:
        """Lets go of everything; nothing may be written afterwards."""
        ...


@runtime_checkable
class Unsure(Protocol):
    """What a sink has besides whose receiver confirms nothing: bytes that the network took may never have been read."""

    unsure_bytes: int
    """As many of the newest accepted bytes come again after a connection was lost."""

    def finish(self) -> bool:
        """Ends the connection in an orderly way; whether the receiver has read everything."""
        ...
