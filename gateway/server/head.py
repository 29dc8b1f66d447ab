"""Checks on a request's head that the parser does not make (RFC 9110, RFC 9112)."""

from __future__ import annotations

import re
from typing import Final

from gateway.core.errors import RequestError
from gateway.core.types import Headers

QUESTION_MARK, HASH, UNDERSCORE = b"?#_"
"""As integers: to ask whether bytes are in bytes costs ten times as much, as Python first takes the first for a number and fails."""
REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}").fullmatch
"""A caller's own request identifier is taken over when it has this form."""


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """(path, query) of a request target in origin form. The path is taken as it is: nothing is decoded or normalised, so that
    every spelling but the plain one of a path is another path, and 404."""
    if QUESTION_MARK not in target and HASH not in target:
        return target, b""
    path, _, query = target.partition(b"?")
    return path.partition(b"#")[0], query


def check_framing(method: bytes, headers: Headers, max_body: int) -> RequestError | None:
    """What is wrong with the head, or None. The parser has checked syntax, Content-Length's form and the transfer coding."""
    length = headers.get(b"content-length")
    if length is not None and int(length) > max_body:
        return RequestError(f"The body is larger than {max_body} bytes.", code="request_too_large", status=413)
    if b"transfer-encoding" in headers and (length is not None or headers[b"transfer-encoding"].lower() != b"chunked"):
        return RequestError("Only a plain Content-Length or Transfer-Encoding: chunked is accepted.", code="invalid_header")
    if b"host" not in headers:
        return RequestError("The Host header is missing.", code="invalid_header")
    if method == b"POST" and (kind := headers.get(b"content-type")) is not None and kind != b"application/json":
        base = kind.partition(b";")[0].strip().lower()
        if base not in (b"application/json", b"application/octet-stream", b""):
            return RequestError("Send the body as application/json.", code="unsupported_media_type", status=415)
    if b"content-encoding" in headers and headers[b"content-encoding"].lower() != b"identity":
        return RequestError("Encoded bodies are not accepted; send the body as it is.", code="unsupported_media_type", status=415)
    if (expect := headers.get(b"expect")) is not None and expect.lower() != b"100-continue":
        return RequestError("Only Expect: 100-continue is known.", code="invalid_header")
    return None
