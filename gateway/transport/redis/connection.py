"""One connection to a Redis: commands are pipelined, and each reply belongs to the oldest command that has none yet.

There is nothing else to match them by, so a command can be given up but not taken back: who does not want its reply any more lets it come
and ignores it. A connection that is `behind` too far is closed by its owner.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

from gateway.transport.redis.address import Address, Login, Target
from gateway.transport.redis.resp import NotRedis, Parser, Push, RedisError, Reply, command

ASKING: Final = command("ASKING")
HIGH_WATER: Final = 1024 * 1024
"""Bytes that may wait to be sent; beyond them the connection is `clogged`."""
UNACKNOWLEDGED_MS: Final = 3000
"""After so long without an acknowledgement by the other machine's kernel a connection is dead. A process that hangs is not."""


class Unreachable(Exception):
    """There is no connection, or no more."""


class Connection(asyncio.Protocol):
    """on_lost(error) is called once, after every command without a reply was told the same. on_push(message): what was not asked for."""

    def __init__(self, on_lost: Callable[[Exception], None], on_push: Callable[[list[Any]], None] | None = None) -> None:
        self._on_lost, self._on_push = on_lost, on_push
        self._parser = Parser()
        self._waiting: deque[Callable[[Any], None]] = deque()
        self._transport: asyncio.Transport | None = None
        self._lost = False
        self.clogged = False
        self.asking = False
        """Set while this server of a Redis Cluster is about to get the keys: it takes the command only after ASKING."""

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        found = transport.get_extra_info("socket")
        if found is not None and found.family != socket.AF_UNIX:
            watch(found)

    def pause_writing(self) -> None:
        self.clogged = True

    def resume_writing(self) -> None:
        self.clogged = False

    def data_received(self, data: bytes) -> None:
        try:
            replies = self._parser.feed(data)
        except NotRedis as error:
            self.lose(error)
            return
        for reply in replies:
            if isinstance(reply, Push) or not self._waiting or (self._on_push is not None and _is_message(reply)):
                if self._on_push is None or not isinstance(reply, list):
                    self.lose(NotRedis("it answers what was not asked"))
                    return
                self._on_push(reply)
            else:
                self._waiting.popleft()(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(exc or Unreachable("Redis has closed the connection"))

    # --- the owner's side

    @property
    def behind(self) -> int:
        """Commands without a reply."""
        return len(self._waiting)

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._lost

    def send(self, data: bytes, on_reply: Callable[[Any], None]) -> None:
        """Sends one command. on_reply(reply) is called once, with an Unreachable when the connection is lost. It must not raise."""
        if self._transport is None or self._lost:
            on_reply(Unreachable("the connection is closed"))
            return
        if self.asking:
            self._waiting.append(_nothing)
            data = ASKING + data
        self._waiting.append(on_reply)
        self._transport.write(data)

    def ask(self, *words: str | bytes) -> asyncio.Future[Any]:
        """The reply to a command; RedisError for an error. The future fails with Unreachable."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def replied(reply: Any) -> None:
            if answer.done():
                return
            if isinstance(reply, Unreachable):
                answer.set_exception(reply)
            else:
                answer.set_result(reply)

        self.send(command(*words), replied)
        return answer

    async def must(self, *words: str | bytes) -> Reply:
        """The reply to a command. Raises Unreachable, also for an error."""
        reply = await self.ask(*words)
        if isinstance(reply, RedisError):
            raise Unreachable(f"Redis refuses {words[0]!r}: {reply}")
        return cast(Reply, reply)

    def lose(self, error: Exception) -> None:
        """Closes the connection because of an error. Only the first call does something."""
        if self._lost:
            return
        self._lost = True
        if self._transport is not None:
            self._transport.abort()
        found = Unreachable(str(error) or type(error).__name__)
        while self._waiting:
            self._waiting.popleft()(found)
        self._on_lost(found)

    def close(self) -> None:
        self.lose(Unreachable("the connection was closed here"))


def _nothing(reply: Any) -> None:
    """What is said to ASKING: the answer to the command tells the same."""


def _is_message(reply: object) -> bool:
    """What a channel carries; in RESP2 it looks like any reply."""
    return isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message"


def watch(found: socket.socket) -> None:
    """Lets the kernel end a connection whose other machine is gone, whether something is being sent or not."""
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS)):
        if (option := getattr(socket, name, None)) is not None:
            found.setsockopt(socket.IPPROTO_TCP, option, value)


async def connect(
    to: Target,
    address: Address,
    login: Login,
    on_lost: Callable[[Exception], None],
    on_push: Callable[[list[Any]], None] | None = None,
) -> Connection:
    """A connection that is logged in. The caller has a deadline. Raises OSError or Unreachable."""
    loop = asyncio.get_running_loop()
    made = Connection(on_lost, on_push)
    try:
        if address.path:
            await loop.create_unix_connection(lambda: made, address.path)
        elif to.tls is None:
            await loop.create_connection(lambda: made, address.host, address.port)
        else:
            await loop.create_connection(
                lambda: made, address.host, address.port, ssl=to.tls, server_hostname=to.server_name or address.host
            )
        if login.password is not None:
            await made.must("AUTH", *([login.user] if login.user else []), login.password.reveal())
    except BaseException:
        made.close()
        raise
    return made
