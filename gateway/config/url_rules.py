"""What the address of a server that the gateway calls must be."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit

from gateway.core.errors import ConfigError


def check_url(url: str, path: str, error: Callable[[str, str], ConfigError], instead: str = "use api_key or headers") -> None:
    """instead: what replaces credentials. Raises ConfigError."""
    if " " in url or not url.isprintable():
        raise error(path, "must not hold spaces or control characters; write http://HOST:PORT or https://HOST:PORT")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise error(path, "is not a URL; write http://HOST:PORT or https://HOST:PORT") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise error(path, "must begin with http:// or https:// and name a host, such as http://10.0.0.5:8000")
    if parts.username is not None or parts.password is not None:
        raise error(path, f"must not hold a user or password; {instead}")
    if parts.query or parts.fragment:
        raise error(path, "must not hold a query or fragment")


def is_local(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
