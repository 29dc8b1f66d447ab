"""The roles, to look at: the built-in ones of the admin API, and those of the configuration for inference."""

from __future__ import annotations

import msgspec

from admin.operation import Answer, Call, Operation
from admin.permissions import ROLES, Role
from gateway.core.errors import NotFound


class RoleView(msgspec.Struct):
    """confined: it counts only in its holder's tenant."""

    name: str
    description: str
    permissions: list[str]
    confined: bool
    source: str = "built-in"


class RolePage(msgspec.Struct):
    items: list[RoleView]
    cursor: str | None = None


def _view(role: Role) -> RoleView:
    return RoleView(role.name, role.description, sorted(role.permissions), role.confined)


def _views(call: Call) -> dict[str, RoleView]:
    configured = call.ports.config.current()["roles"]
    mine = {
        name: RoleView(name, role["description"], list(role["permissions"]), confined=False, source="file")
        for name, role in sorted(configured.items())
    }
    return {**{name: _view(ROLES[name]) for name in sorted(ROLES)}, **mine}


async def index(call: Call) -> Answer:
    return Answer(RolePage(list(_views(call).values())))


async def show(call: Call) -> Answer:
    role = _views(call).get(call.path["name"])
    if role is None:
        raise NotFound(f"There is no role {call.path['name']!r}.")
    return Answer(role)


def operations() -> list[Operation]:
    return [
        Operation("GET", "roles", "roles:read", "List roles", index, RolePage),
        Operation("GET", "roles/{name}", "roles:read", "Show a role", show, RoleView),
    ]
