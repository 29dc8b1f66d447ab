"""Checks across settings: names that must be unique or must exist, settings that need one another.

A security setting that this version cannot honour is refused; nothing is silently ignored.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable
from itertools import pairwise
from urllib.parse import urlsplit

from gateway.config.convert import nearest, quoted
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs import (
    ClaimSpec,
    ConfigSpec,
    EngineSpec,
    LifecycleSpec,
    LimitSpec,
    ModelSpec,
    PoolMemberSpec,
    RateSpec,
    RolloutSpec,
    WarmupSpec,
)
from gateway.wire.yamltree import join

ErrorAt = Callable[[str, str], ConfigError]
"""(path, message) -> the error with its file and line."""

MIN_KEY_LENGTH = 32
OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade"}
)
"""Headers that Gatehouse sets on a request to an engine; a second one would make the request ambiguous."""
_ORIGIN = re.compile(r"https?://[a-z0-9._-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?")
_HOST_PATTERN = re.compile(r"[A-Za-z0-9_*-]+(\.[A-Za-z0-9_*-]+)*")


def check(spec: ConfigSpec, error: ErrorAt, roles: Collection[str] | None = None) -> None:
    """Raises ConfigError for the first contradiction. roles: the names of the built-in roles, or None to accept any."""
    _unavailable(spec, error)
    _listeners(spec, error)
    _upstreams(spec, error)
    _unique((engine.name for engine in spec.engines), "engines", "engine", error)
    for index, settings in enumerate(spec.engines):
        engine(settings, f"engines[{index}]", error)
    _models(spec, error)
    _issuers(spec, error)
    _directories(spec, error)
    _static_keys(spec, error, None if roles is None else {*roles, *spec.roles})
    _unique((limit.name for limit in spec.limits), "limits", "limit", error)
    for index, limit in enumerate(spec.limits):
        bounds(limit, f"limits[{index}]", error)
    _unique((guardrail.name for guardrail in spec.guardrails), "guardrails", "guardrail", error)
    _unique((hook.name for hook in spec.hooks), "hooks", "hook", error)
    _fail_closed(spec, error)


def _unavailable(spec: ConfigSpec, error: ErrorAt) -> None:
    identity = spec.identity
    for path, given, what in (
        ("identity.mtls", identity.mtls is not None, "login by client certificate"),
        ("identity.gateway_tokens", identity.gateway_tokens, "gateway tokens"),
        ("audit.encryption", spec.audit.encryption is not None, "encryption of the audit log"),
    ):
        if given:
            raise error(path, f"{what} is not available in this version; remove the setting, it would protect nothing")


def _listeners(spec: ConfigSpec, error: ErrorAt) -> None:
    data, admin = (_address(text, path, error) for text, path in ((spec.listen.data, "listen.data"), (spec.listen.admin, "listen.admin")))
    if data == admin and data[1] != 0:
        raise error("listen.admin", f"is the same address as listen.data ({spec.listen.data}); the two listeners need one each")
    if spec.listen.memory_bytes < spec.listen.max_body_bytes:
        raise error(
            "listen.memory_bytes",
            f"must be at least listen.max_body_bytes ({spec.listen.max_body_bytes}), or such bodies are never admitted",
        )
    for index, peer in enumerate(spec.listen.trusted_peers):
        try:
            ipaddress.ip_network(peer, strict=False)
        except ValueError:
            raise error(
                f"listen.trusted_peers[{index}]", f"{quoted(peer)} is not an address or network; write 10.0.0.1 or 10.0.0.0/8"
            ) from None
    for index, origin in enumerate(spec.listen.cors.origins):
        if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
            raise error(f"listen.cors.origins[{index}]", f"{quoted(origin)} is not an origin; write https://HOST or http://HOST:PORT")
    for setting, tls in (("listen.tls", spec.listen.tls), ("listen.admin_tls", spec.listen.admin_tls)):
        if tls is not None and tls.require_client and tls.client_ca is None:
            raise error(f"{setting}.require_client", f"needs {setting}.client_ca: without it no client certificate can be verified")


def _address(text: str, path: str, error: ErrorAt) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPv6]:PORT`."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    valid_host = _is_ipv6(bare) if bracketed else bool(bare) and ":" not in bare and bare.isprintable() and " " not in bare
    if not colon or not valid_host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise error(path, f"{quoted(text)} is not an address to listen on; write HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080")
    return bare, int(port)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _upstreams(spec: ConfigSpec, error: ErrorAt) -> None:
    for index, upstream in enumerate(spec.store.upstreams):
        try:
            ipaddress.ip_network(upstream, strict=False)
        except ValueError:
            if not _HOST_PATTERN.fullmatch(upstream):
                place = f"store.upstreams[{index}]"
                raise error(place, f"{quoted(upstream)} is not a network or host name; write 10.1.0.0/16 or *.models.example") from None


def engine(spec: EngineSpec, path: str, error: ErrorAt) -> None:
    """Checks the settings of one engine against one another."""
    if spec.runtime != "external":
        if spec.model is None:
            raise error(path, f"'model' is missing; an engine with the runtime {quoted(spec.runtime)} needs the path of its model")
        for name in ("url", "api_key", "tls", "headers"):
            if getattr(spec, name):
                raise error(f"{path}.{name}", f"is only for external engines; '{spec.name}' has the runtime {spec.runtime}")
        if any(later <= earlier for earlier, later in pairwise(spec.rollout.steps)):
            raise error(f"{path}.rollout.steps", f"must rise, as in [0.1, 0.5]; it is {list(spec.rollout.steps)}")
        return
    if spec.url is None:
        raise error(path, "'url' is missing; an external engine needs one, such as http://10.0.0.5:8000")
    for name in ("sha256", "fallback", "options", "warmup", "rollout", "lifecycle"):
        if getattr(spec, name) not in (None, {}, WarmupSpec(), RolloutSpec(), LifecycleSpec()):
            raise error(f"{path}.{name}", f"is only for engines that Gatehouse starts; '{spec.name}' is external")
    _url(spec.url, f"{path}.url", error)
    if spec.tls is not None and not spec.url.startswith("https://"):
        raise error(f"{path}.tls", "is set, but the url is not https://")
    if spec.tls is not None and (spec.tls.cert is None) != (spec.tls.key is None):
        raise error(f"{path}.tls", "needs 'cert' and 'key' together")
    if spec.api_key is not None and not spec.api_key.reveal():
        raise error(f"{path}.api_key", "is empty; remove it where the engine asks for none")
    if spec.api_key is not None and not ((key := spec.api_key.reveal()).isascii() and key.isprintable()):
        raise error(f"{path}.api_key", "holds characters that a header cannot carry; use printable ASCII")
    for name, value in spec.headers.items():
        if not name.replace("-", "").isalnum() or not name.isascii() or not value.isprintable() or not value.isascii():
            raise error(join(f"{path}.headers", name), "is not a valid header; names are letters, digits and '-', values printable ASCII")
        if name.lower() in OWN_HEADERS:
            raise error(join(f"{path}.headers", name), "is a header that Gatehouse sets itself; remove it")


def _url(url: str, path: str, error: ErrorAt) -> None:
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
        raise error(path, "must not hold a user or password; use api_key or headers")
    if parts.query or parts.fragment:
        raise error(path, "must not hold a query or fragment")


def _models(spec: ConfigSpec, error: ErrorAt) -> None:
    _unique((model.name for model in spec.models), "models", "model", error)
    engines = {engine.name for engine in spec.engines}
    names = {model.name: f"models[{index}].name" for index, model in enumerate(spec.models)}
    taken = dict(names)
    for index, model in enumerate(spec.models):
        path = f"models[{index}]"
        pool(model, path, engines, error)
        for place, alias in enumerate(model.aliases):
            where = f"{path}.aliases[{place}]"
            if alias in taken:
                raise error(where, f"{quoted(alias)} is already the name of something else ({taken[alias]})")
            taken[alias] = where
    for index, model in enumerate(spec.models):
        for place, name in enumerate(model.fallbacks):
            if name not in names:
                raise error(f"models[{index}].fallbacks[{place}]", f"there is no model {quoted(name)}; {nearest(name, names)}")
    _no_cycle(spec.models, error)


def pool(model: ModelSpec, path: str, engines: Collection[str], error: ErrorAt) -> None:
    """Checks that a model's pool names existing engines, each once."""
    if not model.pool:
        raise error(f"{path}.pool", "is empty; name at least one engine")
    seen = set()
    for index, member in enumerate(model.pool):
        name = member.engine if isinstance(member, PoolMemberSpec) else member
        where = f"{path}.pool[{index}]"
        if name not in engines:
            raise error(where, f"there is no engine {quoted(name)}; {nearest(name, engines)}")
        if name in seen:
            raise error(where, f"the engine '{name}' appears twice in this pool; use its weight instead")
        seen.add(name)
    if all(isinstance(member, PoolMemberSpec) and member.weight == 0 for member in model.pool):
        raise error(f"{path}.pool", "has only members of weight 0; no request could be served")


def _no_cycle(models: tuple[ModelSpec, ...], error: ErrorAt) -> None:
    """Searches the fallbacks depth-first, without recursion; meeting a model that is still being visited is a cycle."""
    fallbacks = {model.name: model.fallbacks for model in models}
    position = {model.name: index for index, model in enumerate(models)}
    done: set[str] = set()
    for start in fallbacks:
        trail: list[str] = [start]
        pending = [iter(fallbacks[start])]
        while pending:
            following = next(pending[-1], None)
            if following is None:
                pending.pop()
                done.add(trail.pop())
            elif following in trail:
                cycle = " -> ".join([*trail[trail.index(following) :], following])
                raise error(f"models[{position[trail[-1]]}].fallbacks", f"the fallbacks go round in a circle: {cycle}")
            elif following not in done:
                trail.append(following)
                pending.append(iter(fallbacks[following]))


def _issuers(spec: ConfigSpec, error: ErrorAt) -> None:
    issuers = spec.identity.oidc
    _unique((issuer.name for issuer in issuers), "identity.oidc", "issuer", error)
    _unique((issuer.issuer for issuer in issuers), "identity.oidc", "issuer", error, name="issuer")
    for index, issuer in enumerate(issuers):
        path = f"identity.oidc[{index}]"
        for setting, url in (("issuer", issuer.issuer), ("jwks_url", issuer.jwks_url)):
            if url is not None and not _trustworthy(url):
                raise error(f"{path}.{setting}", f"{quoted(url)} must be https://...; http is for loopback only")
        claims = issuer.claims
        for name in claims.__struct_fields__:
            claim = getattr(claims, name)
            if isinstance(claim, ClaimSpec) and (claim.value is None) == (claim.path is None):
                raise error(f"{path}.claims.{name}", "needs exactly one of 'value' and 'path'")


def _directories(spec: ConfigSpec, error: ErrorAt) -> None:
    _unique((directory.name for directory in spec.identity.ldap), "identity.ldap", "directory", error)
    for index, directory in enumerate(spec.identity.ldap):
        path = f"identity.ldap[{index}]"
        for place, url in enumerate(directory.servers):
            parts = urlsplit(url)
            if parts.scheme not in ("ldap", "ldaps") or not parts.hostname:
                raise error(f"{path}.servers[{place}]", f"{quoted(url)} is not a directory; write ldaps://HOST or ldap://HOST:PORT")
            if parts.scheme == "ldap" and not directory.starttls and not _is_local(parts.hostname):
                raise error(f"{path}.servers[{place}]", "would get passwords in the clear; write ldaps://, or set starttls: true")
        users, tenant = directory.users, directory.tenant
        if (users.base is None) == (users.dn is None):
            raise error(f"{path}.users", "needs exactly one of 'base' (to search) and 'dn' (to bind directly)")
        if users.base is not None and directory.bind is None:
            raise error(f"{path}.bind", "is needed to search for users")
        template, what = (users.filter, "filter") if users.dn is None else (users.dn, "dn")
        if template.count("{username}") != 1 or template.count("{") != 1:
            raise error(f"{path}.users.{what}", "must hold {username} once, and no other {")
        if directory.groups is not None and directory.groups.filter.count("{dn}") != 1:
            raise error(f"{path}.groups.filter", "must hold {dn} once")
        if (tenant.value is None) == (tenant.attribute is None):
            raise error(f"{path}.tenant", "needs exactly one of 'value' and 'attribute'")


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _trustworthy(url: str) -> bool:
    """An https address, or http on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return bool(parts.hostname) and not parts.username
    if parts.scheme != "http" or not parts.hostname:
        return False
    return _is_local(parts.hostname)


def _static_keys(spec: ConfigSpec, error: ErrorAt, roles: Collection[str] | None) -> None:
    keys = spec.identity.api_keys.static
    base = "identity.api_keys.static"
    _unique((key.id for key in keys), base, "key", error, name="id")
    for index, key in enumerate(keys):
        path = f"{base}[{index}]"
        if (key.key is None) == (key.key_sha256 is None):
            raise error(path, "needs exactly one of 'key' and 'key_sha256'")
        if key.key is not None:
            _key_text(key.key.reveal(), f"{path}.key", error)
        for place, role in enumerate(key.roles):
            if roles is not None and role not in roles:
                raise error(f"{path}.roles[{place}]", f"there is no role {quoted(role)}; {nearest(role, roles)}")
    digests: dict[str, str] = {}
    for index, key in enumerate(keys):
        digest = (key.key_sha256 or "").lower() or hashlib.sha256((key.key or Secret("")).reveal().encode()).hexdigest()
        if digest in digests:
            raise error(f"{base}[{index}]", f"is the same key as that of '{digests[digest]}'")
        digests[digest] = key.id


def _key_text(text: str, path: str, error: ErrorAt) -> None:
    if len(text) < MIN_KEY_LENGTH:
        raise error(path, f"has {len(text)} characters; a key needs {MIN_KEY_LENGTH} or more (`gatehouse keys create` makes one)")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise error(path, "holds characters that no header can carry; use printable ASCII without spaces")


def bounds(limit: LimitSpec, path: str, error: ErrorAt) -> None:
    """Checks that a limit limits something and lets something pass."""
    if limit.requests is None and limit.tokens is None and limit.concurrent is None:
        raise error(path, "limits nothing; give it 'requests', 'tokens' or 'concurrent'")
    for name, rate in (("requests", limit.requests), ("tokens", limit.tokens)):
        if rate is not None:
            _rate(rate, join(path, name), name, error)


def _rate(rate: RateSpec, path: str, what: str, error: ErrorAt) -> None:
    burst = rate.rate if rate.burst is None else rate.burst
    if burst < 1:
        raise error(path, f"allows {burst:g} {what} at once, so none would ever pass; set 'burst' to 1 or more")


def _fail_closed(spec: ConfigSpec, error: ErrorAt) -> None:
    if spec.insecure:
        return
    keys = spec.identity.api_keys
    instead = "say 'rely_on_store: true' beside it where the keys are in the store, or 'insecure: true'"
    others = bool(spec.identity.plugins or spec.identity.oidc or spec.identity.ldap)
    if not keys.static and not keys.rely_on_store and not others:
        raise error("identity.api_keys.static", f"is empty: nobody could be authenticated; add a key, {instead}")
    if not keys.rely_on_store and not others and not any(key.models for key in keys.static):
        raise error("identity.api_keys.static", f"no key may use any model; give one 'models', {instead}")
    if not spec.audit.sinks:
        raise error("audit.sinks", "is empty: the audit log cannot be off, unless 'insecure: true' says so")


def _unique(names: Iterable[str], path: str, what: str, error: ErrorAt, name: str = "name") -> None:
    seen: dict[str, int] = {}
    for index, value in enumerate(names):
        if value in seen:
            raise error(f"{path}[{index}].{name}", f"the {what} '{value}' appears twice; the first is {path}[{seen[value]}]")
        seen[value] = index
