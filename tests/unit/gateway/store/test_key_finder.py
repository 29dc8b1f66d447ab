"""Many look-ups of keys in few questions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from gateway.core.errors import StoreUnavailable
from gateway.core.storage import KeyRecord
from gateway.store.key_finder import KeyFinder
from tests.waiting import reached


def record(id: str) -> KeyRecord:
    return KeyRecord(id=id, tenant="t", prefix="gh_", version=1, created=0.0, updated=0.0, actor="x", models=("*",))


class Base:
    """A database that answers when the test says so."""

    def __init__(self) -> None:
        self.known = {b"good": record("good")}
        self.questions: list[list[bytes]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def find(self, fingerprints: Sequence[bytes]) -> Mapping[bytes, KeyRecord]:
        self.questions.append(list(fingerprints))
        known = dict(self.known)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {one: known[one] for one in fingerprints if one in known}


async def test_those_who_come_meanwhile_are_asked_for_together() -> None:
    base = Base()
    finder = KeyFinder(base.find, most=4)
    first = asyncio.ensure_future(finder.find(b"first"))
    await reached(lambda: bool(base.questions))
    rest = [asyncio.ensure_future(finder.find(b"%d" % number)) for number in range(5)]
    valid = asyncio.ensure_future(finder.find(b"good"))
    await reached(lambda: len(finder._waiting) == 6)
    base.gate.set()
    assert await first is None and await asyncio.gather(*rest) == [None] * 5
    found = await valid
    assert found is not None and found.id == "good"
    assert [len(question) for question in base.questions] == [1, 4, 2]
    await finder.aclose()


async def test_an_answer_is_never_older_than_the_question() -> None:
    base = Base()
    finder = KeyFinder(base.find)
    before = asyncio.ensure_future(finder.find(b"new"))
    await reached(lambda: bool(base.questions))
    base.known[b"new"] = record("new")
    after = asyncio.ensure_future(finder.find(b"new"))
    base.gate.set()
    assert await before is None and await after is not None
    await finder.aclose()


async def test_an_error_is_for_all_who_wait_and_the_next_is_asked_again() -> None:
    base = Base()
    base.error = StoreUnavailable("away")
    finder = KeyFinder(base.find)
    waiting = [asyncio.ensure_future(finder.find(b"good")) for _ in range(3)]
    await reached(lambda: bool(base.questions))
    base.gate.set()
    assert all(isinstance(one, StoreUnavailable) for one in await asyncio.gather(*waiting, return_exceptions=True))
    base.error = None
    assert await finder.find(b"good") is not None
    await finder.aclose()


async def test_who_leaves_keeps_nobody_else_waiting() -> None:
    base = Base()
    finder = KeyFinder(base.find)
    first, second = (asyncio.ensure_future(finder.find(b"good")) for _ in range(2))
    await reached(lambda: bool(base.questions))
    first.cancel()
    base.gate.set()
    assert await second is not None
    await finder.aclose()


async def test_closing_ends_whoever_waits() -> None:
    base = Base()
    finder = KeyFinder(base.find)
    waiting = asyncio.ensure_future(finder.find(b"good"))
    await reached(lambda: bool(base.questions))
    await finder.aclose()
    for late in (waiting, finder.find(b"good")):
        with pytest.raises(StoreUnavailable):
            await late
