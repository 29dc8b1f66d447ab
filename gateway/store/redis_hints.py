"""Hints over Redis's PUBLISH and SUBSCRIBE, for databases that cannot carry them and for poolers that swallow PostgreSQL's.

Two connections, one that listens and one that publishes: a listening one may do nothing else (RESP2, which every Redis and Valkey speaks).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import SplitResult, unquote, urlsplit

from gateway.core.clock import Entropy
from gateway.core.errors import ConfigError, StoreUnavailable
from gateway.core.secret import Secret
from gateway.store.hints import CHANNEL, LONGEST, Hint, encode
from gateway.store.listening import PATIENCE, PING_SECONDS, Broken, Ear, Listener

MOST_BYTES: Final = LONGEST + 1024
"""Of one reply or message, and of a line in it; nothing that is asked for here is longer."""
MOST_PARTS: Final = 16
Reply = int | bytes | None | list[Any] | Broken


class Replies:
    """Takes the bytes of RESP2 as they come and gives whole replies. An error reply is a Broken, returned and not raised."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Reply]:
        """Raises Broken for what is no RESP2, or longer than anything that is expected here."""
        self._data += data
        found: list[Reply] = []
        while (one := self._one(0)) is not None:
            reply, end = one
            del self._data[:end]
            found.append(reply)
        if len(self._data) > MOST_BYTES * MOST_PARTS:
            raise Broken("a reply is too long")
        return found

    def _one(self, at: int) -> tuple[Reply, int] | None:
        """The reply that begins here with the position after it, or None while it is not whole."""
        end = self._data.find(b"\r\n", at, at + MOST_BYTES)
        if end < 0:
            if len(self._data) - at > MOST_BYTES:
                raise Broken("a line is too long")
            return None
        kind, line, after = self._data[at : at + 1], bytes(self._data[at + 1 : end]), end + 2
        if kind == b"+":
            return line, after
        if kind == b"-":
            return Broken(line.decode(errors="replace")), after
        number = self._number(line)
        if kind == b":":
            return number, after
        if kind == b"$":
            return self._bulk(number, after)
        if kind == b"*":
            return self._array(number, after)
        raise Broken("this is no Redis")

    @staticmethod
    def _number(line: bytes) -> int:
        if not line.removeprefix(b"-").isdigit() or len(line) > 20:
            raise Broken("this is no Redis")
        return int(line)

    def _bulk(self, length: int, at: int) -> tuple[Reply, int] | None:
        if length == -1:
            return None, at
        if not 0 <= length <= MOST_BYTES:
            raise Broken("a reply is too long")
        if len(self._data) < at + length + 2:
            return None
        if self._data[at + length : at + length + 2] != b"\r\n":
            raise Broken("this is no Redis")
        return bytes(self._data[at : at + length]), at + length + 2

    def _array(self, count: int, at: int) -> tuple[Reply, int] | None:
        if count > MOST_PARTS:
            raise Broken("a reply is too long")
        parts: list[Any] = []
        for _ in range(count):
            if self._data[at : at + 1] == b"*":
                raise Broken("a reply is nested")
            one = self._one(at)
            if one is None:
                return None
            parts.append(one[0])
            at = one[1]
        return parts, at


class Link(asyncio.Protocol):
    """One connection: commands and their replies, in order, and messages of channels in between."""

    def __init__(self, on_message: Callable[[bytes, bytes], None], on_lost: Callable[[Exception], None]) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self._replies, self._waiting = Replies(), deque[asyncio.Future[Reply]]()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._replies.feed(data):
                if isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message":
                    self._on_message(reply[1], reply[2])
                elif self._waiting and not (waiting := self._waiting.popleft()).done():
                    waiting.set_result(reply)
        except Broken as error:
            self.lose(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(exc or Broken("Redis has closed the connection"))

    def lose(self, error: Exception) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(Broken(str(error)))
        self.close()
        self._on_lost(error)

    def ask(self, *words: str) -> asyncio.Future[Reply]:
        """Sends a command; the future has the reply, or Broken."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._transport is None or self._transport.is_closing():
            answer.set_result(Broken("the connection is closed"))
            return answer
        parts = [word.encode() for word in words]
        self._transport.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        self._waiting.append(answer)
        return answer

    async def must(self, *words: str) -> Reply:
        """The reply to a command. Raises Broken for an error."""
        reply = await self.ask(*words)
        if isinstance(reply, Broken):
            raise reply
        return reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def parsed(url: Secret) -> SplitResult:
    """Raises ConfigError for what is no address of a Redis."""
    try:
        found = urlsplit(url.reveal())
        host = bool(found.hostname) and found.port != 0
        whole = (found.scheme == "unix" and bool(found.path)) or (found.scheme in ("redis", "rediss") and host)
    except ValueError:
        whole = False
    if not whole:
        raise ConfigError("is redis://[USER:PASSWORD@]HOST[:PORT], rediss://... for TLS, or unix:///PATH", path="redis.url")
    return found


class RedisHints(Listener):
    """Implements gateway.store.hints.Carrier. timeout: seconds that a hint may take to leave. Raises ConfigError for the URL."""

    name = "redis"
    transactional = False

    def __init__(
        self,
        url: Secret,
        timeout: float,
        incarnation: str,
        hear: Callable[[Hint], None],
        changed: Callable[[], None],
        entropy: Entropy,
        *,
        ping: float = PING_SECONDS,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(incarnation, hear, changed, entropy, ping, patience)
        self._url, self._timeout = parsed(url), timeout
        self._tls = ssl.create_default_context() if self._url.scheme == "rediss" else None

    async def open(self) -> Ear:
        ear = RedisEar(self.own, self.heard)
        try:
            for link in (ear.listening, ear.publishing):
                await self._connect(link)
        except BaseException:
            ear.close()
            raise
        return ear

    async def _connect(self, link: Link) -> None:
        loop, url = asyncio.get_running_loop(), self._url
        if url.scheme == "unix":
            await loop.create_unix_connection(lambda: link, unquote(url.path))
        else:
            await loop.create_connection(lambda: link, url.hostname or "", url.port or 6379, ssl=self._tls)
        if url.password is not None:
            await link.must("AUTH", *([unquote(url.username)] if url.username else []), unquote(url.password))

    async def send(self, hint: Hint) -> None:
        ear = self._ear
        if not isinstance(ear, RedisEar) or not self.sure:
            raise StoreUnavailable("Redis does not answer.")
        try:
            async with asyncio.timeout(self._timeout):
                await ear.publishing.must("PUBLISH", CHANNEL, encode(hint))
        except (Broken, TimeoutError) as error:
            raise StoreUnavailable(f"Redis did not take a hint: {error or 'too late'}") from None


class RedisEar(Ear):
    def __init__(self, own: str, heard: Callable[[str], None]) -> None:
        super().__init__(own, heard)
        self.listening = Link(self._message, self.failed)
        self.publishing = Link(self._message, self.failed)

    def _message(self, channel: bytes, payload: bytes) -> None:
        self.take(channel, payload.decode(errors="replace"))
        self.moved()

    async def listen(self, patience: float) -> None:
        async with asyncio.timeout(patience):
            for channel in (CHANNEL, self._own):
                await self.listening.must("SUBSCRIBE", channel)

    def say(self, number: int) -> None:
        self.publishing.ask("PUBLISH", self._own, str(number))

    def close(self) -> None:
        self.listening.close()
        self.publishing.close()
