"""Gathers the writes of one turn of the event loop into one system call, so that an answer's head never leaves without its body.

uvicorn writes head and body one after the other. A process that is killed between the two leaves its client with the beginning of an
answer, which cannot be asked for again elsewhere, although nothing of it was of use. It is also one call and one wake-up less.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

MOST: Final = 1 << 16
"""Bytes that are gathered at most: more is handed on at once, so that the transport's own bound holds a fast writer back."""


class GatheringTransport:
    """A transport whose `write` is carried out at the end of the loop's turn, or before `close`. All else is the transport's own."""

    __slots__ = ("_loop", "_parts", "_size", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Takes the bytes; they leave with what else is written in this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > MOST:
            self._flush()

    def close(self) -> None:
        """Hands on what was written, then closes."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if not parts or self._transport.is_closing():
            return
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)
