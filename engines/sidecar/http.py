"""The HTTP side of a sidecar's handlers: requests, responses, errors, the path table, and the care around each call."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import msgspec

WATCH_AFTER = 0.01
"""After this many seconds the shell watches a request's connection for a client that leaves; shorter requests never pay for it."""

PRIORITIES = {b"interactive": 0, b"standard": 1, b"batch": 2}
"""Value of ``x-gatehouse-priority`` -> rank; lower runs first."""
_SALT = re.compile(rb"[0-9a-f]{2,128}")
JSON = b"application/json"
SSE = b"text/event-stream; charset=utf-8"
WORKING = b": working\n\n"
"""An SSE comment, which clients ignore (WHATWG HTML 9.2.6): it tells whoever waits for the stream that the engine has not hung."""
MOST_WORDS = 2000
"""Characters of an error's message: some quote what was sent."""
MOST_PARAM = 200
MOST_MILLISECONDS = 31 * 86_400_000
"""Until a deadline."""
WORKING_SECONDS = 5.0
"""Between two such comments while a stream sends nothing else; ``options.working_interval`` overrides it, 0 switches them off."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


Phases = Callable[[], list[tuple[str, int]]]
"""The steps of a request so far, in order, each with its end in nanoseconds of the monotonic clock."""
PHASES = b"x-gatehouse-phases"
"""The header that tells a traced request's phases: `received=N`, then `NAME=N` for each step, separated by semicolons. The gateway,
on the same machine and so with the same clock, makes spans of them (gateway.telemetry.spans)."""


class ApiError(Exception):
    """An error that the client receives as the contract's JSON body."""

    def __init__(
        self, status: int, message: str, *, kind: str = "invalid_request_error", code: str = "invalid_value", param: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.message = message[:MOST_WORDS]
        self.kind = kind
        self.code = code
        self.param = param[:MOST_PARAM] if param is not None else None
        self.headers = headers

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}`, encoded."""
        return msgspec.json.encode({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})


def overloaded(message: str, retry_after: int = 1) -> ApiError:
    """503 with `retry-after`: the queue is full, or the sidecar is draining."""
    return ApiError(
        503, message, kind="overloaded_error", code="overloaded", headers=((b"retry-after", str(retry_after).encode()),)
    )  # fmt: skip


def internal_error(request_id: str) -> ApiError:
    """A 500 that names only the request; the details go to the log."""
    return ApiError(500, f"internal error (request {request_id})", kind="internal_error", code="internal_error")


class Request:
    """One request, its body read to the end.

    `headers` has lower-case names; `params` the placeholders of the route (``/v2/models/{model}/infer``); `priority` is
    0 (interactive), 1 (standard) or 2 (batch); `deadline` is absolute, in seconds of `time.monotonic()`, or None. `cache_salt` names the
    caller's isolation domain, within which cached work may be reused; empty: the domain of direct calls. `received`: when it came, in
    nanoseconds of the monotonic clock, where its caller traces it (the flag of `traceparent`), else 0; a handler that knows its
    phases sets `timed`.
    """

    __slots__ = (
        "body", "cache_salt", "deadline", "headers", "method", "params", "path", "priority", "query", "received", "request_id", "timed",
    )  # fmt: skip

    def __init__(
        self, method: str, path: str, headers: dict[bytes, bytes], body: bytes = b"", params: dict[str, str] | None = None,
        query: bytes = b"",
    ) -> None:  # fmt: skip
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.params = params or {}
        self.priority = PRIORITIES.get(headers.get(b"x-gatehouse-priority", b"standard"), 1)
        self.request_id = headers.get(b"x-request-id", b"-").decode("latin-1")
        self.cache_salt = headers.get(b"x-gatehouse-cache-salt", b"").lower()
        if self.cache_salt and not _SALT.fullmatch(self.cache_salt):
            raise ApiError(400, "x-gatehouse-cache-salt must be 2 to 128 hexadecimal digits", param="x-gatehouse-cache-salt")
        self.timed: Phases | None = None
        self.received = time.perf_counter_ns() if _traced(headers.get(b"traceparent")) else 0
        self.deadline: float | None = None
        left = headers.get(b"x-gatehouse-deadline-ms")
        if left is not None:
            try:
                self.deadline = time.monotonic() + min(max(0, int(left)), MOST_MILLISECONDS) / 1000
            except ValueError:
                raise ApiError(400, "x-gatehouse-deadline-ms must be a whole number", param="x-gatehouse-deadline-ms") from None

    def phases(self) -> tuple[tuple[bytes, bytes], ...]:
        """The header with the phases of a traced request; nothing for any other one."""
        if not self.received or self.timed is None:
            return ()
        steps = [("received", self.received), *self.timed()]
        return ((PHASES, ";".join(f"{name}={at}" for name, at in steps).encode()),)


def _traced(header: bytes | None) -> bool:
    """Whether a `traceparent` has the flag `sampled`, its lowest bit."""
    return header is not None and len(header) >= 55 and header[54] in b"13579bdf"


class Response:
    """A whole response. `headers` are added to content-type and content-length."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self, body: bytes, *, status: int = 200, content_type: bytes = JSON, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers


class Stream:
    """A streamed response. `chunks` yields bytes, each sent as it comes; the shell closes the iterator, whatever happens.

    The status line is sent with the first chunk, so that an error raised before it is still a status. `headers` are added.
    """

    __slots__ = ("chunks", "content_type", "headers")

    def __init__(
        self, chunks: AsyncIterator[bytes], content_type: bytes = SSE, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:  # fmt: skip
        self.chunks = chunks
        self.content_type = content_type
        self.headers = headers


Handler = Callable[[Request], Awaitable[Response | Stream]]
Found = tuple[Handler, dict[str, str], str]
"""A handler, the values of the placeholders, and the route's template (the label of metrics)."""


class Router:
    """Finds handlers: exact paths in one dictionary, templates with `{name}` segments by their number of segments."""

    def __init__(self, routes: Mapping[tuple[str, str], Handler]) -> None:
        self._exact: dict[tuple[str, str], Handler] = {}
        self._templates: dict[tuple[str, int], list[tuple[list[str], Handler, str]]] = {}
        for (method, path), handler in routes.items():
            if "{" in path:
                segments = path.split("/")
                self._templates.setdefault((method, len(segments)), []).append((segments, handler, path))
            else:
                self._exact[method, path] = handler

    def find(self, method: str, path: str) -> Found | None:
        """The handler of a request with its placeholders, or None."""
        handler = self._exact.get((method, path))
        if handler is not None:
            return handler, {}, path
        segments = path.split("/")
        for template, handler, label in self._templates.get((method, len(segments)), ()):
            params = {}
            for part, segment in zip(template, segments, strict=True):
                if part.startswith("{") and part.endswith("}"):
                    params[part[1:-1]] = segment
                elif part != segment:
                    break
            else:
                return handler, params, label
        return None


class HandlerRun:
    """One run of a handler: its deadline, its client's connection, its response. working: seconds of silence after which a stream says
    that the engine works; 0: never."""

    __slots__ = ("handler", "late", "pulse", "quiet_since", "receive", "request", "send", "started", "task", "watcher", "working")

    def __init__(self, request: Request, handler: Handler, receive: Receive, send: Send, working: float = WORKING_SECONDS) -> None:
        self.request = request
        self.handler = handler
        self.receive = receive
        self.send = send
        self.working = working
        self.started = False
        self.late = False
        self.quiet_since = 0.0
        self.pulse: asyncio.Task[None] | None = None
        self.watcher: asyncio.Task[None] | None = None
        self.task: asyncio.Task[Any] | None = None

    async def run(self) -> int:
        """Run the handler and send its answer; returns the status (499: the client left)."""
        loop = asyncio.get_running_loop()
        self.task = asyncio.current_task()
        timers = [loop.call_later(WATCH_AFTER, self._watch)]
        if self.request.deadline is not None:
            timers.append(loop.call_later(max(0.0, self.request.deadline - time.monotonic()), self._expire))
        try:
            return await self._respond()
        except asyncio.CancelledError:
            if not self.late:
                return 499  # the client left: nobody to answer
            if self.task is not None:
                self.task.uncancel()
            return await self._fail(ApiError(504, "the deadline has passed", kind="timeout_error", code="engine_timeout"))
        except ApiError as error:
            return await self._fail(error)
        except Exception as exc:  # noqa: BLE001 - boundary: one request's fault must not end the others; answered with 500
            sys.excepthook(type(exc), exc, exc.__traceback__)
            return await self._fail(internal_error(self.request.request_id))
        finally:
            for timer in timers:
                timer.cancel()
            if self.watcher is not None:
                self.watcher.cancel()

    async def _respond(self) -> int:
        response = await self.handler(self.request)
        if isinstance(response, Response):
            response.headers += self.request.phases()
            await send_whole(self.send, response)
            return response.status
        chunks = response.chunks
        timer = self._beat(response) if self.working and response.content_type == SSE else None
        try:
            async for chunk in chunks:
                if not self.started:
                    await self._head(response)
                self.quiet_since = time.monotonic()
                await self.send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            if timer is not None:
                timer.cancel()
            if self.pulse is not None:
                self.pulse.cancel()
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()
        if not self.started:
            await self._head(response)
        await self.send({"type": "http.response.body", "body": b""})
        return 200

    def _beat(self, response: Stream) -> asyncio.TimerHandle:
        """Starts the pulse once a stream has lasted for the interval; shorter ones pay only for a timer."""
        loop = asyncio.get_running_loop()
        self.quiet_since = time.monotonic()

        def begin() -> None:
            self.pulse = loop.create_task(self._pulse(response))

        return loop.call_later(self.working, begin)

    async def _pulse(self, response: Stream) -> None:
        """Sends a comment whenever nothing was sent for the interval. The status line goes out with the first chunk or comment."""
        while True:
            left = self.quiet_since + self.working - time.monotonic()
            if left > 0:
                await asyncio.sleep(left)
                continue
            self.quiet_since = time.monotonic()
            if not self.started:
                await self._head(response)
            await self.send({"type": "http.response.body", "body": WORKING, "more_body": True})

    async def _head(self, response: Stream) -> None:
        self.started = True
        headers = [(b"content-type", response.content_type), (b"cache-control", b"no-store"), *response.headers, *self.request.phases()]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _fail(self, error: ApiError) -> int:
        """Send an error: before the first byte as a status, after it as an SSE event and `[DONE]`."""
        if self.started:
            await self.send({"type": "http.response.body", "body": b"data: " + error.body() + b"\n\ndata: [DONE]\n\n"})
        else:
            await send_whole(self.send, Response(error.body(), status=error.status, headers=error.headers))
        return error.status

    def _watch(self) -> None:
        self.watcher = asyncio.get_running_loop().create_task(self._gone())

    async def _gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        if self.task is not None:
            self.task.cancel()

    def _expire(self) -> None:
        self.late = True
        if self.task is not None:
            self.task.cancel()


async def send_whole(send: Send, response: Response) -> None:
    headers = [(b"content-type", response.content_type), (b"content-length", str(len(response.body)).encode()), *response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
