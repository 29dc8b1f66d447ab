"""Ports where nobody listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def empty_port() -> Iterator[int]:
    """A loopback port that refuses connections, and is kept: no other program gets it, and no connection that goes to it comes from it,
    which would be answered by itself. A FakeEngine of the test may listen there, end, and come again."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield int(kept.getsockname()[1])
