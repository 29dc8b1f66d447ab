"""Names of models, operations and tenants that mean nothing in the configuration they stand in: most are misspelt, and a guardrail or a
limit for a misspelt model protects none. No errors, because the store may have models and tenants of these names, now or later."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from gateway.config.convert import nearest, quoted
from gateway.core.specs import ConfigSpec, ModelSpec


def unmatched(
    spec: ConfigSpec, operations: Collection[str], models: Iterable[ModelSpec] = (), tenants: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Each place where a name without `*` is of no model, operation or tenant: (path, message). operations: all that there are. models,
    tenants: further ones, of the store."""
    known = {name for model in (*spec.models, *models) for name in (model.name, *model.aliases)}
    for path, name in _models(spec):
        if "*" not in name and not _is_known(name, known):
            yield path, f"no model of this configuration is called {quoted(name)}; {nearest(name, known)}"
    for index, limit in enumerate(spec.limits):
        operation = limit.match.operation
        if "*" not in operation and operation not in operations:
            yield f"limits[{index}].match.operation", f"there is no operation {quoted(operation)}; {nearest(operation, operations)}"
    members = tenants_of(spec)
    if members is not None:
        members.update(tenants)
        for index, limit in enumerate(spec.limits):
            tenant = limit.match.tenant
            if "*" not in tenant and tenant not in members:
                message = f"no key or login of this configuration is of the tenant {quoted(tenant)}; {nearest(tenant, members)}"
                yield f"limits[{index}].match.tenant", message


def tenants_of(spec: ConfigSpec) -> set[str] | None:
    """The tenants whose credentials the configuration has; None where a token, an entry of a directory or a plug-in may name any."""
    identity = spec.identity
    found = {key.tenant for key in identity.api_keys.static}
    if identity.plugins:
        return None
    for issuer in identity.oidc:
        claim = issuer.claims.tenant
        if isinstance(claim, str) or claim.value is None:
            return None
        found.add(claim.value)
    for directory in identity.ldap:
        if directory.tenant.value is None:
            return None
        found.add(directory.tenant.value)
    if identity.local_users is not None:
        found.update(user.tenant for user in identity.local_users.users)
    if identity.mtls is not None:
        found.update(principal.tenant for principal in identity.mtls.principals)
    return found | spec.network.tenants.keys()


def _models(spec: ConfigSpec) -> Iterator[tuple[str, str]]:
    lists = [(f"guardrails[{index}].models", guardrail.models) for index, guardrail in enumerate(spec.guardrails)]
    lists += [(f"identity.api_keys.static[{index}].models", key.models) for index, key in enumerate(spec.identity.api_keys.static)]
    lists += [(f"audit.text.when[{index}].models", when.models) for index, when in enumerate(spec.audit.text.when)]
    for path, names in lists:
        for place, name in enumerate(names):
            yield f"{path}[{place}]", name
    for index, limit in enumerate(spec.limits):
        yield f"limits[{index}].match.model", limit.match.model
    for index, price in enumerate(spec.prices):
        yield f"prices[{index}].model", price.model


def _is_known(name: str, known: Collection[str]) -> bool:
    """Whether it names a model, a version of one (`model@2`), or an adapter of one (`model:adapter`)."""
    model = name.partition("@")[0]
    return name in known or model in known or model.partition(":")[0] in known
