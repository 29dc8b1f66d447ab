"""Cross-origin access: off by default, never with credentials, preflights for known origins only."""

from __future__ import annotations

import pytest

from gateway.core.specs import CorsSpec
from gateway.core.types import Headers
from gateway.server.cors import allowed_origin, cors_headers, preflight_headers

ONE = CorsSpec(origins=("https://app.example",), max_age=60.0)
ANY = CorsSpec(origins=("*",))


@pytest.mark.parametrize(
    ("spec", "origin", "expected"),
    [
        (CorsSpec(), b"https://app.example", None),
        (ONE, b"https://app.example", b"https://app.example"),
        (ONE, b"https://app.example.evil", None),
        (ONE, b"https://APP.example", None),
        (ONE, b"null", None),
        (ONE, b"\xff", None),
        (ONE, None, None),
        (ANY, b"https://other", b"*"),
        (ANY, None, None),
    ],
)
def test_which_origins_may(spec: CorsSpec, origin: bytes | None, expected: bytes | None) -> None:
    headers: Headers = {} if origin is None else {b"origin": origin}
    assert allowed_origin(spec, headers) == expected
    block = cors_headers(spec, headers)
    if expected is None:
        assert block == b""
    else:
        assert block.startswith(b"access-control-allow-origin: %b\r\nvary: origin\r\n" % expected)
        assert block.endswith(b"\r\n")
    assert b"credentials" not in block


def test_what_clients_wait_and_retry_by_can_be_read_by_a_page() -> None:
    exposed = cors_headers(ONE, {b"origin": b"https://app.example"}).decode().rpartition("expose-headers: ")[2].strip().split(", ")
    buckets = {f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")}
    assert {"x-request-id", "retry-after", "retry-after-ms", "x-should-retry"} | buckets <= set(exposed)
    assert {"www-authenticate", "dpop-nonce"} <= set(exposed), "else a page cannot make the proof that it is asked for"
    assert {f"x-gatehouse-{name}" for name in ("model", "endpoint", "overhead-us", "cache", "cost", "truncated")} <= set(exposed)


def test_a_preflight() -> None:
    headers = {b"origin": b"https://app.example", b"access-control-request-method": b"POST", b"access-control-request-headers": b"x-a"}
    found = dict(preflight_headers(ONE, headers) or [])
    assert found[b"access-control-allow-origin"] == b"https://app.example"
    assert found[b"access-control-allow-headers"] == b"x-a"
    assert found[b"access-control-max-age"] == b"60"
    assert {b"GET", b"POST", b"DELETE"} <= set(found[b"access-control-allow-methods"].split(b", "))  # DELETE: of responses and files
    assert b"origin" in found[b"vary"]


def test_a_preflight_that_names_no_headers_may_log_in() -> None:
    found = dict(preflight_headers(ANY, {b"origin": b"o", b"access-control-request-method": b"GET"}) or [])
    assert b"authorization" in found[b"access-control-allow-headers"]


@pytest.mark.parametrize(
    "headers",
    [
        {b"origin": b"https://evil", b"access-control-request-method": b"POST"},
        {b"origin": b"https://app.example"},
        {b"access-control-request-method": b"POST"},
    ],
)
def test_what_is_no_preflight_that_may(headers: Headers) -> None:
    assert preflight_headers(ONE, headers) is None
