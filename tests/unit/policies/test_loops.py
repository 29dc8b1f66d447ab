"""How deep in a loop an agent is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from policies.loops import measured


def turn(role: str, *calls: tuple[str, str]) -> Any:
    return SimpleNamespace(role=role, tool_calls=[SimpleNamespace(function=SimpleNamespace(name=n, arguments=a)) for n, a in calls])


def test_calls_in_a_row_and_the_same_call() -> None:
    asked = turn("user")
    search, other = turn("assistant", ("search", "{}")), turn("assistant", ("search", '{"a":1}'), ("read", "{}"))
    assert measured(None) == measured([]) == measured([asked]) == (0, 0)
    assert measured([asked, search, turn("tool"), other, turn("tool")]) == (2, 1)
    assert measured([asked, search, search, asked, search]) == (1, 3)
    assert measured([asked, turn("assistant", *[("x", "1")] * 5)]) == (1, 5)
    assert measured([SimpleNamespace(role="assistant")]) == (0, 0)
