"""What will be after a write of many: looked up for each of them, gone through once for all."""

from __future__ import annotations

import asyncio
from collections.abc import ValuesView
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from admin.resources.planned_store import PlannedStore, shared_findings
from gateway.core.storage import KeyRecord, Resource


class Counted(dict[str, Any]):
    """Counts how often all of it is gone through."""

    times = 0

    def values(self) -> ValuesView[Any]:
        self.times += 1
        return super().values()


@dataclass
class Ports:
    store: Any
    roles: Any
    check: Any
    matches: Any = None


@dataclass
class Call:
    ports: Ports
    asked: dict[str, Any]

    @property
    def store(self) -> Any:
        return self.ports.store


def resource(kind: str, name: str, tenant: str, **body: Any) -> Resource:
    return Resource(kind, name, tenant, 1, body, 0.0, 0.0, "")


def key(id: str, tenant: str) -> KeyRecord:
    return KeyRecord(id=id, tenant=tenant, prefix="gh_", version=1, created=0.0, updated=0.0, actor="")


async def nobody(kind: str, name: str, tenant: str, without: Any = ()) -> None:
    return None


def call(then: PlannedStore) -> Any:
    return then.call(Call(Ports(object(), SimpleNamespace(naming=nobody), None, lambda pattern, name: pattern in ("*", name)), {}))  # type: ignore[arg-type]


def test_what_many_tenants_have_is_gone_through_once() -> None:
    users = Counted({f"u{n}@t{n % 50}": resource("users", f"u{n}@t{n % 50}", f"t{n % 50}", groups=["g"]) for n in range(100)})
    keys = Counted({f"k{n}": key(f"k{n}", f"t{n % 50}") for n in range(100)})
    store = call(PlannedStore({"users": users}, keys)).store

    async def ask() -> None:
        for number in range(50):
            tenant = f"t{number}"
            assert [one.id for one in (await store.list_keys(tenant=tenant)).items] == [f"k{number}", f"k{number + 50}"]
            assert [one.name for one in (await store.list("users", tenant=tenant)).items] == sorted(
                [f"u{number}@{tenant}", f"u{number + 50}@{tenant}"]
            )
            assert len((await store.members(f"g@{tenant}")).items) == 2
        assert len((await store.list_keys(tenant=["t1", "t2", "none"])).items) == 4
        assert [one.name for one in (await store.list("users", prefix="u1")).items][:2] == ["u10@t10", "u11@t11"]

    asyncio.run(ask())
    assert (users.times, keys.times) == (2, 1)


def test_a_binding_that_is_written_is_found_by_its_subject() -> None:
    written = [("bindings", {"name": f"b{n}", "subjects": [f"tenant/t{n}", f"group/g{n}"], "tenant": "*"}) for n in range(3)]
    roles = call(PlannedStore({}, written=written)).ports.roles
    assert asyncio.run(roles.naming("group", "g2", "t2")) == "b2" and asyncio.run(roles.naming("group", "g9", "t2")) is None


def test_what_one_check_finds_out_serves_the_next() -> None:
    then = PlannedStore({})
    assert shared_findings(call(then)) is shared_findings(call(then)) is then.found
    assert shared_findings(Call(Ports(None, None, None), {})) is None  # type: ignore[arg-type]
