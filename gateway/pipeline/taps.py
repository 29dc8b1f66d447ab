"""An attempt whose engine call is observed: what the engine sends is passed on unchanged, and noted."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from gateway.core.ports import Attempt, AttemptResult, Call, Receiver
from gateway.core.slices import Steps
from gateway.core.types import InferenceRequest, ResponseHead, Usage
from gateway.pipeline.wrapping import WrappedAttempt
from gateway.wire.sse import begins_stream, named_stream, read_steps


class Room:
    """Bytes of answers that may be kept at once for all the calls that share it."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Seen:
    """One engine call, as it went. foreign: the request was put in OpenAI's format. most: bytes of the answer that are kept; beyond, or
    where there is no room, it is not `whole`. left: its attempt was over first. Give the room back with `drop`."""

    __slots__ = ("_held", "_room", "began", "ended", "error", "first", "foreign", "head", "left", "most", "parts", "whole")

    def __init__(self, room: Room, most: int) -> None:
        self._room, self.most = room, most
        self._held = 0
        self.began = self.first = self.ended = 0.0
        self.foreign, self.whole, self.left = False, True, False
        self.head: ResponseHead | None = None
        self.error: Exception | None = None
        self.parts: list[bytes] = []

    @property
    def status(self) -> int:
        return 0 if self.head is None else self.head.status

    def begin(self, foreign: bool) -> None:
        self.began, self.foreign = perf_counter(), foreign

    def came(self, data: bytes) -> None:
        if not self.first:
            self.first = perf_counter()
        if not self.whole:
            return
        size = len(data)
        if self._held + size > self.most or size > self._room.left:
            self.whole = False
            self.drop()
            return
        self._held += size
        self._room.left -= size
        self.parts.append(data)

    def end(self, error: Exception | None = None) -> None:
        self.ended, self.error = perf_counter(), error

    def drop(self) -> None:
        """Drops what was kept of the answer."""
        self.parts.clear()
        self._room.left += self._held
        self._held = 0

    def read(self, request: InferenceRequest, texts: bool) -> Steps[tuple[Usage | None, str, list[str], bool]]:
        """(usage, why the model stopped, the texts of the answer, whether it refused) of a whole answer with status 200, in slices. Changes
        the request's `foreign`. Raises EngineError for what cannot be read."""
        request.foreign = self.foreign
        api, body = request.api, b"".join(self.parts)
        streams = request.stream and self.head is not None and (named_stream(self.head) or begins_stream(body) is True)
        if streams:
            reader = api.reader(request)
            events = body.replace(b"\r\n", b"\n")
            body = yield from read_steps(reader, events[: events.rfind(b"\n\n") + 2])
            usage, finish = reader.usage, reader.finish
            body = (yield from api.whole_steps(body)) if texts and api.generates else b""
        else:
            body = api.received(request, body)
            usage, finish = api.answer_usage(request, body), api.answer_finish(body)
        found = list(api.contents(body)) if texts and api.generates and body else []
        return usage, finish, found, finish in ("content_filter", "refusal") or b'"refusal":"' in body


class Tap:
    """Receiver of a call that is observed. done: called once with what was seen, unless the call is cancelled."""

    __slots__ = ("_done", "_receiver", "seen")

    def __init__(self, receiver: Receiver, seen: Seen, done: Callable[[Seen], None]) -> None:
        self._receiver, self.seen, self._done = receiver, seen, done

    def on_head(self, head: ResponseHead) -> None:
        self.seen.head = head
        self._receiver.on_head(head)

    def on_body(self, data: bytes) -> None:
        self.seen.came(data)
        self._receiver.on_body(data)

    def on_end(self) -> None:
        self.seen.end()  # before the receiver hears of it, which may close the attempt at once
        self._receiver.on_end()  # it may raise: then `on_failed` follows
        self._done(self.seen)

    def on_failed(self, error: Exception) -> None:
        self.seen.end(error)
        self._receiver.on_failed(error)
        self._done(self.seen)

    def stranded(self) -> bool:
        return self._receiver.stranded()


class TappedAttempt(WrappedAttempt):
    """An attempt whose call is observed. gone: called once it is closed."""

    __slots__ = ("_gone",)

    def __init__(
        self,
        attempt: Attempt,
        request: InferenceRequest,
        seen: Seen,
        done: Callable[[Seen], None],
        gone: Callable[[Seen, AttemptResult], None],
    ) -> None:
        super().__init__(attempt, TappedClient(attempt, request, seen, done))
        self._gone: Callable[[AttemptResult], None] = lambda result: gone(seen, result)

    def close(self, result: AttemptResult) -> None:
        self._attempt.close(result)
        self._gone(result)


class TappedClient:
    """The way to the endpoint of an attempt that is observed."""

    __slots__ = ("_client", "_done", "_request", "_seen", "base_path")

    def __init__(self, attempt: Attempt, request: InferenceRequest, seen: Seen, done: Callable[[Seen], None]) -> None:
        self._client, self._request, self._seen, self._done = attempt.client, request, seen, done
        self.base_path = attempt.client.base_path

    def send(
        self, head: bytes, body: bytes, receiver: Receiver, first_byte_timeout: float, idle_timeout: float, source: Any = None
    ) -> Call:
        self._seen.begin(self._request.foreign)
        return self._client.send(head, body, Tap(receiver, self._seen, self._done), first_byte_timeout, idle_timeout, source)

    def forsake(self) -> None:
        """Probes tell the endpoint's own client."""

    async def aclose(self) -> None:
        """The endpoint's own client stays open."""


def failed(seen: Seen) -> bool:
    """Whether an engine has not answered, or has said that it cannot."""
    return seen.error is not None or seen.status == 429 or seen.status >= 500 or not seen.status
