"""The data plane's decision for a caller and a request that is only supposed, with the rules that led to it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from admin.moments import Moment
from admin.operation import Answer, Call, Operation
from admin.resource import Tenant
from gateway.core.errors import NotFound, RequestError
from gateway.core.types import Login, Principal, Trial
from gateway.wire.table import OPERATIONS

MAX_CASES: Final = 1000
"""Of one request."""
STRENGTHS: Final = {
    "api_key": "key",
    "ldap": "password",
    "local_user": "password",
    "oidc": "token",
    "gateway_token": "token",
    "mtls": "certificate",
}


class Supposed(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A caller that is only supposed: what its credential would say. kind: how it would have logged in. strength, issuer, acr, amr,
    auth_time: see Login in gateway.core.values; without a strength, that which logins of this kind have at least."""

    tenant: Tenant
    id: str = "supposed"
    kind: str = "oidc"
    models: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    user: str = ""
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    agent: str = ""
    session: str = ""
    strength: Literal["", "key", "password", "token", "certificate", "mfa"] = ""
    issuer: str = ""
    acr: str = ""
    amr: tuple[str, ...] = ()
    auth_time: Moment | None = None

    def principal(self) -> Principal:
        strength = self.strength or STRENGTHS.get(self.kind, "")
        return Principal(
            self.id,
            self.tenant,
            self.kind,
            self.models,
            roles=self.roles,
            operations=self.operations,
            user=self.user,
            groups=self.groups,
            scopes=self.scopes,
            agent=self.agent,
            session=self.session,
            login=Login(strength, issuer=self.issuer, acr=self.acr, amr=self.amr, auth_time=self.auth_time),
        )


class Question(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """key: an API key's id; or principal: a supposed caller. request: what it asks for."""

    request: Trial
    key: Tenant | None = None
    principal: Supposed | None = None


class Considered(msgspec.Struct, kw_only=True):
    """A rule that concerns the request. when: its condition. holds: whether it counts for this request."""

    rule: str
    effect: str
    when: str | None
    holds: bool


class Explanation(msgspec.Struct, kw_only=True):
    """rule: the one that decided. rules: all that concern the request. limits, guardrails: the names of those that would apply. labels:
    of the data, before a guardrail has read it. engines: those of the model that are cleared for them."""

    tenant: str
    model: str
    operation: str
    allow: bool
    reason: str
    rule: str
    rules: list[Considered]
    limits: list[str]
    guardrails: list[str]
    labels: list[str] = []
    engines: list[str] = []


class Case(Question, forbid_unknown_fields=True, kw_only=True):
    """A question, and the decision that is expected of it. name: for the result. rule: the one that should decide; null: any."""

    expect: Literal["allow", "deny"]
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    rule: str | None = None


class Cases(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    cases: Annotated[list[Case], msgspec.Meta(min_length=1, max_length=MAX_CASES)]


class CaseResult(msgspec.Struct, kw_only=True):
    """case: its name, or its place in the list. passed: whether the decision, and the rule if one was expected, are those of the case."""

    case: str
    expect: str
    allow: bool
    reason: str
    rule: str
    passed: bool


class CaseResults(msgspec.Struct, kw_only=True):
    """passed: whether all are as expected."""

    passed: bool
    items: list[CaseResult]


async def explain(call: Call) -> Answer:
    return Answer(await _explained(call, call.body))


async def test(call: Call) -> Answer:
    asked: Cases = call.body
    items = []
    for number, case in enumerate(asked.cases):
        place = f"cases[{number}]"
        try:
            found = await _explained(call, case)
        except (NotFound, RequestError) as error:
            raise type(error)(f"{place}: {error.message}", param=f"{place}.{error.param}" if error.param else place) from None
        passed = found["allow"] is (case.expect == "allow") and case.rule in (None, found["rule"])
        shown = {name: found[name] for name in ("allow", "reason", "rule")}
        items.append({"case": case.name or place, "expect": case.expect, **shown, "passed": passed})
    return Answer({"passed": all(item["passed"] for item in items), "items": items})


async def _explained(call: Call, asked: Question) -> dict[str, Any]:
    """What an Explanation shows. Raises RequestError, NotFound and what refuses the call."""
    trial = asked.request
    if trial.operation not in OPERATIONS:
        raise RequestError(f"request.operation: {trial.operation[:40]!r} is none of {', '.join(OPERATIONS)}.", param="request.operation")
    if (asked.key is None) == (asked.principal is None):
        raise RequestError("Say either 'key', the id of an API key, or 'principal', a supposed caller.", param="key")
    refusal = ""
    if asked.key is not None:
        principal, refusal = await principal_of(call, asked.key, trial.source)
        call.seen("policies:test", principal.tenant, "key", asked.key)
    else:
        assert asked.principal is not None
        principal = asked.principal.principal()
        call.access.require("policies:test", principal.tenant)
    shown: dict[str, Any] = {"tenant": principal.tenant, "model": trial.model, "operation": trial.operation}
    if refusal:
        denied = {"allow": False, "reason": f"The key is {refusal}.", "rule": "credential", "rules": [], "limits": [], "guardrails": []}
        return {**shown, **denied}
    return {**shown, **await call.ports.policies.explain(principal, trial)}


async def principal_of(call: Call, id: str, source: str = "") -> tuple[Principal, str]:
    """The principal of a key, and why it would be refused ("" if it would not). source: the address that it is used from; "": any."""
    for key in call.ports.config.current()["identity"]["api_keys"]["static"]:
        if key["id"] == id:
            named = Principal(
                id,
                key["tenant"],
                "api_key",
                tuple(key["models"]),
                key["priority"],
                tuple(key["roles"]),
                user=key["user"],
                groups=tuple(key["groups"]),
            )
            return (named, "") if call.ports.holders is None else await call.ports.holders.of(named, source)
    if call.ports.holders is None:
        raise NotFound(f"There is no key {id!r}.")
    return await call.ports.holders.stored(await call.store.get_key(id), source)


def operations() -> list[Operation]:
    return [
        Operation(
            "POST", "policies:explain", "policies:test", "Say what would be decided, and why", explain, Explanation, body=Question,
            quiet=True, finds=True,
        ),
        Operation(
            "POST", "policies:test", "policies:test", "Say whether cases are decided as expected", test, CaseResults, body=Cases,
            quiet=True, finds=True,
        ),
    ]  # fmt: skip
