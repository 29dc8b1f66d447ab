"""Decisions of the past: why a request was allowed or denied, and what a candidate's roles and bindings would have decided instead."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from admin.moments import Moment, Timestamp, timestamp
from admin.operation import Answer, Call, NoQuery, Operation
from admin.ports import Candidate, Window
from admin.resource import Tenant
from admin.resources.policies import Considered
from gateway.core.errors import ConfigError, NotFound, RequestError
from gateway.core.specs import BindingSpec, RoleSpec

PERMISSION = "policies:replay"
MOST = 100_000
LAST = 10_000
"""Decisions that are made again at most, and unless more are asked for."""


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """roles, bindings: as in the configuration; in place of the file's, or (beside) beside those of the file and the store, as if they were
    applied to the store. last: so many of the newest decisions; since: none before this moment; tenant: of this tenant alone."""

    roles: dict[str, RoleSpec] = {}
    bindings: Annotated[tuple[BindingSpec, ...], Meta(max_length=10_000)] = ()
    beside: bool = False
    last: Annotated[int, Meta(ge=1, le=MOST)] = LAST
    since: Moment | None = None
    tenant: Tenant | None = None


class Side(msgspec.Struct, kw_only=True):
    allow: bool
    rule: str
    reason: str


class Change(msgspec.Struct, kw_only=True):
    """Requests of one caller to one model that would be decided otherwise. before: by the policies in force; after: by the candidate's.
    request_id: the newest of them."""

    tenant: str
    principal: str
    user: str
    agent: str
    model: str
    operation: str
    before: Side
    after: Side
    requests: int
    first: Timestamp
    last: Timestamp
    request_id: str


class Lacking(msgspec.Struct, kw_only=True):
    """Decisions that could not be made again, as their records lack this fact. `older`: records of earlier versions, which have none;
    `unreadable`: those whose facts cannot be read."""

    fact: str
    decisions: int


class Difference(msgspec.Struct, kw_only=True):
    """decisions: those looked at, from `first` to `last`; replayed: those made again. allowed, denied: requests that would be from now on.
    other_rule: those that another rule would decide in the same way. decided_otherwise_then: those that the policies in force decide
    otherwise than those of their time did. complete: false where time ran out. left_out: changes beyond those that are listed."""

    decisions: int
    replayed: int
    first: Timestamp | None
    last: Timestamp | None
    complete: bool
    allowed: int
    denied: int
    other_rule: int
    decided_otherwise_then: int
    not_replayed: list[Lacking]
    changes: list[Change]
    left_out: int


class PastDecision(msgspec.Struct, kw_only=True):
    """allow, rule, config: as they were recorded. facts: what the decision was made on, by the names of conditions and what the credential
    said itself; unrecorded: facts that the record does not have (`caller`: none of the caller's). now: what the policies in force decide
    about the same facts, unless they read one that is `lacking`; rules: those that concern it, as they are now."""

    request_id: str
    time: Timestamp
    tenant: str
    principal: str
    credential: str
    user: str
    agent: str
    session: str
    model: str
    operation: str
    allow: bool
    rule: str
    config: int
    facts: dict[str, Any]
    unrecorded: list[str]
    now: Side | None
    lacking: str
    rules: list[Considered]


async def diff(call: Call) -> Answer:
    """The tenants whose decisions the caller may replay."""
    asked: Comparison = call.body
    if asked.tenant is not None:
        call.require(PERMISSION, asked.tenant)
        tenants: frozenset[str] | None = frozenset({asked.tenant})
    else:
        tenants = call.access.tenants(PERMISSION)
    if call.ports.replays is None:
        raise NotFound("This process does not decide on requests.")
    candidate = Candidate(roles=asked.roles, bindings=asked.bindings, beside=asked.beside)
    try:
        found = await call.ports.replays.diff(candidate, Window(last=asked.last, since=asked.since, tenants=tenants))
    except ConfigError as error:
        raise RequestError(error.message, param=error.path or "bindings", code="invalid_config") from None
    changes = [{**one, "first": timestamp(one["first"]), "last": timestamp(one["last"])} for one in found["changes"]]
    return Answer({**found, "first": timestamp(found["first"]), "last": timestamp(found["last"]), "changes": changes})


async def past(call: Call) -> Answer:
    """A request of a tenant that the caller may not see does not exist."""
    if call.ports.replays is None:
        raise NotFound("This process does not decide on requests.")
    found = await call.ports.replays.past(call.path["request_id"], lambda tenant: call.access.may(PERMISSION, tenant))
    return Answer({**found, "time": timestamp(found["time"])})


def operations() -> list[Operation]:
    return [
        Operation(
            "POST",
            "policies:diff",
            PERMISSION,
            "Say which decisions of the past other roles and bindings would change",
            diff,
            Difference,
            body=Comparison,
            quiet=True,
            max_body=1024 * 1024,
        ),
        Operation(
            "GET",
            "policies/decisions/{request_id}",
            PERMISSION,
            "Say why a request was allowed or denied",
            past,
            PastDecision,
            query=NoQuery,
            finds=True,
        ),
    ]
