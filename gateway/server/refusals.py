"""Answers to requests that never became an exchange."""

from __future__ import annotations

from typing import Final

from gateway.core.errors import GatehouseError, RequestError
from gateway.core.specs import CorsSpec
from gateway.core.types import Headers, Peer
from gateway.pipeline.plane import DataPlane
from gateway.pipeline.statuses import status_line
from gateway.server.cors import cors_headers
from gateway.server.login import record_denial
from gateway.server.request import Refusal
from gateway.wire.table import identity_lines, refusal

NO_HEADERS: Final[Headers] = {}


def answer(plane: DataPlane, peer: Peer, refusal: Refusal, cors: CorsSpec) -> bytes:
    """The whole response, with the request's own identifier and origin where its head was whole. It is counted and recorded as a denial,
    in a flood of them once in a second."""
    error, request = refusal.error, refusal.request
    request_id = plane.next_id() if request is None else request.request_id
    plane.metrics.denied(error.status, error.code)
    record_denial(plane, peer, request_id, error)
    if request is None:
        return plain_error(error, plane.date, request_id)
    lines = cors_headers(cors, request.headers) if cors.origins else b""
    return plain_error(error, plane.date, request_id, lines, request.raw_path, request.headers)


def plain_error(
    error: GatehouseError, date: bytes, request_id: bytes, lines: bytes = b"", path: bytes = b"", headers: Headers = NO_HEADERS
) -> bytes:
    """The whole response; the connection closes after it. lines: further header lines. path, headers: of the request, where known."""
    status, body = refusal(error, path, headers, request_id)
    extra = (
        lines
        + identity_lines(path, request_id)
        + b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in error.headers)
    )
    if error.retry_after is not None:
        extra += b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (-(-error.retry_after // 1), -(-error.retry_after * 1000 // 1))
    return (
        b"HTTP/1.1 %b\r\ndate: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n"
        b"x-gatehouse-overhead-us: 0\r\n%bconnection: close\r\n\r\n%b" % (status_line(status), date, len(body), request_id, extra, body)
    )


def head_too_large(limit: int) -> RequestError:
    return RequestError(f"The request's head is larger than {limit} bytes or has too many headers.", code="request_too_large", status=431)


def body_too_large(limit: int) -> RequestError:
    return RequestError(f"The body is larger than {limit} bytes.", code="request_too_large", status=413)
