"""Of many suspensions, only those that may concern what is shown are read, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from admin.operation import Call
from admin.resources.suspensions import is_suspended, suspended


class Store:
    def __init__(self, names: list[str]) -> None:
        self.names, self.read = set(names), 0

    async def those(self, kind: str, names: Sequence[str]) -> list[Any]:
        self.read += 1
        return [SimpleNamespace(name=name) for name in names if name in self.names]


def test_what_is_suspended_is_known_of_each_that_is_shown() -> None:
    store = Store(["user/z@t", "user/a/b@t", "key/y"])
    call = cast(Call, SimpleNamespace(asked={}, ports=SimpleNamespace(store=store)))
    for names in (["z@t", "y@t", *(f"n{number}@t" for number in range(1000))], ["a/b@t"]):
        asyncio.run(suspended(call, "user", names))
    assert [is_suspended(call, "user", name) for name in ("z@t", "y@t", "a/b@t")] == [True, False, True]
    assert not is_suspended(call, "key", "y") and store.read == 2
