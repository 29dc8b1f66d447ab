"""Checks on a request's head that the parser does not make (RFC 9110, RFC 9112)."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from gateway.core.errors import RequestError
from gateway.core.types import Headers
from gateway.server.path_suggestions import is_nowhere, unknown
from gateway.wire.table import APIS

QUESTION_MARK, UNDERSCORE, PERCENT, DOT, SLASH = b"?_%./"
"""As integers: `x in data` costs ten times as much when x is bytes, because Python first tries x as a number."""
REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}").fullmatch
"""A caller's own request identifier is kept when it has this form."""
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE).match
_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(?::[0-9]*)?").fullmatch
"""RFC 9112, 3.2: what an authority may have; empty for a target without one."""
_SHORT: Final = 6
_ANY_SHORT: Final = 1_000_000
"""A number of up to _SHORT digits is smaller."""
_LONG: Final = 20
"""Digits of the largest number of 64 bits. The parser takes any number of zeros before it, of which Python reads 4,300 digits."""
FORMS: Final = frozenset({b"/auth/token", b"/v1/files", *(path for api in APIS if api.forms for path in api.paths)})
"""The paths that take forms (gateway.server.tokens, gateway.server.uploads, gateway.server.files_and_batches)."""
_PREFACE: Final = "PRI/Upgrade"
"""What the parser says of the first line of HTTP/2 (RFC 9113, 3.4)."""
_NO_LENGTH: Final = ("Content-Length overflow", "Invalid character in Content-Length", "Empty Content-Length")
"""How it ends what it says of a length that is none (RFC 9110, 8.6)."""
_SEGMENTS: Final = re.compile(rb"[/\\]").split
_REQUEST_LINE: Final = re.compile(rb"[A-Z_-]+ [^ \r\n]+ (?!HTTP/)[A-Z]+/\d\.\d\r?\n").search


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """(path, query) of a request target. Of an absolute form (RFC 9112, 3.2.2) only the path counts; no decision depends on a host.

    The path is neither decoded nor normalised: every other spelling of a known path is an unknown path. So is one with a fragment, which no
    target has.
    """
    if target[0] != SLASH and (match := _ABSOLUTE(target)) is not None:
        target = target[match.end() :]
        if not target.startswith(b"/"):
            target = b"/" + target
    if QUESTION_MARK not in target:
        return target, b""
    path, _, query = target.partition(b"?")
    return path, query


def has_dot_segment(path: bytes) -> bool:
    """Whether a segment of the path is `.` or `..` in any spelling, which whoever resolves it takes for another path."""
    if DOT not in path and PERCENT not in path:
        return False
    decoded = unquote_to_bytes(path)
    return any(segment.partition(b";")[0] in (b".", b"..") for segment in _SEGMENTS(decoded))


def foreign_protocol(data: bytes) -> bool:
    """Whether the data contains a request line of another protocol. The parser takes `RTSP/1.0` and `ICE/1.0` for `HTTP/1.0`."""
    return _REQUEST_LINE(data) is not None


def no_length() -> RequestError:
    return RequestError("The Content-Length header is not a valid number.", code="invalid_header")


def malformed(said: str) -> RequestError:
    """What is wrong with a request that the parser does not take. said: by it."""
    if said.endswith(_NO_LENGTH):
        return no_length()
    if _PREFACE in said:
        return RequestError("HTTP/2 is not supported; use HTTP/1.1.", code="invalid_request")
    return RequestError(f"Malformed HTTP request: {said[:200]}.", code="invalid_request")


def check_head(method: bytes, path: bytes, headers: Headers, max_body: int) -> RequestError | None:
    """What is wrong with a head, or None. The parser has checked its syntax, the form of Content-Length and the transfer coding."""
    if has_dot_segment(path):
        return RequestError("The path contains a segment '.' or '..'; send the resolved path.", code="invalid_request")
    length = headers.get(b"content-length")
    if length is not None and (len(length) > _SHORT or max_body < _ANY_SHORT):
        if len(length) > _LONG and len(length.rstrip()) > _LONG:
            return no_length()
        if int(length) > max_body:
            return RequestError(f"The body is larger than {max_body} bytes.", code="request_too_large", status=413)
    if b"transfer-encoding" in headers and (length is not None or headers[b"transfer-encoding"].lower() != b"chunked"):
        return RequestError("Send either Content-Length or Transfer-Encoding: chunked.", code="invalid_header")
    host = headers.get(b"host")
    if host is None:
        if b":version" not in headers:  # HTTP/1.0 has none: load balancers' checks come without
            return RequestError("The Host header is missing.", code="invalid_header")
    elif _HOST(host) is None:
        return RequestError("The Host header is not a host and a port.", code="invalid_header")
    if method == b"POST" and (kind := headers.get(b"content-type")) is not None and kind != b"application/json":
        base = kind.partition(b";")[0].strip().lower()
        if base not in (b"application/json", b"application/octet-stream", b"") and path not in FORMS:
            if is_nowhere(path):  # refused either way; this says what is wrong
                return unknown(path)
            return RequestError("Send the body as application/json.", code="unsupported_media_type", status=415)
    if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
        return RequestError(
            "Encoded bodies are not accepted; send the body without a Content-Encoding.", code="unsupported_media_type", status=415
        )
    if (expect := headers.get(b"expect")) is not None and expect.lower() != b"100-continue":
        return RequestError("Expect: only 100-continue is supported.", code="invalid_header")
    return None
