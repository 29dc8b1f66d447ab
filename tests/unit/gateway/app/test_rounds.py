"""Rounds: one that fails does not stop the next, counting is rarer, waking hastens, closing ends."""

from __future__ import annotations

import asyncio
import logging

import pytest

from gateway.app import rounds
from gateway.app.rounds import Rounds
from gateway.core.errors import StoreUnavailable
from tests.waiting import SECONDS


async def test_rounds_go_on_until_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LOOK_SECONDS", 3600.0)  # each is woken for, and the end comes, while it looks
    seen: list[str] = []

    async def look() -> None:
        seen.append("look")
        made.wake()
        if len(seen) == 2:
            raise StoreUnavailable("gone for a moment")
        if len(seen) == 3:
            raise ValueError("a defect")
        if seen.count("look") > rounds.COUNT_EVERY:
            made.close()

    async def count() -> None:
        seen.append("count")

    async def forget() -> None:
        seen.append("forget")

    made = Rounds("things", logging.getLogger("test"), look=look, count=count, forget=forget)
    async with asyncio.timeout(SECONDS):
        await made.run()
    assert seen[:2] == ["look", "count"] and seen.count("forget") == 1
    assert seen.count("look") == rounds.COUNT_EVERY + 1 and seen.count("count") == 2
