"""Addresses of endpoints: `http://host:port[/base]`, `https://host:port[/base]`, `unix:/path`; and TLS towards them.

`http://host:port#10.0.0.5:8000` is dialled there, while requests and certificates keep the name; `#-` cannot be dialled. No setting may
hold either (gateway.config.validate): gateway.config.expand writes them for what a name was resolved to.
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from gateway.core.addresses import quotable
from gateway.core.errors import ConfigError
from gateway.core.host_port import parse_host_port
from gateway.core.specs import ClientTlsSpec

MAX_UNIX_PATH = 107
"""Bytes that fit into sockaddr_un.sun_path on Linux before the final zero."""

CONTEXTS = 64
"""TLS contexts that are kept."""
Stamp = tuple[int, ...]


class Address(Struct, frozen=True):
    """Where an endpoint is. `host_header`: the value of Host. `base_path`: the prefix of every path, without a final slash.
    dial: the address to connect to instead of resolving the host; ("", 0): there is none."""

    scheme: Literal["http", "https", "unix"]
    host: str
    port: int
    path: str
    host_header: bytes
    base_path: bytes
    dial: tuple[str, int] | None = None


def parse_address(text: str) -> Address:
    """Parses an endpoint's address. Raises ConfigError, which says in one sentence what is wrong."""
    unix = text.startswith("unix:")
    if any(c < " " or c == "\x7f" or (c == " " and not unix) for c in text):
        raise ConfigError(f"{quotable(text)!r}: an address must not contain {'' if unix else 'spaces or '}control characters")
    if unix:
        path = text.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/"):
            raise ConfigError(f"{quotable(text)!r}: a Unix socket needs an absolute path, such as unix:/run/engine.sock")
        if len(path.encode()) > MAX_UNIX_PATH:
            raise ConfigError(f"{quotable(text)!r}: the path of a Unix socket is limited to {MAX_UNIX_PATH} bytes")
        return Address("unix", "", 0, path, b"localhost", b"")
    try:
        url = urlsplit(text)
        port = url.port
        host = (url.hostname or "").encode("idna").decode("ascii") if ":" not in (url.hostname or "") else url.hostname or ""
    except ValueError as error:
        raise ConfigError(f"{quotable(text)!r} is not a usable address: {error}") from error
    if url.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{quotable(text)!r}: an address is http://host:port, https://host:port or unix:/path")
    if not url.path.isascii():
        raise ConfigError(f"{quotable(text)!r}: the path of an address must be ASCII; encode other characters as %XX")
    if url.username is not None or url.password is not None or url.query:
        raise ConfigError(f"{url.scheme}://{host}: an address must not have a user or query")
    try:
        place = parse_host_port(url.fragment) if url.fragment else None
    except ValueError:
        raise ConfigError(f"{url.scheme}://{host}: what follows # must be an address and a port") from None
    dial = None if not url.fragment else ("", 0) if place is None else (place.host, place.port)
    secure = url.scheme == "https"
    shown = f"[{host}]" if ":" in host else host
    header = shown if port is None or port == (443 if secure else 80) else f"{shown}:{port}"
    return Address(
        "https" if secure else "http",
        host,
        port if port is not None else (443 if secure else 80),
        "",
        header.encode("ascii"),
        url.path.rstrip("/").encode("ascii"),
        dial,
    )


def tls_context(spec: ClientTlsSpec | None, protocol: str = "http/1.1") -> ssl.SSLContext:
    """A verifying client context for TLS 1.2 or newer, with the given CA instead of the system's and the given client certificate.
    protocol: what is negotiated by ALPN; nothing where it is empty. Clients with the same settings and files share one, because reading
    the system's CAs holds the event loop for a tenth of a second.

    Raises ConfigError when a file cannot be used.
    """
    spec = spec or ClientTlsSpec()
    system = ssl.get_default_verify_paths()
    files = (spec.ca, spec.cert, spec.key, *(() if spec.ca else (system.cafile, system.capath)))
    return _context(protocol, spec.ca, spec.cert, spec.key, tuple(_stamp(file) for file in files))


@lru_cache(CONTEXTS)
def _context(protocol: str, ca: str | None, cert: str | None, key: str | None, stamps: tuple[Stamp, ...]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the CA file {ca!r} cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocol:
        context.set_alpn_protocols([protocol])
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the client certificate {cert!r} cannot be used: {error}") from error
    return context


def _stamp(file: str | None) -> Stamp:
    """Changes whenever a file or folder does; () when there is none."""
    try:
        found = os.stat(file) if file is not None else None
    except OSError:
        return ()
    return () if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
