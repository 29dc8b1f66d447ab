"""The data plane's decision for a key and a model, and the limits and guardrails that would apply."""

from __future__ import annotations

from typing import Literal

import msgspec

from admin.operation import Answer, Call, Operation
from admin.resource import Tenant
from gateway.core.errors import NotFound
from gateway.core.types import Principal


class PolicyQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """key: an API key's id. model: a public name or an alias."""

    key: Tenant
    model: Tenant
    operation: Literal["chat", "completions", "embeddings", "rerank", "classify", "infer"] = "chat"


class PolicyResult(msgspec.Struct, kw_only=True):
    """rule: the one that decided. limits and guardrails: the names of those that would apply."""

    key: str
    tenant: str
    model: str
    operation: str
    allow: bool
    reason: str
    rule: str
    limits: list[str]
    guardrails: list[str]


async def test(call: Call) -> Answer:
    query: PolicyQuery = call.query
    principal, refusal = await _principal(call, query.key)
    call.seen("policies:test", principal.tenant, "key", query.key)
    shown = {"key": query.key, "tenant": principal.tenant, "model": query.model, "operation": query.operation}
    if refusal:
        return Answer({**shown, "allow": False, "reason": f"The key is {refusal}.", "rule": "credential", "limits": [], "guardrails": []})
    return Answer({**shown, **call.ports.policies.test(principal, query.model, query.operation)})


async def _principal(call: Call, id: str) -> tuple[Principal, str]:
    """The principal of a key, and why it would be refused ("" if it would not)."""
    for key in call.ports.config.current()["identity"]["api_keys"]["static"]:
        if key["id"] == id:
            return Principal(id, key["tenant"], "api_key", tuple(key["models"]), key["priority"], tuple(key["roles"])), ""
    if call.ports.store is None:
        raise NotFound(f"There is no key {id!r}.")
    record = await call.store.get_key(id)
    state = record.state(call.ports.clock.wall())
    principal = Principal(
        record.id,
        record.tenant,
        "api_key",
        record.models,
        record.priority,
        record.roles,
        record.ends(),
        operations=record.operations,
        limits=record.limits,
    )
    return principal, "" if state == "active" else state


def operations() -> list[Operation]:
    return [
        Operation("GET", "policies/test", "policies:test", "Say what would be decided", test, PolicyResult, query=PolicyQuery, finds=True)
    ]
