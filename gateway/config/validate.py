"""Checks across settings: names that must be unique or must exist, settings that need one another.

A security setting that this version cannot honour is refused; nothing is silently ignored.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Collection
from functools import partial
from itertools import pairwise
from urllib.parse import urlsplit

from msgspec import structs

from gateway.config import (
    approval_rules,
    audit_rules,
    cache_rules,
    fleet_rules,
    label_rules,
    password_rules,
    pipeline_rules,
    telemetry_rules,
)
from gateway.config.candidate_rules import canary_fault, shadow_fault
from gateway.config.convert import nearest, quoted
from gateway.config.faults import each, unique
from gateway.config.limit_rules import check_limit
from gateway.config.url_rules import check_url, is_local
from gateway.core import price_rules
from gateway.core.admin_scopes import is_pattern
from gateway.core.errors import ConfigError
from gateway.core.network import parse
from gateway.core.secret import Secret
from gateway.core.signatures import key_fault
from gateway.core.specs import (
    ClaimSpec,
    ConfigSpec,
    EngineSpec,
    GatewayTokensSpec,
    LifecycleSpec,
    ModelSpec,
    PoolMemberSpec,
    RolloutSpec,
    WarmupSpec,
)
from gateway.core.specs.identity import MAX_TOKEN_SECONDS, MIN_KEY_LENGTH, StaticKeySpec
from gateway.wire.yamltree import join

MAX_INTROSPECTION_CACHE = 3600.0
MAX_PROOF_AGE, MAX_PROOF_LEEWAY = 300.0, 60.0
ErrorAt = Callable[[str, str], ConfigError]
"""(path, message) -> the error with its file and line."""

_NOTHING = frozenset(hashlib.sha256(text).hexdigest() for text in (b"", b"\n"))
"""Digests of what a shell pipes where a variable is not set."""
_ORIGIN = re.compile(r"https?://[a-z0-9._-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?")
_HOST_PATTERN = re.compile(r"[A-Za-z0-9_*-]+(\.[A-Za-z0-9_*-]+)*")


def check(spec: ConfigSpec, error: ErrorAt, roles: Collection[str] | None = None) -> None:
    """Raises ConfigError for what contradicts itself. roles: the names of the built-in roles, or None to accept any."""
    known = None if roles is None else {*roles, *spec.roles}
    each(
        (
            lambda: audit_rules.check(spec.audit, error),
            lambda: _listeners(spec, error),
            lambda: _upstreams(spec, error),
            lambda: unique((engine.name for engine in spec.engines), "engines", "engine", error),
            *(partial(engine, settings, f"engines[{index}]", error) for index, settings in enumerate(spec.engines)),
            lambda: fleet_rules.check_sharing(spec, error),
            lambda: fleet_rules.machines(spec.machines, error),
            lambda: fleet_rules.check_tickets(spec.tickets, error),
            lambda: _models(spec, error),
            lambda: _issuers(spec, error),
            lambda: _proofs(spec, error),
            lambda: password_rules.check(spec.identity, error, known),
            lambda: _certificates(spec, error, known),
            lambda: _tokens(spec, error),
            lambda: _static_keys(spec, error, known),
            lambda: unique((limit.name for limit in spec.limits), "limits", "limit", error),
            *(partial(check_limit, limit, f"limits[{index}]", error) for index, limit in enumerate(spec.limits)),
            lambda: unique((price.name for price in spec.prices if price.name is not None), "prices", "price", error),
            lambda: price_rules.check(spec.prices, error),
            lambda: price_rules.check_devices(spec.models, spec.engines, error),
            lambda: _webhooks(spec, error),
            lambda: unique((guardrail.name for guardrail in spec.guardrails), "guardrails", "guardrail", error),
            lambda: unique((hook.name for hook in spec.hooks), "hooks", "hook", error),
            lambda: label_rules.check(spec, error),
            lambda: cache_rules.check(spec, error),
            lambda: approval_rules.check(spec.approvals, error, MIN_KEY_LENGTH),
            lambda: telemetry_rules.check(spec.telemetry, error),
            lambda: _fail_closed(spec, error),
        )
    )


def _webhooks(spec: ConfigSpec, error: ErrorAt) -> None:
    unique((hook.name for hook in spec.alerts.webhooks), "alerts.webhooks", "webhook", error)
    for index, hook in enumerate(spec.alerts.webhooks):
        path = f"alerts.webhooks[{index}]"
        if not _trustworthy(hook.url):
            raise error(f"{path}.url", f"{quoted(hook.url)} must be https://... without a user name; http is for loopback only")
        if fault := key_fault(hook.secret.reveal()):
            raise error(f"{path}.secret", fault)


def _tokens(spec: ConfigSpec, error: ErrorAt) -> None:
    """Gateway tokens, and what administrators need a fresh login for."""
    tokens, path = spec.identity.gateway_tokens, "identity.gateway_tokens"
    if not tokens.enabled and tokens != GatewayTokensSpec():
        raise error(path, "needs 'issuer', the address of the gateway, such as https://gateway.example")
    if tokens.enabled:
        if not _trustworthy(tokens.issuer):
            raise error(f"{path}.issuer", f"{quoted(tokens.issuer)} must be https://...; http is for loopback only")
        if any(issuer.issuer == tokens.issuer for issuer in spec.identity.oidc):
            raise error(f"{path}.issuer", "is the issuer of identity.oidc too; the gateway needs a name of its own")
    if not 1.0 <= tokens.ttl <= MAX_TOKEN_SECONDS:
        raise error(f"{path}.ttl", "must be between 1s and 1d")
    if tokens.rotate < 60.0:
        raise error(f"{path}.rotate", "must be 1m or more")
    for index, rule in enumerate(spec.identity.step_up):
        where = f"identity.step_up[{index}]"
        if rule.max_age is None and not rule.acr and not rule.amr:
            raise error(where, "asks for nothing; give it 'max_age', 'acr' or 'amr'")
        for place, pattern in enumerate(rule.permissions):
            if not is_pattern(pattern):
                raise error(f"{where}.permissions[{place}]", f"{quoted(pattern)} is not a permission such as keys:* or config:apply")
        for place, credential in enumerate(rule.exempt):
            if not credential.startswith("key/") or credential == "key/":
                raise error(f"{where}.exempt[{place}]", f"{quoted(credential)} is not a credential; write key/ID")


def _listeners(spec: ConfigSpec, error: ErrorAt) -> None:
    data, admin = (_address(text, path, error) for text, path in ((spec.listen.data, "listen.data"), (spec.listen.admin, "listen.admin")))
    if data == admin and data[1] != 0:
        raise error("listen.admin", f"is the same address as listen.data ({spec.listen.data}); the two listeners need one each")
    if (text := spec.listen.grpc) is not None and (found := _address(text, "listen.grpc", error))[1] != 0 and found in (data, admin):
        raise error("listen.grpc", f"is the address of another listener ({text}); each needs one of its own")
    if not is_local(admin[0]) and spec.listen.admin_tls is None and not spec.insecure:
        raise error(
            "listen.admin",
            f"{quoted(spec.listen.admin)} takes administrators' credentials from other machines without TLS: set listen.admin_tls, "
            "listen on 127.0.0.1, or say 'insecure: true'",
        )
    if spec.listen.memory_bytes < spec.listen.max_body_bytes:
        raise error(
            "listen.memory_bytes",
            f"must be at least listen.max_body_bytes ({spec.listen.max_body_bytes}), or such bodies are never admitted",
        )
    for setting, peers, protocol in (
        ("trusted_peers", spec.listen.trusted_peers, "proxy_protocol"),
        ("admin_trusted_peers", spec.listen.admin_trusted_peers, "admin_proxy_protocol"),
    ):
        for index, peer in enumerate(peers):
            try:
                ipaddress.ip_network(peer, strict=False)
            except ValueError:
                raise error(
                    f"listen.{setting}[{index}]", f"{quoted(peer)} is not an address or network; write 10.0.0.1 or 10.0.0.0/8"
                ) from None
        if getattr(spec.listen, protocol) != "off" and not peers:
            raise error(f"listen.{protocol}", f"needs listen.{setting}: only the proxies named there are believed")
    for path, entries in (
        ("listen.networks", spec.listen.networks),
        ("listen.admin_networks", spec.listen.admin_networks),
        *((join("network.tenants", tenant), given) for tenant, given in spec.network.tenants.items()),
    ):
        for index, entry in enumerate(entries):
            try:
                country = parse(entry).country
            except ValueError as wrong:
                raise error(f"{path}[{index}]", str(wrong)) from None
            if country and spec.network.countries is None:
                raise error(f"{path}[{index}]", "needs network.countries: without a database no country is known")
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
    fleet_rules.check(spec, path, error)
    if spec.runtime != "external":
        if spec.model is None and not spec.foreign:
            raise error(path, f"'model' is missing; an engine with the runtime {quoted(spec.runtime)} needs the path of its model")
        for name in ("url", "tls") if spec.foreign else ("url", "api_key", "tls", "headers"):
            if getattr(spec, name):
                raise error(f"{path}.{name}", f"is only for external engines; '{spec.name}' has the runtime {spec.runtime}")
        if any(later <= earlier for earlier, later in pairwise(spec.rollout.steps)):
            raise error(f"{path}.rollout.steps", f"must rise, as in [0.1, 0.5]; it is {list(spec.rollout.steps)}")
        return
    if spec.url is None and spec.joined is None:
        raise error(path, "'url' is missing; an external engine needs one, such as http://10.0.0.5:8000")
    for name in ("sha256", "fallback", "options", "warmup", "rollout", "lifecycle"):
        if getattr(spec, name) not in (None, {}, WarmupSpec(), RolloutSpec(), LifecycleSpec()):
            raise error(f"{path}.{name}", f"is only for engines that Gatehouse starts; '{spec.name}' is external")
    if spec.url is None:
        return
    check_url(spec.url, f"{path}.url", error)
    if spec.tls is not None and not spec.url.startswith("https://"):
        raise error(f"{path}.tls", "is set, but the url is not https://")
    if spec.tls is not None and (spec.tls.cert is None) != (spec.tls.key is None):
        raise error(f"{path}.tls", "needs 'cert' and 'key' together")


def _models(spec: ConfigSpec, error: ErrorAt) -> None:
    unique((model.name for model in spec.models), "models", "model", error)
    engines = {engine.name for engine in spec.engines}
    names = {model.name: f"models[{index}].name" for index, model in enumerate(spec.models)}
    taken = dict(names)
    by_name = {model.name: model for model in spec.models}

    def serves(model: ModelSpec, path: str) -> None:
        if model.pipeline is None:
            pool(model, path, engines, error)
        else:
            pipeline_rules.check(model, path, by_name, error)

    each(partial(serves, model, f"models[{index}]") for index, model in enumerate(spec.models))
    for index, model in enumerate(spec.models):
        path = f"models[{index}]"
        for place, alias in enumerate(model.aliases):
            where = f"{path}.aliases[{place}]"
            if alias in taken:
                raise error(where, f"{quoted(alias)} is already the name of something else ({taken[alias]})")
            taken[alias] = where
    for index, model in enumerate(spec.models):
        for place, name in enumerate(model.fallbacks):
            if name not in names:
                raise error(f"models[{index}].fallbacks[{place}]", f"there is no model {quoted(name)}; {nearest(name, names)}")
            if why := pipeline_rules.pipeline_fault(name, by_name):
                raise error(f"models[{index}].fallbacks[{place}]", why)
        if model.shadow is not None and (why := shadow_fault(model, by_name)):
            raise error(f"models[{index}].shadow.model", why)
        if why := canary_fault(model):
            raise error(f"models[{index}].canary.engine", why)
    _no_cycle(spec.models, error)


def pool(model: ModelSpec, path: str, engines: Collection[str], error: ErrorAt) -> None:
    """Checks that a model's pool names existing engines, each once."""
    if not model.pool:
        raise error(f"{path}.pool", "is empty; name at least one engine, or give the model a pipeline")
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
    unique((issuer.name for issuer in issuers), "identity.oidc", "issuer", error)
    unique((issuer.issuer for issuer in issuers), "identity.oidc", "issuer", error, name="issuer")
    for index, issuer in enumerate(issuers):
        path = f"identity.oidc[{index}]"
        for setting, url in (("issuer", issuer.issuer), ("jwks_url", issuer.jwks_url)):
            if url is not None and not _trustworthy(url):
                raise error(f"{path}.{setting}", f"{quoted(url)} must be https://...; http is for loopback only")
        if (asking := issuer.introspection) is not None:
            if not _trustworthy(asking.url):
                raise error(f"{path}.introspection.url", f"{quoted(asking.url)} must be https://...; http is for loopback only")
            if asking.cache > MAX_INTROSPECTION_CACHE:
                raise error(f"{path}.introspection.cache", "at most 1h: a revoked token keeps working for that long")
        claims = issuer.claims
        for name in claims.__struct_fields__:
            claim = getattr(claims, name)
            if isinstance(claim, ClaimSpec) and (claim.value is None) == (claim.path is None):
                raise error(f"{path}.claims.{name}", "needs exactly one of 'value' and 'path'")


def _proofs(spec: ConfigSpec, error: ErrorAt) -> None:
    """Tokens that are bound to a key, and settings that ask for bound ones."""
    dpop = spec.identity.dpop
    if dpop is not None:
        for index, url in enumerate(dpop.urls):
            parts = urlsplit(url)
            where = f"identity.dpop.urls[{index}]"
            if not _trustworthy(url):
                raise error(where, f"{quoted(url)} must be https://...; http is for loopback only")
            if parts.query or parts.fragment or "@" in parts.netloc or (parts.path.endswith("/") and parts.path != "/"):
                raise error(where, f"{quoted(url)} must be what comes before the path of a request, such as https://gateway.example")
        if not 1.0 <= dpop.max_age <= MAX_PROOF_AGE:
            raise error("identity.dpop.max_age", "must be between 1s and 5m")
        if dpop.leeway > MAX_PROOF_LEEWAY:
            raise error("identity.dpop.leeway", "at most 1m")
    asked = any(tls is not None and tls.client_ca is not None for tls in (spec.listen.tls, spec.listen.admin_tls))
    certificates = asked or (spec.identity.mtls is not None and spec.identity.mtls.forwarded is not None)
    wanted = [(f"identity.oidc[{index}].binding", issuer.binding) for index, issuer in enumerate(spec.identity.oidc)]
    for path, binding in [*wanted, ("identity.gateway_tokens.binding", spec.identity.gateway_tokens.binding)]:
        if binding == "dpop" and dpop is None:
            raise error(path, "needs identity.dpop, which lists the URLs by which clients call the gateway")
        if binding == "certificate" and not certificates:
            raise error(path, "no client is ever asked for a certificate: set listen.tls.client_ca, or identity.mtls.forwarded")
        if binding == "either" and dpop is None and not certificates:
            raise error(path, "needs identity.dpop or listen.tls.client_ca: nothing else binds a token")


def _certificates(spec: ConfigSpec, error: ErrorAt, roles: Collection[str] | None) -> None:
    mtls, listen = spec.identity.mtls, spec.listen
    if mtls is None:
        return
    asked = any(tls is not None and tls.client_ca is not None for tls in (listen.tls, listen.admin_tls))
    if not asked and mtls.forwarded is None:
        raise error("identity.mtls", "no client is ever asked for a certificate: set listen.tls.client_ca, or 'forwarded' behind a proxy")
    for index, entry in enumerate(mtls.principals):
        path = f"identity.mtls.principals[{index}]"
        if all(getattr(entry.match, name) is None for name in entry.match.__struct_fields__):
            raise error(f"{path}.match", "matches every certificate; say what it must have, such as san_uri: 'spiffe://example/ns/*/sa/*'")
        for place, role in enumerate(entry.roles):
            if roles is not None and role not in roles:
                raise error(f"{path}.roles[{place}]", f"there is no role {quoted(role)}; {nearest(role, roles)}")
    if (mtls.crl is not None or mtls.forwarded is not None) and not mtls.authorities and not asked:
        raise error(
            "identity.mtls.authorities", "is needed: files with the CAs that sign the forwarded certificates and the revocation list"
        )
    trusted = [ipaddress.ip_network(peer, strict=False) for peer in (*listen.trusted_peers, *listen.admin_trusted_peers)]
    for index, peer in enumerate(() if mtls.forwarded is None else mtls.forwarded.peers):
        path = f"identity.mtls.forwarded.peers[{index}]"
        try:
            network = ipaddress.ip_network(peer, strict=False)
        except ValueError:
            raise error(path, f"{quoted(peer)} is not an address or network; write 10.0.0.1 or 10.0.0.0/8") from None
        if not any(network.version == known.version and network.subnet_of(known) for known in trusted):  # type: ignore[arg-type]
            raise error(path, f"{quoted(peer)} is not among listen.trusted_peers; only trusted proxies may forward certificates")


def with_authorities(spec: ConfigSpec) -> ConfigSpec:
    """The settings with `identity.mtls.authorities`, which are the listeners' `client_ca` where nothing else is said."""
    mtls = spec.identity.mtls
    if mtls is None or mtls.authorities:
        return spec
    files = [tls.client_ca for tls in (spec.listen.tls, spec.listen.admin_tls) if tls is not None and tls.client_ca is not None]
    filled = structs.replace(mtls, authorities=tuple(dict.fromkeys(files)))
    return structs.replace(spec, identity=structs.replace(spec.identity, mtls=filled))


def _trustworthy(url: str) -> bool:
    """An https address, or http on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https":
        return bool(parts.hostname) and not parts.username
    if parts.scheme != "http" or not parts.hostname:
        return False
    return is_local(parts.hostname)


def _static_keys(spec: ConfigSpec, error: ErrorAt, roles: Collection[str] | None) -> None:
    keys = spec.identity.api_keys.static
    base = "identity.api_keys.static"
    unique((key.id for key in keys), base, "key", error, name="id")

    def check_key(key: StaticKeySpec, path: str) -> None:
        if (key.key is None) == (key.key_sha256 is None):
            raise error(path, "needs exactly one of 'key' and 'key_sha256'")
        if key.key is not None:
            _key_text(key.key.reveal(), f"{path}.key", error)
        elif (key.key_sha256 or "").lower() in _NOTHING:
            raise error(f"{path}.key_sha256", "is the digest of an empty text: the variable with the key was probably not set")
        _bare_name(key.user, f"{path}.user", error)
        for place, group in enumerate(key.groups):
            _bare_name(group or " ", f"{path}.groups[{place}]", error)
        for place, role in enumerate(key.roles):
            if roles is not None and role not in roles:
                raise error(f"{path}.roles[{place}]", f"there is no role {quoted(role)}; {nearest(role, roles)}")

    each(partial(check_key, key, f"{base}[{index}]") for index, key in enumerate(keys))
    digests: dict[str, str] = {}
    for index, key in enumerate(keys):
        digest = (key.key_sha256 or "").lower() or hashlib.sha256((key.key or Secret("")).reveal().encode()).hexdigest()
        if digest in digests:
            raise error(f"{base}[{index}]", f"is the same key as that of '{digests[digest]}'")
        digests[digest] = key.id


def _bare_name(text: str, path: str, error: ErrorAt) -> None:
    """Of a user or group, without the tenant."""
    if len(text) > 256 or not text.isprintable() or text != text.strip():
        raise error(path, f"{quoted(text[:64])} is not a name; write 1 to 256 printable characters, without the tenant, such as alice")


def _key_text(text: str, path: str, error: ErrorAt) -> None:
    if len(text) < MIN_KEY_LENGTH:
        raise error(path, f"has {len(text)} characters; a key needs {MIN_KEY_LENGTH} or more (`gatehouse keys create` makes one)")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise error(path, "holds characters that no header can carry; use printable ASCII without spaces")


def _fail_closed(spec: ConfigSpec, error: ErrorAt) -> None:
    if spec.insecure:
        return
    keys = spec.identity.api_keys
    instead = "say 'rely_on_store: true' beside it where the keys are in the store, or 'insecure: true'"
    identity = spec.identity
    others = bool(identity.plugins or identity.oidc or identity.ldap or identity.local_users or identity.mtls)
    if not keys.static and not keys.rely_on_store and not others:
        raise error("identity.api_keys.static", f"is empty: nobody could be authenticated; add a key, {instead}")
    if not keys.rely_on_store and not others and not any(key.models for key in keys.static):
        raise error("identity.api_keys.static", f"no key may use any model; give one 'models', {instead}")
    if not spec.audit.sinks:
        raise error("audit.sinks", "is empty: the audit log cannot be off, unless 'insecure: true' says so")
