"""Machines that have joined, and the tokens with which they do."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin import values
from admin.moments import Timestamp, timestamp
from admin.operation import Answer, Call, NoQuery, Operation, Written
from admin.resource import anew, location, written
from gateway.core.errors import StoreUnavailable
from gateway.core.joining import TOKEN_PREFIX, JoinToken, Machine, token_hash
from gateway.core.storage import Resource

MACHINES: Final = "machines"
TOKENS: Final = "join_tokens"
PAGE: Final = 1000
Pattern = Annotated[str, Meta(pattern=r"^[A-Za-z0-9*._:/-]{1,128}$")]


class MachineView(msgspec.Struct, kw_only=True):
    """state: as this gateway hears it; `away`: it does not. serves: engines of the configuration that it brings. engines: all that it tells
    of, with its own figures. may_serve: patterns, from its token."""

    name: str
    state: Literal["there", "lost", "away"]
    drained: bool
    address: str | None
    seen: Timestamp | None
    serves: list[str]
    may_serve: list[str]
    engines: list[dict[str, Any]]
    load: dict[str, Any] | None
    reason: str
    token: str
    joined_at: Timestamp


class MachinePage(msgspec.Struct):
    items: list[MachineView]
    cursor: str | None = None


class MachineDryRun(msgspec.Struct):
    result: MachineView
    diff: list[dict[str, Any]] = []
    dry_run: bool = True


class JoinTokenSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """machines, engines: patterns of the names that a machine may have, and of the engines that it may serve. ttl: seconds. uses: machines
    that may join with it."""

    machines: Annotated[list[Pattern], Meta(min_length=1, max_length=64)]
    engines: Annotated[list[Pattern], Meta(min_length=1, max_length=64)]
    ttl: Annotated[float, Meta(ge=1, le=30 * 86400)] = 3600.0
    uses: Annotated[int, Meta(ge=1, le=1000)] = 1


class JoinTokenView(msgspec.Struct, kw_only=True):
    """token: shown once, when it is made. left: machines that may still join with it."""

    id: str
    machines: list[str]
    engines: list[str]
    expires_at: Timestamp
    left: int
    created_at: Timestamp
    created_by: str
    token: str | None = None


class JoinTokenPage(msgspec.Struct):
    items: list[JoinTokenView]
    cursor: str | None = None


class JoinTokenDryRun(msgspec.Struct):
    result: JoinTokenView
    diff: list[dict[str, Any]] = []
    dry_run: bool = True


# --- machines


async def index(call: Call) -> Answer:
    return Answer({"items": [_machine(call, one) for one in await _every(call, MACHINES)], "cursor": None})


async def show(call: Call) -> Answer:
    return Answer(_machine(call, await call.store.get(MACHINES, call.path["name"])))


async def drain(call: Call) -> Answer:
    return await _drained(call, True)


async def resume(call: Call) -> Answer:
    return await _drained(call, False)


async def _drained(call: Call, on: bool) -> Answer:
    name = call.path["name"]
    call.target = f"machines/{name}"

    async def change() -> Resource:
        found = await call.store.get(MACHINES, name)
        was = msgspec.convert(found.body, Machine)
        if was.drained != on:
            body = msgspec.to_builtins(msgspec.structs.replace(was, drained=on))
            found = await call.store.update(MACHINES, name, body, actor=call.actor, version=found.version, dry_run=call.dry_run)
            call.diff = values.diff({"drained": was.drained}, {"drained": on})
        return found

    return written(call, _machine(call, await anew(change)), tagged=False)


async def remove(call: Call) -> Answer:
    """Its engines get no new requests at once, and its key counts no more."""
    name = call.path["name"]
    call.target = f"machines/{name}"
    gone = await call.store.delete(MACHINES, name, actor=call.actor, dry_run=call.dry_run)
    call.diff = values.diff({"name": name}, {})
    return written(call, _machine(call, gone), tagged=False)


def _machine(call: Call, found: Resource) -> dict[str, Any]:
    kept = msgspec.convert(found.body, Machine)
    if call.ports.machines is None:
        raise StoreUnavailable("this gateway has no store")
    heard = call.ports.machines(found.name)
    seen = heard.pop("seen")
    return {
        "name": found.name,
        "drained": kept.drained,
        "may_serve": list(kept.engines),
        "token": kept.token,
        "joined_at": timestamp(found.created),
        "seen": None if seen is None else timestamp(seen),
        **heard,
    }


# --- tokens


async def tokens(call: Call) -> Answer:
    return Answer({"items": [_token(one) for one in await _every(call, TOKENS)], "cursor": None})


async def create(call: Call) -> Answer:
    wanted: JoinTokenSettings = call.body
    id = secrets.token_hex(8)
    text = f"{TOKEN_PREFIX}{id}_{secrets.token_urlsafe(32)}"
    call.target = f"join-tokens/{id}"
    token = JoinToken(
        hash=token_hash(text),
        machines=tuple(wanted.machines),
        engines=tuple(wanted.engines),
        expires=call.ports.clock.wall() + wanted.ttl,
        left=wanted.uses,
    )
    made = await call.store.create(TOKENS, id, msgspec.to_builtins(token), actor=call.actor, dry_run=call.dry_run)
    view = _token(made)
    call.diff = values.diff({}, {key: view[key] for key in ("machines", "engines", "expires_at", "left")})
    if call.dry_run:
        return written(call, view, tagged=False)
    return written(call, {**view, "token": text}, status=201, location=location("join-tokens", id), tagged=False, remember=view)


async def revoke(call: Call) -> Answer:
    """Nobody joins with it any more. Machines that have stay until they are removed."""
    id = call.path["id"]
    call.target = f"join-tokens/{id}"
    gone = await call.store.delete(TOKENS, id, actor=call.actor, dry_run=call.dry_run)
    call.diff = values.diff({"id": id}, {})
    return written(call, _token(gone), tagged=False)


def _token(found: Resource) -> dict[str, Any]:
    kept = msgspec.convert(found.body, JoinToken)
    return {
        "id": found.name,
        "machines": list(kept.machines),
        "engines": list(kept.engines),
        "expires_at": timestamp(kept.expires),
        "left": kept.left,
        "created_at": timestamp(found.created),
        "created_by": found.actor,
        "token": None,
    }


async def _every(call: Call, kind: str) -> list[Resource]:
    found: list[Resource] = []
    cursor: str | None = None
    while True:
        page = await call.store.list(kind, limit=PAGE, cursor=cursor)
        found += page.items
        if (cursor := page.cursor) is None:
            return found


def operations() -> list[Operation]:
    either, made = (MachineView, MachineDryRun), (JoinTokenView, JoinTokenDryRun)
    return [
        Operation("GET", "machines", "machines:read", "List the machines that have joined", index, MachinePage),
        Operation("GET", "machines/{name}", "machines:read", "Show a machine", show, MachineView, NoQuery, finds=True),
        Operation("POST", "machines/{name}/drain", "machines:drain", "Send a machine no new requests", drain, either, Written, finds=True),
        Operation(
            "POST", "machines/{name}/resume", "machines:resume", "Send a machine requests again", resume, either, Written, finds=True
        ),
        Operation("DELETE", "machines/{name}", "machines:delete", "Remove a machine", remove, either, Written, finds=True),
        Operation("GET", "join-tokens", "join-tokens:read", "List join tokens", tokens, JoinTokenPage),
        Operation(
            "POST", "join-tokens", "join-tokens:create", "Make a join token", create, made, Written, JoinTokenSettings, 201, creates=True
        ),
        Operation("DELETE", "join-tokens/{id}", "join-tokens:delete", "Revoke a join token", revoke, made, Written, finds=True),
    ]
