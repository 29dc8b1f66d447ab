"""Reads the PROXY protocol's header from a connection that was just accepted, and not a byte behind it: what follows is for TLS or HTTP.

The bytes are looked at while they stay in the kernel (MSG_PEEK) until the header is whole; SO_RCVLOWAT keeps those that are there already
from waking us again. That way nothing must be put back where a header is optional and something else has come.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from gateway.server.proxy_protocol import FIXED, MAX_LENGTH, BadHeader, Header, Incomplete, parse

AGAIN_SECONDS: Final = 0.05
"""Between two looks at a connection that says there is more, where there is none: it has ended, or the system is short of memory."""
MOST_AGAIN: Final = 3


async def read_header(sock: socket.socket, seconds: float, *, required: bool) -> Header | None:
    """The header, taken off the connection; None where there is none and it is not required. Raises BadHeader, also for one that is not
    there after `seconds`, and OSError. A header that came while this process stood still, and its deadline passed, counts."""
    found: Header | Incomplete | None
    try:
        async with asyncio.timeout(seconds):
            found = await _seen(sock)
    except TimeoutError:
        found = _last_look(sock)
        if isinstance(found, Incomplete):
            raise BadHeader(f"no whole header after {seconds:g} s") from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    if found is None:
        if required:
            raise BadHeader("something else than a header")
        return None
    taken = 0
    while taken < found.length:
        taken += len(sock.recv(found.length - taken))
    return found


async def _seen(sock: socket.socket) -> Header | None:
    seen = again = 0
    while True:
        await _readable(sock)
        data = sock.recv(FIXED + MAX_LENGTH, socket.MSG_PEEK)
        if len(data) == seen:
            again += 1
            if not data or again > MOST_AGAIN:
                raise BadHeader(f"the connection ended after {seen} bytes")
            await asyncio.sleep(AGAIN_SECONDS)
            continue
        seen = len(data)
        found = parse(data)
        if not isinstance(found, Incomplete):
            return found
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, found.needed)


def _last_look(sock: socket.socket) -> Header | Incomplete | None:
    """What is there without waiting."""
    try:
        return parse(sock.recv(FIXED + MAX_LENGTH, socket.MSG_PEEK))
    except BlockingIOError:
        return Incomplete(1)


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(sock.fileno(), _set, readable)
    try:
        await readable
    finally:
        loop.remove_reader(sock.fileno())


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
