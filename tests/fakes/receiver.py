"""A Receiver that keeps what it gets and lets a test wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from gateway.core.types import ResponseHead
from gateway.transport.http1 import EngineCall


async def until(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Turns the loop until `condition()` is true."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0)


class Sink:
    """Records the calls of a transport in order. `raise_in`: the callback that raises RuntimeError, to try the boundary."""

    def __init__(self, raise_in: Literal["", "head", "body", "end", "failed"] = "") -> None:
        self.call: EngineCall | None = None
        self.head: ResponseHead | None = None
        self.chunks: list[bytes] = []
        self.ended = False
        self.errors: list[Exception] = []
        self.calls: list[str] = []
        self.can_leave = False
        self.on_call: Callable[[str], None] | None = None
        self._raise_in = raise_in
        self._watchers: list[asyncio.Future[None]] = []

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def error(self) -> Exception | None:
        return self.errors[0] if self.errors else None

    @property
    def over(self) -> bool:
        return self.ended or bool(self.errors)

    def on_head(self, head: ResponseHead) -> None:
        self.head = head
        self._called("head")

    def on_body(self, data: bytes) -> None:
        self.chunks.append(data)
        self._called("body")

    def on_end(self) -> None:
        self.ended = self._raise_in != "end"
        self._called("end")

    def on_failed(self, error: Exception) -> None:
        self.errors.append(error)
        self._called("failed")

    def stranded(self) -> bool:
        return self.can_leave

    def _called(self, what: str) -> None:
        self.calls.append(what)
        watchers, self._watchers = self._watchers, []
        for future in watchers:
            if not future.done():
                future.set_result(None)
        if self.on_call is not None:
            self.on_call(what)
        if what == self._raise_in:
            raise RuntimeError(f"planted in {what}")

    async def until(self, condition: Callable[[], bool], timeout: float = 60.0) -> None:
        """Waits until a call makes `condition` true; AssertionError after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not condition():
            future: asyncio.Future[None] = loop.create_future()
            self._watchers.append(future)
            await asyncio.wait([future], timeout=max(0.0, deadline - loop.time()))
            if not future.done():
                raise AssertionError(f"the receiver did not get there within {timeout} s; calls: {self.calls[-10:]}")

    async def finished(self, timeout: float = 60.0) -> Sink:
        """Waits for the end; raises what the transport reported instead."""
        await self.until(lambda: self.over, timeout)
        if self.errors:
            raise self.errors[0]
        return self

    async def failed(self, timeout: float = 60.0) -> Exception:
        """Waits for a failure and returns it."""
        await self.until(lambda: bool(self.errors), timeout)
        return self.errors[0]
