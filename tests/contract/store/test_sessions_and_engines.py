"""What every store keeps to: usage of sessions and engines."""

from __future__ import annotations

from gateway.core.ledger import EngineRow, Position, SessionAndEngineCounts, SessionRow
from gateway.core.storage import ControlStore


def session(name: str, day: str = "2026-01-01", last: float = 1.0, **more: object) -> SessionRow:
    return SessionRow(day, "t", name, "usd", last=last, requests=1, cost=5, **more)  # type: ignore[arg-type]


async def test_sessions_and_engines_are_counted_with_the_position(store: ControlStore) -> None:
    others = SessionAndEngineCounts((session("a", last=2.0, key="new"), session("b")), (EngineRow("2026-01-01", "e", 1, 2, 3),))
    none, once = Position("w"), Position("w", 1, 10, 1, "h")
    assert await store.add_usage([], none, once, others)
    assert not await store.add_usage([], none, once, others), "the same lines count once"
    older = SessionAndEngineCounts(
        (session("a", last=1.0, key="old"), session("a", "2026-01-02", 9.0)), (EngineRow("2026-01-01", "e", 1, 2, 3),)
    )
    assert await store.add_usage([], once, Position("w", 1, 20, 2, "i"), older)
    found = await store.usage_of_sessions()
    assert [(one.session, one.requests, one.cost, one.last, one.day) for one in found] == [
        ("a", 3, 15, 9.0, "2026-01-02"),
        ("b", 1, 5, 1.0, "2026-01-01"),
    ]
    (first,) = await store.usage_of_sessions(until="2026-01-01", session="a", tenant="t")
    assert (first.requests, first.key) == (2, "new")
    assert await store.usage_of_sessions(tenant="u") == []
    assert await store.usage_of_engines("2026-01-01", "2026-01-01") == [EngineRow("2026-01-01", "e", 2, 4, 6)]
    assert await store.usage_of_engines("2026-01-02", "2026-01-02") == []


async def test_sessions_are_bounded(store: ControlStore) -> None:
    rows = tuple(session(f"s{number}", last=float(number)) for number in range(10))
    await store.add_usage([], others=SessionAndEngineCounts((*rows, session("old", "2025-12-31", 99.0))))
    assert await store.forget_sessions("2026-01-01", 4) == 1 + 6
    assert [one.session for one in await store.usage_of_sessions()] == ["s9", "s8", "s7", "s6"]
    assert await store.forget_sessions("2026-01-01", 4) == 0
    assert await store.forget_sessions("2026-01-01", 0) == 4
