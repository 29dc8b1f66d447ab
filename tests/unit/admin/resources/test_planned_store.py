"""What will be after a write of many: looked up for each of them, gone through once for all."""

from __future__ import annotations

import asyncio
from collections.abc import ValuesView
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from admin.resources.planned_store import PlannedStore, shared_findings
from gateway.core.storage import KeyRecord, Page, Resource


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
    store = call(PlannedStore({"users": users})).store

    async def ask() -> None:
        for number in range(50):
            tenant = f"t{number}"
            assert [one.name for one in (await store.list("users", tenant=tenant)).items] == sorted(
                [f"u{number}@{tenant}", f"u{number + 50}@{tenant}"]
            )
            assert len((await store.members(f"g@{tenant}")).items) == 2
        assert [one.name for one in (await store.list("users", prefix="u1")).items][:2] == ["u10@t10", "u11@t11"]

    asyncio.run(ask())
    assert users.times == 2


async def test_a_key_that_is_left_is_found_behind_those_that_go() -> None:
    """Also one that no sync deletes: one that has ended, or a user's own."""
    pages = {None: Page((key("k1", "t"), key("k2", "t")), "k2"), "k2": Page((key("k3", "t"), key("k4", "t")))}
    asked: list[Any] = []

    async def list_keys(*, tenant: Any, limit: int, cursor: str | None = None) -> Page[KeyRecord]:
        asked.append((tenant, limit, cursor))
        return pages[cursor]

    def left(*gone: str) -> Any:
        then = PlannedStore({}, gone=frozenset(("keys", id) for id in gone))
        ports = Ports(SimpleNamespace(list_keys=list_keys), SimpleNamespace(naming=nobody), None)
        return then.call(Call(ports, {})).store.list_keys(tenant="t", limit=1)  # type: ignore[arg-type]

    assert [one.id for one in (await left("k1", "k2", "k3")).items] == ["k4"]
    assert [cursor for _, _, cursor in asked] == [None, "k2"]
    assert not (await left("k1", "k2", "k3", "k4")).items
    asked.clear()
    assert len((await left()).items) == 2 and asked == [("t", 1, None)]


def test_a_binding_that_is_written_is_found_by_its_subject() -> None:
    written = [("bindings", {"name": f"b{n}", "subjects": [f"tenant/t{n}", f"group/g{n}"], "tenant": "*"}) for n in range(3)]
    roles = call(PlannedStore({}, written=written)).ports.roles
    assert asyncio.run(roles.naming("group", "g2", "t2")) == "b2" and asyncio.run(roles.naming("group", "g9", "t2")) is None


def test_what_one_check_finds_out_serves_the_next() -> None:
    then = PlannedStore({})
    assert shared_findings(call(then)) is shared_findings(call(then)) is then.found
    assert shared_findings(Call(Ports(None, None, None), {})) is None  # type: ignore[arg-type]
