"""Where a Redis is: what `redis` in the configuration says, parsed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from gateway.core.addresses import quotable
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs.redis import RedisSpec
from gateway.transport.address import tls_context

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
FORMS: Final = (
    "is redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss://... for TLS, unix:///PATH[?db=N], or "
    "redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/MASTER[/DB]"
)


@dataclass(frozen=True)
class Login:
    """Who to log in as; `user` is empty for the default user. No password: nobody."""

    user: str = ""
    password: Secret | None = None


@dataclass(frozen=True)
class Address:
    """One server: a TCP port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Target:
    """What is to be reached, and how. servers: the Redis itself, or with `master` the Sentinels that know where it is. tls: for all."""

    servers: tuple[Address, ...]
    login: Login
    db: int
    master: str
    sentinel_login: Login
    tls: ssl.SSLContext | None
    server_name: str

    def __str__(self) -> str:
        where = ", ".join(map(str, self.servers))
        return f"{self.master} of the Sentinels {where}" if self.master else where


def moved_to(error: Exception, asked: Address | None) -> Address | None:
    """The server that `MOVED 3999 127.0.0.1:6381`, or ASK, names; one without a host is the one that was asked, with another port."""
    words = str(error).split()
    host, _, port = (words[2] if len(words) == 3 else "").rpartition(":")
    if not host and asked is not None:
        host = asked.host
    return Address(host, int(port)) if host and port.isascii() and port.isdigit() and len(port) < 6 else None


def target(spec: RedisSpec) -> Target:
    """Raises ConfigError for settings that name no Redis, more than one, or a TLS file that cannot be used."""
    if spec.timeout_ms is not None and spec.timeout != 0.05:
        raise ConfigError("is an older name of `timeout`: give one of them", path="redis.timeout_ms")
    if (spec.url is None) == (not spec.sentinels):
        raise ConfigError("give either `url`, or `sentinels` with `master`", path="redis")
    if spec.url is None:
        return _watched(spec)
    if spec.master is not None:
        raise ConfigError("belongs to `sentinels`", path="redis.master")
    url, sentinels = _split(spec.url)
    own = Login(unquote(url.username or ""), None if url.password is None else Secret(unquote(url.password)))
    login = _login(own, spec.username, spec.password)
    path, master = url.path, ""
    servers: tuple[Address, ...]
    if url.scheme == "unix":
        servers, path = (Address(path=unquote(url.path)),), ""
    elif url.scheme.endswith("+sentinel"):
        servers = tuple(_server(text, SENTINEL_PORT, "redis.url") for text in sentinels)
        master, _, path = path.removeprefix("/").partition("/")
        if not master:
            raise ConfigError(FORMS, path="redis.url")
    else:
        servers = (Address(url.hostname or "", url.port or PORT),)
    db = _db(path.removeprefix("/"), url.query)
    return _target(spec, servers, login, db, unquote(master), url.scheme.startswith("rediss"))


def _split(url: Secret) -> tuple[SplitResult, list[str]]:
    """The parts of the address, and apart from them the Sentinels: several hosts are no URL."""
    text, sentinels = url.reveal(), list[str]()
    if text.startswith(("redis+sentinel://", "rediss+sentinel://")):
        scheme, _, rest = text.partition("://")
        place, slash, path = rest.partition("/")
        user, at, hosts = place.rpartition("@")
        sentinels, text = hosts.split(","), f"{scheme}://{user}{at}sentinels{slash}{path}"
    try:
        found = urlsplit(text)
        if found.scheme == "unix":
            whole = bool(found.path) and not found.hostname
        else:
            known = found.scheme.removesuffix("+sentinel") in ("redis", "rediss")
            whole = known and bool(found.hostname) and found.port != 0 and "" not in sentinels
    except ValueError:
        whole = False
    if not whole or found.fragment:
        raise ConfigError(FORMS, path="redis.url")
    return found, sentinels


def _watched(spec: RedisSpec) -> Target:
    if not spec.master:
        raise ConfigError("is the name that the Sentinels know the Redis by", path="redis.master")
    servers = tuple(_server(text, SENTINEL_PORT, f"redis.sentinels[{index}]") for index, text in enumerate(spec.sentinels))
    return _target(spec, servers, _login(Login(), spec.username, spec.password), 0, spec.master, spec.tls is not None)


def _target(spec: RedisSpec, servers: tuple[Address, ...], login: Login, db: int, master: str, tls: bool) -> Target:
    if spec.tls is not None and not tls:
        raise ConfigError("needs an address that begins with rediss://", path="redis.tls")
    sentinel = Login(spec.sentinel_username or "", spec.sentinel_password)
    if not master and sentinel != Login():
        raise ConfigError("belongs to Sentinels", path="redis.sentinel_password")
    name = spec.tls.server_name or "" if spec.tls is not None else ""
    return Target(servers, login, db, master, sentinel, tls_context(spec.tls, "") if tls else None, name)


def _login(own: Login, user: str | None, password: Secret | None) -> Login:
    if password is None:
        if user is not None:
            raise ConfigError("needs `password`", path="redis.username")
        return own
    if own.password is not None:
        raise ConfigError("the address has a password already", path="redis.password")
    return Login(user or own.user, password)


def _server(text: str, port: int, path: str) -> Address:
    try:
        found = urlsplit(f"//{text}")
        if found.hostname and not (found.path or found.query or found.fragment or found.username) and found.port != 0:
            return Address(found.hostname, found.port or port)
    except ValueError:
        pass
    raise ConfigError(f"{quotable(text)!r} is not HOST or HOST:PORT", path=path)


def _db(text: str, query: str) -> int:
    text = text or query.removeprefix("db=")
    if text and not (text.isascii() and text.isdigit() and len(text) < 6):
        raise ConfigError(f"{text!r} is not the number of a database", path="redis.url")
    return int(text or 0)
