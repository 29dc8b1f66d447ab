"""Closing a connection without losing what was written on it.

When a socket closes with unread bytes, or bytes arrive after it closed, the kernel answers with a reset, and a reset throws away what the
client had not read yet: the answer. So our side is closed first (`half_close`), the client's bytes are read and dropped until it closes
too or LINGER_SECONDS have passed, and only then does the socket close (RFC 9112, 9.6).
"""

from __future__ import annotations

import asyncio
from typing import Final

LINGER_SECONDS: Final = 2.0
"""How long a client's bytes are read and dropped after the last answer."""
STALL_SECONDS: Final = 30.0
"""A closing connection whose client takes nothing of what is unsent for so long is cut."""


def half_close(transport: asyncio.Transport, held: bool) -> bool:
    """Sends our end of file behind what was written, and reads on if reading was `held`. False where the transport cannot (TLS)."""
    if not transport.can_write_eof():
        return False
    if held:
        transport.resume_reading()
    transport.write_eof()
    return True


def close_or_cut(transport: asyncio.Transport, unsent_before: int) -> int:
    """Closes once everything is sent; cuts when nothing was taken since the last call. Returns the bytes that are unsent."""
    unsent = transport.get_write_buffer_size()
    if unsent and unsent == unsent_before:
        transport.abort()
    else:
        transport.close()
    return unsent
