"""One small request to an endpoint and its whole answer, for probes and warm-ups; clients' requests do not come this way.

It uses the data plane's own transport, which costs the event loop a tenth of a millisecond. A general HTTP client costs three, and eighty
for each new client's TLS context.
"""

from __future__ import annotations

import asyncio

from gateway.core.types import ResponseHead
from gateway.transport.pool import EndpointClient

MAX_BODY = 64 * 1024
NO_TIMEOUT = 3600.0


class Reply:
    """What came; the body is cut off a little beyond `max_body`. A Receiver; `done` fails with an EngineError."""

    def __init__(self, max_body: int = MAX_BODY) -> None:
        self._max_body = max_body
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.head = ResponseHead(0, [])
        self.body = b""

    def on_head(self, head: ResponseHead) -> None:
        self.head = head

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > self._max_body:
            self.on_end()

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def on_failed(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def stranded(self) -> bool:
        return False


async def ask(
    client: EndpointClient, method: str, path: str, headers: dict[str, str], body: bytes = b"", *, max_body: int = MAX_BODY
) -> Reply:
    """Raises EngineError. Has no deadline of its own; cancelling it ends the call."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    start = f"{method} ".encode() + client.base_path + f"/{path.lstrip('/')} HTTP/1.1\r\naccept: */*\r\n{lines}".encode("latin-1")
    answer = Reply(max_body)
    call = client.send(start, body, answer, NO_TIMEOUT, NO_TIMEOUT)
    try:
        await answer.done
    finally:
        call.cancel()
    return answer
