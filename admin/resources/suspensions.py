"""Suspends and resumes tenants, users and keys: refused with 403 `suspended` everywhere at once, with their requests under way.

A suspension is a resource of its own in the store (`suspensions/key/ID`), so that it also reaches what the configuration file defines and
users without a record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from admin import problems, values
from admin.operation import Answer, Call, Operation, Written
from admin.permissions import Access
from admin.resource import written
from gateway.core.errors import AlreadyExists, NotFound
from gateway.core.people import full_name, parts

KIND: Final = "suspensions"
Sort = Literal["key", "user", "tenant"]


class Suspension(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """reason: for operators and the audit log; never for the suspended."""

    reason: Annotated[str, Meta(max_length=1024)] = ""


@dataclass(frozen=True)
class Suspendable:
    """What can be suspended. found: (call) -> the name, the tenant and the view of the path's resource; raises NotFound and
    PermissionDenied for callers who may not suspend it."""

    sort: Sort
    plural: str
    parameter: str
    view: Any
    dry_run: Any
    found: Callable[[Call], Awaitable[tuple[str, str, dict[str, Any]]]]

    def operations(self) -> list[Operation]:
        permission, either = f"{self.plural}:suspend", (self.view, self.dry_run)
        one, named = f"{self.plural}/{{{self.parameter}}}", f"a {self.sort}"
        return [
            Operation("POST", f"{one}/suspend", permission, f"Suspend {named}", self.suspend, either, Written, Suspension, finds=True),
            Operation("POST", f"{one}/resume", permission, f"Resume {named}", self.resume, either, Written, finds=True),
        ]

    async def suspend(self, call: Call) -> Answer:
        """Suspends, and answers once that is in force in this process. Changes nothing if it is suspended already."""
        name, tenant, view = await self.found(call)
        if self.concerns(call.access, name, tenant):
            raise problems.simple(409, "own_suspension", "You would suspend yourself.")
        body = {"target": self.target(name), "reason": call.body.reason}
        try:
            await call.store.create(KIND, f"{self.sort}/{name}", body, actor=call.actor, tenant=tenant, dry_run=call.dry_run)
        except AlreadyExists:
            return written(call, view)
        call.diff = values.diff({"suspended": False}, {"suspended": True, "reason": call.body.reason})
        return written(call, {**view, "suspended": True})

    async def resume(self, call: Call) -> Answer:
        name, _, view = await self.found(call)
        try:
            await call.store.delete(KIND, f"{self.sort}/{name}", actor=call.actor, dry_run=call.dry_run)
        except NotFound:
            return written(call, view)
        call.diff = values.diff({"suspended": True}, {"suspended": False})
        return written(call, {**view, "suspended": False})

    def target(self, name: str) -> str:
        """As gateway.core.standing has it: with the user's name itself."""
        return f"user/{'@'.join(parts(name))}" if self.sort == "user" else f"{self.sort}/{name}"

    def concerns(self, access: Access, name: str, tenant: str) -> bool:
        """Whether the caller would be suspended."""
        principal = access.principal
        if principal.tenant != tenant:
            return False
        if self.sort == "user":
            return full_name(principal.user or ("" if principal.kind == "api_key" else principal.id), tenant) == name
        return self.sort == "tenant" or (principal.kind == "api_key" and principal.id == name)


async def suspended(call: Call, sort: Sort, names: Iterable[str]) -> None:
    """Asks which of these are suspended, at once for all of them."""
    store = call.ports.store
    if store is None:
        return
    known: set[str] = call.asked.setdefault(f"suspended {sort}", set())
    found = await store.those(KIND, [f"{sort}/{name}" for name in names])
    known.update(one.name.partition("/")[2] for one in found)


def is_suspended(call: Call, sort: Sort, name: str) -> bool:
    """After `suspended` for this name."""
    return name in call.asked.get(f"suspended {sort}", ())
