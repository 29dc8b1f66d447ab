"""How operations become requests: what the synchronous and the asynchronous connection share."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from gatehouse.client.errors import AdminError

PREFIX: Final = "/admin/v1"
MAX_PAUSE: Final = 30.0
"""Seconds of the longest pause before a request is sent again."""
AGAIN: Final = frozenset((429, 503))


@dataclass(frozen=True, slots=True)
class Call:
    """One request. body: sent as JSON. content, media: sent as they are. query, headers: those that are None are left out."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    content: Any = None
    media: str = ""

    @property
    def repeatable(self) -> bool:
        """Whether it can be sent twice without being done twice."""
        return self.method in ("GET", "HEAD") or self.headers.get("Idempotency-Key") is not None

    def options(self) -> dict[str, Any]:
        """As httpx takes it."""
        headers = {name: etag(value) if name == "If-Match" else str(value) for name, value in self.headers.items() if value is not None}
        options: dict[str, Any] = {"params": [(name, text(value)) for name, value in self.query.items() if value is not None]}
        if self.body is not None:
            headers["content-type"] = "application/json"
            options["content"] = msgspec.json.encode(self.body)
        elif self.content is not None:
            headers["content-type"] = self.media
            options["content"] = self.content
        return {**options, "headers": headers}


def segment(value: str) -> str:
    """A name as one segment of a path, whatever is in it."""
    return quote(value, safe="")


def text(value: Any) -> str:
    """A query parameter."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, str | int | float):
        return str(value)
    return ",".join(map(text, value))


def etag(value: int | str) -> str:
    """If-Match for a resource's `version`, or for an ETag as it came."""
    return f'"{value}"' if isinstance(value, int) else value


def failed(response: httpx.Response) -> AdminError:
    """The error in an answer that has been read."""
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    return AdminError(response.status_code, problem if isinstance(problem, dict) else {}, response.reason_phrase, pause_asked(response))


def pause_asked(response: httpx.Response) -> float | None:
    """Retry-After in seconds (RFC 9110); None where it is a date or absent."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 9 else None


def pause_before(attempt: int, asked: float | None) -> float | None:
    """Seconds to wait before the next attempt; None: the gateway asks for more patience than this client has."""
    if asked is not None:
        return asked if asked <= MAX_PAUSE else None
    return float(min(0.25 * 2**attempt, MAX_PAUSE))


def decoded(response: httpx.Response) -> Any:
    """The JSON of an answer; None where it has none. Raises AdminError for an answer that is not the admin API's."""
    if not response.content:
        return None
    try:
        return msgspec.json.decode(response.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        problem = {"detail": f"{response.url.host} did not answer with JSON: is it the admin listener?"}
        raise AdminError(response.status_code, problem) from None


def checked(url: str, key: str) -> tuple[str, dict[str, str]]:
    """The base URL and the headers of every request. Raises ValueError for what cannot be sent."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ValueError("url must be http://HOST:PORT or https://HOST:PORT of the admin listener")
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("key must be printable ASCII without spaces")
    return url.rstrip("/") + PREFIX, {"authorization": f"Bearer {key}"}


def uses_environment(url: str) -> bool:
    """Whether a proxy of the environment may be used: never to this machine, and only with TLS, without which it would read the key."""
    return urlsplit(url).scheme == "https" and not is_loopback(url)


def is_loopback(url: str) -> bool:
    """Whether a URL leads to this machine."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
