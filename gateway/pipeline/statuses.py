"""Status lines of HTTP, and the audit log's words for how an exchange ended."""

from __future__ import annotations

from typing import Final

from gateway.core.errors import ClientStalled, EngineTimeout, GatehouseError

_REASONS: Final = {
    200: b"200 OK",
    204: b"204 No Content",
    400: b"400 Bad Request",
    401: b"401 Unauthorized",
    403: b"403 Forbidden",
    404: b"404 Not Found",
    405: b"405 Method Not Allowed",
    408: b"408 Request Timeout",
    409: b"409 Conflict",
    413: b"413 Content Too Large",
    415: b"415 Unsupported Media Type",
    422: b"422 Unprocessable Content",
    429: b"429 Too Many Requests",
    431: b"431 Request Header Fields Too Large",
    500: b"500 Internal Server Error",
    502: b"502 Bad Gateway",
    503: b"503 Service Unavailable",
    504: b"504 Gateway Timeout",
    507: b"507 Insufficient Storage",
    529: b"529 Overloaded",
}


def status_line(status: int) -> bytes:
    """`429 Too Many Requests`"""
    return _REASONS.get(status) or b"%d Status" % status


def outcome_of(error: GatehouseError) -> str:
    """The audit's word for how an error ended an exchange."""
    if isinstance(error, EngineTimeout | ClientStalled):
        return "timeout"
    return "denied" if error.status < 500 else "failed"
