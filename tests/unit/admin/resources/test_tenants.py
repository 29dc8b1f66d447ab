"""What is asked and told about tenants that are deleted together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from admin.resources.planned_store import TOGETHER, PlannedStore
from admin.resources.tenants import PURGED, purged, unused
from gateway.core.caching import Purge
from gateway.core.errors import GatehouseError
from gateway.core.storage import Page

NAMES = [f"t{number:04}" for number in range(1200)]


def test_the_answers_of_many_deleted_tenants_go_with_few_purges(caplog: pytest.LogCaptureFixture) -> None:
    purges: list[Purge] = []

    async def purge(wanted: Purge, actor: str) -> tuple[int, list[str]]:
        purges.append(wanted)
        return 0, ["redis"] if len(purges) == 1 else []

    call: Any = SimpleNamespace(ports=SimpleNamespace(caches=SimpleNamespace(purge=purge)), actor="ann")
    asyncio.run(purged(call, NAMES))
    assert [len(one.tenants) for one in purges] == [PURGED, PURGED, 200] and [*purges[0].owners()] == NAMES[:PURGED]
    assert "t0009 and 490 others may be left in redis" in caplog.text


def test_tenants_that_own_nothing_are_asked_for_many_at_a_time() -> None:
    asked: list[Any] = []

    async def listed(kind: str = "keys", *, tenant: Any, limit: int) -> Page[Any]:
        asked.append(tenant)
        owns = kind == "groups" and "t0003" in tenant
        return Page((SimpleNamespace(name="g@t0003"),) if owns else ())

    async def get(kind: str, name: str) -> Any:
        return SimpleNamespace(body={})

    async def naming(*asked: str) -> None:
        return None

    then = PlannedStore({}, gone=frozenset(("tenants", name) for name in NAMES))
    store = SimpleNamespace(list=listed, list_keys=listed, get=get)
    call: Any = SimpleNamespace(store=store, asked={TOGETHER: then}, ports=SimpleNamespace(roles=SimpleNamespace(naming=naming)))

    async def all_of_them() -> None:
        for name in NAMES[500:]:
            await unused(call, name)
        assert len(asked) == 3 * 4 - 1 and all(len(tenant) <= 500 for tenant in asked), "a portion with one that owns something ends early"
        await unused(call, "t0002")
        with pytest.raises(GatehouseError, match="'t0003' still has groups"):
            await unused(call, "t0003")

    asyncio.run(all_of_them())
