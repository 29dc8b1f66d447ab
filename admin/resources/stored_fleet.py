"""Engines and models as resources: what was decided (`settings`) beside what runs.

`version` of an engine is that of its model, so what counts the writes is called `revision` here; it is the ETag. `in_force`: whether this
revision serves. `failed`: whether it could not be put into force; then `reason` says why, and what was in force before still is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from admin import problems
from admin.moments import timestamp
from admin.operation import Call
from admin.resource import Collection, Shapes, shapes_for
from admin.resources.planned_store import shared_findings
from gateway.core.storage import Resource
from gateway.core.write_set import NO_OTHERS, WriteSet

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True)
class FleetCollection(Collection[S], Generic[S]):
    """running: those of these names that are in force, as the fleet shows them. shown: the type of the answer. blank: what is shown of one
    that is not in force. keep: the body to be stored for a body that was sent; sees the one before. secrets: the settings that hold
    secrets. hidden: without what the caller may not see.
    """

    running: Callable[[Call, Sequence[str]], list[dict[str, Any]]] = lambda call, names: []
    shown: type[msgspec.Struct] = msgspec.Struct
    blank: Callable[[dict[str, Any]], dict[str, Any]] = lambda settings: {}
    keep: Callable[[Call, dict[str, Any], dict[str, Any] | None], dict[str, Any]] = lambda call, body, before: body
    secrets: tuple[str, ...] = ()
    hidden: Callable[[Call, dict[str, Any]], dict[str, Any]] = lambda call, body: body

    def shapes(self) -> Shapes:
        return shapes_for(self.singular.capitalize(), self.shown)

    def kept(self, call: Call, body: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
        return self.keep(call, body, before)

    def carried(self, sent: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
        return {**{field: before[field] for field in self.secrets if before.get(field) and field not in sent}, **sent}

    async def examine(
        self,
        call: Call,
        settings: S,
        before: dict[str, Any] | None,
        kept: dict[str, Any],
        writes: WriteSet = NO_OTHERS,
    ) -> None:
        await self.check(call, settings, before)
        await call.ports.check(self.kind, kept, writes)

    async def prepare(self, call: Call, names: Sequence[str]) -> None:
        call.asked[self.kind] = {item["name"]: item for item in self.running(call, names)}

    def view(self, call: Call, resource: Resource) -> dict[str, Any]:
        settings = self.plain(resource)
        revision, reason = call.ports.fleet.in_force(self.kind, resource.name)
        return {
            **self.blank(settings),
            **self._running(call, resource.name, "store"),
            **({"reason": reason} if reason else {}),
            "name": resource.name,
            "source": "store",
            "settings": self.hidden(call, settings),
            "in_force": revision == resource.version,
            "failed": bool(reason),
            "revision": resource.version,
            "created_at": timestamp(resource.created),
            "updated_at": timestamp(resource.updated),
            "updated_by": resource.actor,
        }

    def file_view(self, call: Call, body: dict[str, Any]) -> dict[str, Any]:
        nothing = dict.fromkeys(("revision", "created_at", "updated_at", "updated_by"))
        shown = {
            **self.blank(body),
            **self._running(call, str(body["name"]), "file"),
            "name": body["name"],
            "source": "file",
            "in_force": True,
            "failed": False,
        }
        return {**shown, **nothing, "settings": self.hidden(call, body)}

    def _running(self, call: Call, name: str, source: str) -> dict[str, Any]:
        """The running resource of a name; empty if nothing runs, or if it comes from another source."""
        found: dict[str, Any] = call.asked[self.kind].get(name, {})
        return found if found.get("source") == source else {}


async def users(call: Call, kind: str, uses: Callable[[dict[str, Any]], Iterable[str]], name: str) -> str | None:
    """The first resource of a kind that uses a name, in the file or the store. What is gone through for the first of many that are deleted
    together serves for all of them."""
    together = shared_findings(call)
    if together is None:
        async for user, used in _uses(call, kind, uses):
            if name in used:
                return user
        return None
    if (kind, uses) not in together:
        first: dict[str, str] = {}
        async for user, used in _uses(call, kind, uses):
            for one in used:
                first.setdefault(one, user)
        together[kind, uses] = first
    found: str | None = together[kind, uses].get(name)
    return found


async def _uses(call: Call, kind: str, uses: Callable[[dict[str, Any]], Iterable[str]]) -> AsyncIterator[tuple[str, Iterable[str]]]:
    """Each resource of a kind, of the file and then of the store, with what it uses."""
    for body in call.ports.config.current()[kind]:
        yield str(body["name"]), uses(body)
    cursor: str | None = None
    while True:
        page = await call.store.list(kind, limit=1000, cursor=cursor)
        for resource in page.items:
            yield resource.name, uses(resource.body)
        cursor = page.cursor
        if cursor is None:
            return


def unused(kind: str, what: str, uses: Callable[[dict[str, Any]], Iterable[str]]) -> Callable[[Call, str], Awaitable[None]]:
    """A check before deleting: raises 409 `in_use` that names who uses it."""

    async def check(call: Call, name: str) -> None:
        user = await users(call, kind, uses, name)
        if user is not None and user != name:
            raise problems.simple(409, "in_use", f"The model {user!r} still names this {what}: change it first.", param="name")

    return check
