"""What settings from far away may say: an engine of the store names no file of the machine but a model of its registry, and no
address that only this machine should reach.

An external engine's key and header values are sealed in the store, or written as `${env:GATEHOUSE_SECRET_NAME}`, which each replica
reads from its own environment: no other variable can be named, or whoever writes engines could read the process' secrets.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from engines.runtimes import RUNTIMES
from gateway.config.convert import nearest, plain_settings
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret, secret_hook
from gateway.core.specs import EngineSpec, Spec
from gateway.core.storage import engine_secret
from policies.patterns import matches

SECRET_PREFIX: Final = "GATEHOUSE_SECRET_"
_REFERENCE: Final = re.compile(r"\$\{env:([A-Za-z0-9_]{1,128})\}")
_FILES: Final = (("tls", "ca"), ("tls", "cert"), ("tls", "key"), ("options", "provider"))
OPTIONS: Final[Mapping[str, type[Spec]]] = MappingProxyType(RUNTIMES.schemas())
"""What `engines[].options` may say, by runtime: checked before a process is started, in the file and in the store."""
RESOLVE_SECONDS: Final = 2.0
_IP = ipaddress.IPv4Address | ipaddress.IPv6Address
Unseal = Callable[[str, str], Secret]
"""(sealed, purpose) -> the secret."""


def reference(text: str) -> str | None:
    """The variable that a text names, or None when it is no reference. Raises ConfigError for one that may not be named."""
    if "${" not in text:
        return None
    found = _REFERENCE.fullmatch(text)
    if found is None or not found[1].startswith(SECRET_PREFIX):
        raise ConfigError(f"a reference is all of the value and names a variable ${{env:{SECRET_PREFIX}...}}")
    return found[1]


def engine_of(name: str, body: Mapping[str, Any], environ: Mapping[str, str], unseal: Unseal) -> EngineSpec:
    """The settings of a stored engine with its secrets. Raises ConfigError, never showing a secret."""
    plain = {**body, "name": name}
    url = body.get("url")

    def opened(text: str, field: str) -> str:
        try:
            variable = reference(text)
            if variable is None:
                return unseal(text, engine_secret(name, url, field)).reveal()
        except ConfigError as error:
            raise ConfigError(error.message, path=field) from None
        value = environ.get(variable)
        if not value:
            raise ConfigError(f"the environment variable {variable} is {'not set' if value is None else 'empty'} here", path=field)
        return value

    if isinstance(body.get("api_key"), str):
        plain["api_key"] = opened(body["api_key"], "api_key")
    if isinstance(body.get("headers"), dict):
        plain["headers"] = {key: opened(str(value), f"headers.{key}") for key, value in body["headers"].items()}
    for where, setting in _FILES:
        if (body.get(where) or {}).get(setting):
            raise ConfigError("settings that name a file belong into the configuration file", path=f"{where}.{setting}")
    try:
        found = msgspec.convert(plain, EngineSpec, dec_hook=secret_hook)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this version cannot use it: {_bare(str(error))}") from None
    if found.runtime not in OPTIONS and found.runtime != "external":
        raise ConfigError(f"there is no runtime {found.runtime!r}; {nearest(found.runtime, (*OPTIONS, 'external'))}", path="runtime")
    if found.runtime not in OPTIONS or not found.options:
        return found
    return msgspec.structs.replace(found, options=plain_settings(found.options, OPTIONS[found.runtime], "options"))


def _bare(message: str) -> str:
    """An error of msgspec names types and paths, but no values; a very long one is cut."""
    return message[:200]


# --- models


def find_model(name: str, places: Iterable[Path]) -> Path:
    """The file or folder of a model in one of the registry's folders. Raises ConfigError: for what would lead out of them, too."""
    parts = name.split("/")
    if name.startswith(("/", "~")) or "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts[:-1]):
        raise ConfigError("names a path; an engine of the store takes a model of the registry by its name", path="model")
    if parts[-1] in (".", "..") or not any(parts):
        raise ConfigError("names a path; an engine of the store takes a model of the registry by its name", path="model")
    for place in places:
        root, found = place.resolve(), (place / name).resolve()
        if found.exists() and found.is_relative_to(root) and found != root:
            return found
    raise ConfigError(f"there is no model {name[:128]!r} in the registry of this machine", path="model")


# --- addresses


def check_address(url: str, allowed: Sequence[str]) -> str | None:
    """Checks what can be said without asking anybody; returns the host that still has to be resolved, if any. Raises ConfigError.

    allowed: networks and patterns of host names (`store.upstreams`); empty: everywhere but loopback, link-local addresses
    (cloud metadata), unspecified and multicast ones.
    """
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if any(matches(pattern, host) for pattern in allowed if _network(pattern) is None):
            return None
        return host
    _check_ip(address, allowed)
    return None


async def check_upstream(url: str, allowed: Sequence[str]) -> None:
    """The same with every address that the host's name has now. Raises ConfigError."""
    host = check_address(url, allowed)
    if host is None:
        return
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        raise ConfigError("the host's name cannot be resolved here", path="url") from None
    for entry in found:
        _check_ip(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]), allowed)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _check_ip(address: _IP, allowed: Sequence[str]) -> None:
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if allowed:
        networks = [network for network in map(_network, allowed) if network is not None]
        if not any(address in network for network in networks):
            raise ConfigError("is not within store.upstreams, where engines of the store may be", path="url")
    elif address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
        raise ConfigError("is an address of this machine or link; store.upstreams of the configuration can allow it", path="url")
