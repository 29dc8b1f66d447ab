"""What an audit sink is."""

from __future__ import annotations

from typing import Protocol


class Sink(Protocol):
    """Takes batches of finished lines, in order. Called in a thread of the audit log, where it may block."""

    def write(self, batch: bytes) -> None:
        """Accepts whole lines, all of them or none. Raises OSError; the same batch may then be tried again."""
        ...

    def probe(self) -> None:
        """Raises OSError when a write would not succeed now."""
        ...

    async def aclose(self) -> None:
        """Lets go of everything; nothing may be written afterwards."""
        ...
