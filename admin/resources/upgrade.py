"""The upgrade of the running program: how it stands, and the wish for one."""

from __future__ import annotations

from typing import Literal

import msgspec

from admin.moments import Timestamp, shown
from admin.operation import Answer, Call, Operation, Written
from admin.ports import Upgrade
from gateway.core.errors import GatehouseError


class LastUpgrade(msgspec.Struct, kw_only=True, omit_defaults=True):
    """before: the version that was replaced. seconds: from the hand-over to the last replaced worker."""

    outcome: Literal["done", "refused"]
    at: Timestamp
    reason: str = ""
    actor: str = ""
    before: str = ""
    seconds: float = 0.0


class UpgradeView(msgspec.Struct, kw_only=True):
    """state: `renewing` is when the new program replaces the workers one by one. version: of the program that runs. upgrades: since the
    process was started. to: the version that takes over. stuck: why a worker of the new program does not start; it is tried again, and
    another upgrade may begin."""

    state: Literal["idle", "checking", "handing over", "renewing"]
    version: str
    upgrades: int
    last: LastUpgrade | None = None
    to: str = ""
    stuck: str = ""


def _port(call: Call) -> Upgrade:
    if call.ports.upgrade is None:
        raise GatehouseError("This program cannot be replaced while it runs.", code="upgrade_refused", status=409)
    return call.ports.upgrade


async def show(call: Call) -> Answer:
    return Answer(_shown(_port(call).view()))


async def begin(call: Call) -> Answer:
    """Answers once the new program has been checked; it takes over after the answer."""
    call.target = "gatehouse"
    found = await _port(call).begin(call.actor, dry_run=call.dry_run)
    return Answer(_shown(found), status=202)


def _shown(found: dict[str, object]) -> dict[str, object]:
    last = found["last"]
    return {**found, "last": shown(last, "at") if isinstance(last, dict) else None}


def operations() -> list[Operation]:
    what = "Replace the running program, and its workers one by one"
    return [
        Operation("GET", "upgrade", "upgrade:read", "Show how the upgrade of the program stands", show, UpgradeView),
        Operation("POST", "upgrade", "upgrade:begin", what, begin, UpgradeView, query=Written, status=202, refuses=(409,)),
    ]
