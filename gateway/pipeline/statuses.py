"""Status lines of HTTP, and the audit log's words for how an exchange ended."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from gateway.core.errors import ClientStalled, EngineTimeout, GatehouseError

_REASONS: Final = {
    **{status.value: b"%d %b" % (status.value, status.phrase.encode()) for status in HTTPStatus},
    413: b"413 Content Too Large",
    422: b"422 Unprocessable Content",
    529: b"529 Overloaded",
}
"""The phrases of the standard library, and what it lacks or still calls as before RFC 9110."""


def status_line(status: int) -> bytes:
    """`429 Too Many Requests`"""
    return _REASONS.get(status) or b"%d Status" % status


def outcome_of(error: GatehouseError) -> str:
    """The audit's word for how an error ended an exchange."""
    if isinstance(error, EngineTimeout | ClientStalled):
        return "timeout"
    return "denied" if error.status < 500 else "failed"
