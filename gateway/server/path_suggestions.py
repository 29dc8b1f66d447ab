"""Refuses paths that do not exist, and suggests the right one: usually the client's base URL has `/v1` twice, not at all, or a whole
path."""

from __future__ import annotations

from typing import Final

from gateway.core.errors import RequestError
from gateway.wire.table import find

_MOST: Final = 512
_SEGMENTS: Final = 8
_BEFORE: Final = b"/v1"
_READ: Final = frozenset({b"/v1/models", b"/v1/files", b"/v1/batches"})
_SWITCHED: Final = (
    (b"/v1/files", "Files are not enabled here (files.enabled)."),
    (b"/v1/batches", "Batches are not enabled here (batches.enabled)."),
)
_ELSEWHERE: Final = b"/v1/messages/batches"
"""Anthropic's own, of which nothing here is the same."""
_ROOTS: Final = ("models", "engines", "files", "batches", "tickets", "stream", "responses/resp_")
_HERE: Final = (b"/v2", b"/auth/", b"/health", b"/livez", b"/readyz", b"/.well-known/", *(f"/v1/{root}".encode() for root in _ROOTS))
"""How all other paths of this listener begin."""


def is_nowhere(path: bytes) -> bool:
    """Whether no path of this listener, for any method, begins like this one."""
    return find(path) is None and not path.startswith(_HERE)


def unknown(path: bytes) -> RequestError:
    """The refusal of a path that does not exist, or does not while a setting is off."""
    for root, off in _SWITCHED:
        if path == root or path.startswith(root + b"/"):
            return RequestError(off, code="not_found", status=404)
    return RequestError(f"There is no {path.decode('latin-1')[:200]}.{suggested(path)}", code="not_found", status=404)


def suggested(path: bytes) -> str:
    """A sentence that suggests the path that exists and is the longest suffix of this one; "" if there is none."""
    if path.endswith(b"/") and (path[:-1] in _READ or find(path[:-1]) is not None):
        return f" Did you mean {path[:-1].decode('latin-1')}, without the slash at its end?"
    start = 0 if len(path) <= _MOST and not path.startswith(_ELSEWHERE) else -1
    for _ in range(_SEGMENTS):
        if start < 0:
            break
        tail = path[start:]
        for likely in (tail, _BEFORE + tail):
            if likely in _READ or find(likely) is not None:
                return f" Did you mean {likely.decode('latin-1')}? If so, correct the client's base URL."
        start = path.find(b"/", start + 1)
    return ""
