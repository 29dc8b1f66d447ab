"""What is said about a resource before it is stored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.app.configuration.resource_check import ResourceCheck
from gateway.config.merge import Merged
from gateway.core.errors import ConfigError
from gateway.core.write_set import WriteSet


class Nothing:
    additions: Any = None


@pytest.fixture
def check() -> ResourceCheck:
    nothing: Any = Nothing()
    return ResourceCheck(nothing, nothing, nothing, OURS)


def guardrail(**settings: Any) -> dict[str, Any]:
    return {"name": "g", "type": "classifier", "on": ["request"], "settings": {"model": "m", **settings}}


async def test_a_guardrail_that_asks_a_model_can_be_stored(check: ResourceCheck) -> None:
    await check("guardrails", guardrail(labels={"injection": 0.9}))


async def test_one_with_wrong_settings_cannot(check: ResourceCheck) -> None:
    with pytest.raises(ConfigError, match="labels"):
        await check("guardrails", guardrail(labels={}))


class Additions:
    """Counts how often what would be in force is put together."""

    def __init__(self) -> None:
        self.generation, self.made = 1, list[tuple[int, frozenset[tuple[str, str]]]]()

    async def read(self) -> None:
        return None

    async def candidate(self, file: Any, wanted: Any, without: Any) -> Merged:
        self.made.append((len(wanted), without))
        return Merged(cast(Any, None))


async def test_what_is_stored_together_is_put_together_once() -> None:
    additions: Any = Additions()
    changes: Any = SimpleNamespace(in_force=SimpleNamespace(file=object()))
    checking = ResourceCheck(changes, cast(Any, SimpleNamespace(additions=additions)), cast(Any, None), OURS)
    prices = [("prices", {"name": f"p{number}", "model": "m"}) for number in range(50)]
    writes = WriteSet(prices, [("limits", "gone")])
    for kind, body in prices:
        await checking(kind, body, writes)
    assert additions.made == [(50, frozenset({("limits", "gone")}))]
    additions.generation = 2  # somebody else has written
    await checking(*prices[0], writes)
    await checking(*prices[0])
    await checking(*prices[0])
    assert [count for count, _ in additions.made] == [50, 50, 1, 1]
