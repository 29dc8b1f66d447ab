"""Checks on a request's head that the parser does not make."""

from __future__ import annotations

import pytest

from gateway.core.types import Headers
from gateway.server.head import check_framing, split_target

HOST: Headers = {b"host": b"a"}


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a", b"/a", b""),
        (b"/a?b=c?d", b"/a", b"b=c?d"),
        (b"/a#f", b"/a", b""),
        (b"/a#f?b", b"/a", b"b"),
        (b"/a?b#c", b"/a", b"b#c"),
        (b"/a%2fb/../c;d//e", b"/a%2fb/../c;d//e", b""),
        (b"http://evil/v1/models", b"http://evil/v1/models", b""),
        (b"*", b"*", b""),
    ],
)
def test_the_path_is_taken_as_it_is(target: bytes, path: bytes, query: bytes) -> None:
    assert split_target(target) == (path, query)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"content-length": b"100"},
        {b"transfer-encoding": b"chunked"},
        {b"transfer-encoding": b"Chunked"},
        {b"content-type": b"application/json"},
        {b"content-type": b"Application/JSON; charset=utf-8"},
        {b"content-type": b"application/octet-stream"},
        {b"content-type": b""},
        {b"content-encoding": b"Identity"},
        {b"expect": b"100-Continue"},
    ],
)
def test_heads_that_pass(headers: Headers) -> None:
    assert check_framing(b"POST", HOST | headers, 100) is None


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({b"content-length": b"101"}, 413, "request_too_large"),
        ({b"content-length": b"9" * 30}, 413, "request_too_large"),
        ({b"transfer-encoding": b"gzip, chunked"}, 400, "invalid_header"),
        ({b"transfer-encoding": b"identity"}, 400, "invalid_header"),
        ({b"transfer-encoding": b"chunked, chunked"}, 400, "invalid_header"),
        ({b"transfer-encoding": b"chunked", b"content-length": b"5"}, 400, "invalid_header"),
        ({b"content-type": b"text/plain"}, 415, "unsupported_media_type"),
        ({b"content-type": b"multipart/form-data; boundary=x"}, 415, "unsupported_media_type"),
        ({b"content-type": b"application/jsonx"}, 415, "unsupported_media_type"),
        ({b"content-encoding": b"gzip"}, 415, "unsupported_media_type"),
        ({b"expect": b"200-ok"}, 400, "invalid_header"),
    ],
)
def test_heads_that_do_not(headers: Headers, status: int, code: str) -> None:
    error = check_framing(b"POST", HOST | headers, 100)
    assert error is not None
    assert (error.status, error.code) == (status, code)


def test_a_host_is_needed() -> None:
    error = check_framing(b"GET", {}, 100)
    assert error is not None and error.code == "invalid_header"


def test_the_type_of_a_body_that_a_get_has_not_is_nobodys_concern() -> None:
    assert check_framing(b"GET", HOST | {b"content-type": b"text/plain"}, 100) is None
