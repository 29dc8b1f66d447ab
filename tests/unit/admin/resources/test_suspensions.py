"""Of many suspensions, only those that may concern what is shown are read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from admin.operation import Call
from admin.resources import suspensions
from admin.resources.suspensions import is_suspended, suspended
from gateway.core.errors import NotFound
from gateway.core.storage import Page


class Store:
    def __init__(self, names: list[str]) -> None:
        self.names, self.read = sorted(names), 0

    async def list(self, kind: str, *, prefix: str, limit: int) -> Page[Any]:
        found = [name for name in self.names if name.startswith(prefix)]
        self.read += min(limit, len(found))
        return Page(tuple(SimpleNamespace(name=name) for name in found[:limit]), "more" if len(found) > limit else None)

    async def get(self, kind: str, name: str) -> None:
        self.read += 1
        if name not in self.names:
            raise NotFound("no")


@pytest.mark.parametrize("others", [0, 3, 5000])
def test_what_is_suspended_is_known_of_each_that_is_shown(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspensions, "PAGE", 10)
    store = Store([*(f"user/a{number:05}@t" for number in range(others)), "user/z@t", "user/a/b@t", "key/y"])
    call = cast(Call, SimpleNamespace(asked={}, ports=SimpleNamespace(store=store)))
    for names in (["z@t", "y@t"], ["a/b@t"]):
        asyncio.run(suspended(call, "user", names))
    assert [is_suspended(call, "user", name) for name in ("z@t", "y@t", "a/b@t")] == [True, False, True]
    assert not is_suspended(call, "key", "y") and store.read <= 2 * 10 + 3
