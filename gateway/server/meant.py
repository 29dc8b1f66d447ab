"""What a client means whose path does not exist: as a rule its base URL has `/v1` twice, not at all, or a whole path."""

from __future__ import annotations

from typing import Final

from gateway.wire.table import find

_MOST: Final = 512
_SEGMENTS: Final = 8
_BEFORE: Final = b"/v1"
_READ: Final = frozenset({b"/v1/models", b"/v1/files", b"/v1/batches"})


def meant(path: bytes) -> str:
    """A sentence with the path that exists and has the longest end of this one; "" where there is none."""
    start = 0 if len(path) <= _MOST else -1
    for _ in range(_SEGMENTS):
        if start < 0:
            break
        tail = path[start:]
        for likely in (tail, _BEFORE + tail):
            if likely in _READ or find(likely) is not None:
                return f" Did you mean {likely.decode('latin-1')}? If so, correct the client's base URL."
        start = path.find(b"/", start + 1)
    return ""
