"""Applies resources of several kinds together: creates new ones, replaces different ones, deletes none; all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin import values
from admin.operation import Answer, Call, Operation, Written
from admin.resource import Change, Collection, read_only
from admin.resources.bindings import BINDINGS
from admin.resources.guardrails import GUARDRAILS
from admin.resources.limits import LIMITS
from admin.resources.roles import ROLES_OF_STORE
from admin.resources.stored_engines import ENGINES
from admin.resources.stored_models import MODELS
from gateway.core.errors import ConfigError, GatehouseError, NotFound, RequestError
from gateway.core.storage import Resource, Write
from gateway.core.write_set import WriteSet

MAX_BODY: Final = 1024 * 1024
MAX_RESOURCES: Final = 1000
COLLECTIONS: Final[tuple[Collection[Any], ...]] = (LIMITS, GUARDRAILS, ROLES_OF_STORE, BINDINGS, ENGINES, MODELS)

Applied = msgspec.defstruct(
    "Applied",
    [(known.kind, Annotated[tuple[known.settings, ...], Meta(max_length=MAX_RESOURCES)], ()) for known in COLLECTIONS],  # type: ignore[name-defined]
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    module=__name__,
)
"""Resources by kind, each as a creation takes it. Secrets that are left out stay as the store has them; null removes one."""


class AppliedView(msgspec.Struct, kw_only=True):
    """The result for one resource."""

    kind: str
    name: str
    action: Literal["created", "replaced", "unchanged"]
    diff: list[Change]


class AppliedPage(msgspec.Struct, kw_only=True):
    """In the order of the request, kind by kind."""

    items: list[AppliedView]
    dry_run: bool = False


@dataclass
class _Item:
    """One resource of the request, read and ready to be examined."""

    collection: Collection[Any]
    name: str
    settings: Any
    kept: dict[str, Any]
    before: Resource | None
    diff: list[dict[str, Any]]
    needs: Sequence[tuple[str, str]]

    @property
    def former(self) -> dict[str, Any] | None:
        return None if self.before is None else self.before.body

    @property
    def action(self) -> str:
        return "created" if self.before is None else "replaced" if self.diff else "unchanged"


@contextmanager
def about(kind: str, name: str) -> Iterator[None]:
    """Errors say which resource of the request they are about."""
    try:
        yield
    except GatehouseError as error:
        place = f"{kind}/{name}: " + (f"{error.param}: " if error.param else "")
        error.message, error.param = place + error.message, f"{kind}/{name}"
        if isinstance(error, ConfigError):
            error.path = None  # it is in the message now, and would be said before it again
        raise


async def apply(call: Call) -> Answer:
    """Everything is read and examined before anything is written; the writes are one transaction."""
    sent = msgspec.json.decode(call.raw)
    items = [await _read(call, collection, settings) for collection in COLLECTIONS for settings in sent.get(collection.kind, ())]
    call.target = ", ".join(f"{item.collection.kind}/{item.name}" for item in items)
    names = [(item.collection.kind, item.name) for item in items]
    if len(set(names)) < len(names):
        kind, name = next(one for one in names if names.count(one) > 1)
        raise RequestError(f"{kind}/{name} appears twice.", param=f"{kind}/{name}")
    changed = [item for item in items if item.action != "unchanged"]
    everything = WriteSet([(item.collection.kind, {"name": item.name, **item.kept}) for item in changed])
    for item in changed:
        await asyncio.sleep(0)  # requests get the loop in between
        with about(item.collection.kind, item.name):
            await item.collection.examine(call, item.settings, item.former, item.kept, everything)
    await call.store.write_all([_write(item) for item in changed], actor=call.actor, dry_run=call.dry_run)
    call.diff = [{**entry, "path": f"{item.collection.kind}/{item.name}.{entry['path']}"} for item in changed for entry in item.diff]
    done = [{"kind": i.collection.kind, "name": i.name, "action": i.action, "diff": i.diff} for i in items]
    return Answer({"items": done, "dry_run": call.dry_run})


def _write(item: _Item) -> Write:
    tenant = item.collection.tenant_of(item.kept)
    version = None if item.before is None else item.before.version
    return Write(item.collection.kind, item.name, item.kept, tenant, version, tuple(item.needs))


async def _read(call: Call, collection: Collection[Any], sent: dict[str, Any]) -> _Item:
    """sent: as it was written, which tells an absent setting from a default. Raises PermissionDenied, and 409 for one of the configuration
    file."""
    name = str(sent["name"])
    with about(collection.kind, name):
        if collection.in_force_from_file(call, name):
            raise read_only(collection.singular, name)
        try:
            before = await call.store.get(collection.kind, name)
        except NotFound:
            before = None
        if before is not None:
            call.require(f"{collection.kind}:update", before.tenant)
            sent = collection.carried(sent, before.body)
        settings = values.decode(msgspec.json.encode(sent), collection.settings)
        body = msgspec.to_builtins(settings)
        call.require(f"{collection.kind}:{'create' if before is None else 'update'}", collection.tenant_of(body))
        former = None if before is None else before.body
        kept = collection.kept(call, body, former)
        return _Item(collection, name, settings, kept, before, collection.diff(former, kept), collection.needs(call, kept))


def operations() -> list[Operation]:
    return [
        Operation(
            "POST",
            "apply",
            "resources:apply",
            "Create or replace several resources, all or none",
            apply,
            AppliedPage,
            query=Written,
            body=Applied,
            max_body=MAX_BODY,
        )
    ]
