"""Cross-origin resource sharing of the data listener (https://fetch.spec.whatwg.org/#http-cors-protocol); off by default.

Preflights are answered without a credential; credentials travel in headers that a page sets itself, never in cookies, so
`access-control-allow-credentials` is not sent.
"""

from __future__ import annotations

from gateway.core.specs import CorsSpec
from gateway.core.types import Headers

EXPOSED = (
    "x-request-id, request-id, x-gatehouse-overhead-us, x-gatehouse-model, x-gatehouse-endpoint, x-gatehouse-cache, x-gatehouse-truncated, "
    "x-gatehouse-cost, inference-header-content-length, retry-after, retry-after-ms, x-should-retry, www-authenticate, dpop-nonce, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
"""The headers of our answers that scripts may read; the OpenAI client decides about retries by some of them, and a DPoP proof needs the
nonce (RFC 9449, 8)."""


def allowed_origin(spec: CorsSpec, headers: Headers) -> bytes | None:
    """The value of access-control-allow-origin for this request, or None."""
    origin = headers.get(b"origin")
    if origin is None:
        return None
    if "*" in spec.origins:
        return b"*"
    return origin if origin.decode("latin-1") in spec.origins else None


def cors_headers(spec: CorsSpec, headers: Headers) -> bytes:
    """The header lines for the answer to this request."""
    origin = allowed_origin(spec, headers)
    if origin is None:
        return b""
    return b"access-control-allow-origin: %b\r\nvary: origin\r\naccess-control-expose-headers: %b\r\n" % (origin, EXPOSED.encode())


def preflight_headers(spec: CorsSpec, headers: Headers) -> list[tuple[bytes, bytes]] | None:
    """The headers that answer a preflight, or None when this origin is not allowed."""
    origin = allowed_origin(spec, headers)
    if origin is None or b"access-control-request-method" not in headers:
        return None
    return [
        (b"access-control-allow-origin", origin),
        (b"vary", b"origin, access-control-request-method, access-control-request-headers"),
        (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"authorization, content-type")),
        (b"access-control-max-age", b"%d" % spec.max_age),
    ]
