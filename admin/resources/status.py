"""The installation at a glance, and what a caller may do."""

from __future__ import annotations

from typing import Any

import msgspec

from admin.moments import Timestamp, shown
from admin.operation import Answer, Call, Operation
from admin.resources.engines import EndpointView, endpoint_view
from admin.resources.models import ModelView, model_view


class ConfigState(msgspec.Struct, kw_only=True):
    """source: where the configuration in force came from: its file, the store, an administrator. refused: why the newest change was not
    put into force (null: it was). until_restart: it was applied as a text that the file does not have."""

    source: str
    applied_at: Timestamp
    refused: str | None = None
    refused_at: Timestamp | None = None
    refused_source: str | None = None
    until_restart: bool = False


class Trouble(msgspec.Struct, kw_only=True):
    """about: redis, audit_log, audit_sink, audit_archive, audit_checkpoint_copies, master_key, certificate, revocation_list or guardrail.
    name: which of them; "" where there is one. reason: what is wrong; null without config:read."""

    about: str
    name: str
    reason: str | None = None


class Status(msgspec.Struct, kw_only=True):
    """replica: the id of the one that answers.

    config_version: of the configuration in force. config: only for who may read it. in_flight: requests under way. not_ready: what
    keeps traffic out. compiled: whether the hot path runs as machine code. troubles: what else is wrong; none while all is well.
    """

    version: str
    replica: str
    started_at: Timestamp
    config_version: int
    ready: bool
    not_ready: list[str]
    in_flight: int
    gateway_url: str
    store: str
    models: list[ModelView]
    endpoints: list[EndpointView]
    limits: list[dict[str, Any]]
    config: ConfigState | None = None
    insecure: bool = False
    compiled: bool = False
    troubles: list[Trouble] = []


class Caller(msgspec.Struct):
    """The caller. grants: roles with the tenant they count in (null: everywhere)."""

    tenant: str
    id: str
    kind: str
    grants: list[dict[str, Any]]


async def show(call: Call) -> Answer:
    fleet = call.ports.fleet
    store = "none" if call.ports.store is None else "available" if call.ports.store.available else "unavailable"
    found = shown(fleet.status(), "started_at")
    reads = call.access.may("config:read")
    found["config"] = shown(found["config"], "applied_at", "refused_at") if reads else None
    found["troubles"] = [each if reads else {**each, "reason": None} for each in found["troubles"]]
    value = {
        **found,
        "store": store,
        "models": [model_view(model) for model in fleet.models()],
        "endpoints": [endpoint_view(call, e) for e in fleet.endpoints()],
    }
    return Answer(value)


async def whoami(call: Call) -> Answer:
    who = call.access.principal
    return Answer(Caller(who.tenant, who.id, who.kind, [{"role": g.role, "tenant": g.tenant} for g in call.access.grants]))


def operations() -> list[Operation]:
    return [
        Operation("GET", "status", "status:read", "Show the installation at a glance", show, Status),
        Operation("GET", "whoami", "roles:read", "Show what the credential may do", whoami, Caller),
    ]
