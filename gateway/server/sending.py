"""How much of an answer is on its way before its client has taken it.

Two buffers stand between an engine and a client that does not read: the transport's, which pauses the engine, and below it the kernel's,
which grows to megabytes by itself. TCP_NOTSENT_LOWAT bounds what the kernel holds without having sent it, so that the transport's buffer
fills and the engine pauses; what is on the wire is not bounded by it, so a distant client that reads loses no throughput.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket


def bound_sending(transport: asyncio.Transport, size: int) -> None:
    """Bounds what the transport, and again what the kernel, holds unsent, to `size` bytes. Where the system has no such option, or the
    connection does not use TCP, the transport's bound is the only one."""
    transport.set_write_buffer_limits(size, size // 4)
    sock = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if sock is not None and option is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, size)


def not_connected(data: bytes) -> None:
    """Stands for a transport that is not there yet."""
    raise RuntimeError("the connection is not made yet")


def gone(data: bytes) -> None:
    """Drops what is written to a client that has left."""
