"""Checks on a request's head that the parser does not make."""

from __future__ import annotations

import pytest

from gateway.core.types import Headers
from gateway.server.head import check_head, foreign_protocol, has_dot_segment, split_target
from gateway.server.path_suggestions import unknown
from gateway.wire.table import APIS

HOST: Headers = {b"host": b"a"}


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/a", b"/a", b""),
        (b"/a?b=c?d", b"/a", b"b=c?d"),
        (b"/a#f", b"/a#f", b""),
        (b"/a#f?b", b"/a#f", b"b"),
        (b"/a?b#c", b"/a", b"b#c"),
        (b"/a%2fb/../c;d//e", b"/a%2fb/../c;d//e", b""),
        (b"http://evil/v1/models", b"/v1/models", b""),
        (b"HTTPS://user@evil:1/v1/models?a", b"/v1/models", b"a"),
        (b"http://evil", b"/", b""),
        (b"http://evil?a=b", b"/", b"a=b"),
        (b"ftp://evil/x", b"ftp://evil/x", b""),
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
        {b"content-length": b"0100" + b" " * 30},
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
    assert check_head(b"POST", b"/", HOST | headers, 100) is None


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({b"content-length": b"101"}, 413, "request_too_large"),
        ({b"content-length": b"9" * 20}, 413, "request_too_large"),
        ({b"content-length": b"9" * 21}, 400, "invalid_header"),
        ({b"content-length": b"0" * 5000 + b"5"}, 400, "invalid_header"),
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
    error = check_head(b"POST", b"/v1/chat/completions", HOST | headers, 100)
    assert error is not None
    assert (error.status, error.code) == (status, code)


FORM = {b"content-type": b"multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    "path", [b"/", b"/v1/images/edits", b"/v1/uploads", b"/v1/responses/compact", b"/api/chat", b"/images/generations"]
)
def test_a_form_to_a_path_that_does_not_exist_is_told_so(path: bytes) -> None:
    error = check_head(b"POST", path, HOST | FORM, 100)
    assert error is not None and (error.status, error.code) == (404, "not_found")
    assert error.message.startswith(f"There is no {path.decode()}.")
    assert ("Did you mean /v1/images/generations?" in error.message) is (path == b"/images/generations")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (b"/v1/chat/completions/", " Did you mean /v1/chat/completions, without the slash at its end?"),
        (b"/v1/models/", " Did you mean /v1/models, without the slash at its end?"),
        (b"/chat/completions/", ""),
        (b"/v1/nothing/", ""),
        (b"/v1/v1/chat/completions", " Did you mean /v1/chat/completions? If so, correct the client's base URL."),
    ],
)
def test_a_path_that_is_nearly_one_is_told_which(path: bytes, words: str) -> None:
    assert unknown(path).message == f"There is no {path.decode()}.{words}"


EVERY = [path for api in APIS if not api.forms for path in api.paths]


@pytest.mark.parametrize(
    "path", [*EVERY, b"/v2/models/m/infer", b"/v1/engines/m/completions", b"/v1/batches", b"/v1/tickets", b"/v1/models", b"/v1/stream"]
)
@pytest.mark.parametrize("kind", [b"text/plain", b"application/x-www-form-urlencoded", *FORM.values()])
def test_a_form_of_another_page_reaches_no_path_of_json(path: bytes, kind: bytes) -> None:
    error = check_head(b"POST", path, HOST | {b"content-type": kind}, 100)
    assert error is not None and (error.status, error.code) == (415, "unsupported_media_type")


def test_a_host_is_needed() -> None:
    error = check_head(b"GET", b"/", {}, 100)
    assert error is not None and error.code == "invalid_header"


def test_the_content_type_of_a_get_does_not_matter() -> None:
    assert check_head(b"GET", b"/", HOST | {b"content-type": b"text/plain"}, 100) is None


@pytest.mark.parametrize(
    "path",
    [b"/.", b"/..", b"/a/../b", b"/a/%2e%2e/b", b"/a/.%2E/b", b"/a/%2e", b"/a/1%2f..%2f..", b"/a/..;x/b", b"/a/..%5cb", b"/a\\..\\b"],
)
def test_dot_segments_are_seen_in_every_spelling(path: bytes) -> None:
    assert has_dot_segment(path)
    error = check_head(b"POST", path, HOST, 100)
    assert error is not None and (error.status, error.code) == (400, "invalid_request")


@pytest.mark.parametrize("path", [b"/", b"/v1/models/gpt-3.5", b"/v1/models/a%2fb", b"/...", b"/a/..b", b"/a/%252e%252e/b", b"*"])
def test_dots_that_are_part_of_a_name_pass(path: bytes) -> None:
    assert not has_dot_segment(path)


@pytest.mark.parametrize(
    ("data", "foreign"),
    [
        (b"SETUP rtsp://a/b RTSP/1.0\r\n", True),
        (b"}GET /x RTSP/1.0\r\n", True),
        (b"GET /x ICE/1.0\r\n", True),
        (b"GET /x HTTP/1.1\r\n", False),
        (b"server: x RTSP/1.0\r\n", False),
        (b'{"text": "say RTSP/1.0"}', False),
    ],
)
def test_another_protocol_is_seen_by_its_request_line(data: bytes, foreign: bool) -> None:
    assert foreign_protocol(data) is foreign


@pytest.mark.parametrize(
    "host", [b"", b"a", b"a:80", b"a:", b"gate-way.example.com:8080", b"127.0.0.1:1", b"[::1]:80", b"[::ffff:1.2.3.4]", b"a_b"]
)
def test_hosts_that_pass(host: bytes) -> None:
    assert check_head(b"GET", b"/", {b"host": host}, 100) is None


@pytest.mark.parametrize(
    "host", [b"a b", b"a, b", b"a/b", b"u@a", b"a?b", b"a#b", b"a:b", b"a:1:2", b"::1", b"[::1", b"[a]x", b"\xe4", b"a\\b"]
)
def test_what_is_no_host_is_refused(host: bytes) -> None:
    error = check_head(b"GET", b"/", {b"host": host}, 100)
    assert error is not None and (error.status, error.code) == (400, "invalid_header")


@pytest.mark.parametrize("bound", [0, 9, 10, 999_999, 1_000_000, 1_000_001, 10**9])
@pytest.mark.parametrize("zeros", [b"", b"00", b"0000000"])
def test_a_body_may_have_just_as_many_bytes(bound: int, zeros: bytes) -> None:
    heads = [{**HOST, b"content-length": zeros + b"%d" % (bound + more)} for more in (0, 1)]
    fits, too_large = [check_head(b"POST", b"/", head, bound) for head in heads]
    assert fits is None and too_large is not None and too_large.status == 413
