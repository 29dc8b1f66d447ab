"""Whose turn it is at very many half-open breakers."""

from __future__ import annotations

from typing import Any, cast

from gateway.core.messages import Message
from gateway.routing.endpoints import Endpoint
from gateway.routing.turns import TURN_SECONDS, Turns


class Breaker:
    state = "half_open"


class Place:
    def __init__(self, name: str) -> None:
        self.name, self.breaker = name, Breaker()


def test_each_endpoint_has_its_own_order_which_goes_with_it() -> None:
    told: list[tuple[str, Message]] = []
    now = [1.0]
    turns = Turns(lambda worker, message: told.append((worker, message)), lambda: now[0])
    places = [cast(Endpoint, Place(f"e{number}")) for number in range(20)]
    for _ in range(2):
        for place in places:
            turns.mind(place, ["1", "2"])
        now[0] += TURN_SECONDS
        for place in places:
            turns.mind(place, ["1", "2"])
            for worker in ("1", "2"):
                turns.returned(place, worker, False, ["1", "2"])
    for place in places:
        given = [worker for worker, message in told if message.endpoint == place.name and message.yours]  # type: ignore[attr-defined]
        assert given == ["1", "2", "1"], "those that have not had it for longest"
    there: dict[str, Any] = {"e3": object()}
    turns.gone(there.get)
    assert list(turns._had) == ["e3"]
