"""What a machine makes of orders: only whoever places an engine now may order there."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.app.joined.placed import MAX_FENCES, PlacedEngines
from gateway.config.machine import AcceptsSpec
from gateway.core.errors import GatehouseError

NOTHING: Any = None


async def test_an_order_under_an_earlier_lease_is_refused_where_the_later_one_was_only_told_of() -> None:
    engines = PlacedEngines(AcceptsSpec(memory_bytes=1, disk_bytes=1), (), NOTHING, NOTHING, NOTHING, lambda name, there: None)
    engines.fenced({"chat": 7, "other": 1})
    engines.fenced({"chat": 5})
    with pytest.raises(GatehouseError) as caught:
        engines.remove("chat", 6)
    assert (caught.value.status, caught.value.code) == (409, "stale_order")
    engines.remove("chat", 7)
    engines.remove("other", 2)
    with pytest.raises(GatehouseError):
        engines.remove("other", 1)
    engines.fenced({f"engine-{number}": 1 for number in range(2 * MAX_FENCES)})
    assert len(engines._fences) == MAX_FENCES
    await engines.aclose()
