"""What a caller reads or sends for long ends when the caller may no longer, and not because nobody could say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from admin import rechecking
from gateway.core.errors import AuthenticationError, GatehouseError, PermissionDenied, StoreUnavailable


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechecking, "CHECK_SECONDS", 0.0)


class Caller:
    """Asked in turn: None stands."""

    def __init__(self, *answers: GatehouseError | None) -> None:
        self.answers = list(answers)

    async def stands(self) -> None:
        if self.answers and (error := self.answers.pop(0)) is not None:
            raise error


async def three(ended: list[str]) -> AsyncIterator[bytes]:
    try:
        for part in (b"a", b"b", b"c"):
            yield part
    finally:
        ended.append("closed")


async def forever(ended: list[str]) -> AsyncIterator[bytes]:
    try:
        yield b"a"
        await asyncio.Event().wait()
    finally:
        ended.append("closed")


async def test_who_may_read_on_gets_all_of_it_also_while_nobody_can_say() -> None:
    ended: list[str] = []
    unknown = StoreUnavailable("The store is away.")
    caller = Caller(None, unknown, None, unknown)
    assert [part async for part in rechecking.leaving(three(ended), caller.stands, events=True)] == [b"a", b"b", b"c"]
    assert ended == ["closed"]


@pytest.mark.parametrize("error", [AuthenticationError("No.", code="invalid_api_key"), PermissionDenied("No.", code="suspended")])
async def test_events_end_with_the_reason_though_nothing_happens(error: GatehouseError) -> None:
    ended: list[str] = []
    found = [part async for part in rechecking.leaving(forever(ended), Caller(None, None, error).stands, events=True)]
    assert found == [b"a", b'event: refused\ndata: {"code":"%b","detail":"No."}\n\n' % error.code.encode()]
    assert ended == ["closed"]


async def test_what_is_no_stream_of_events_breaks_off() -> None:
    ended: list[str] = []
    with pytest.raises(PermissionDenied):
        [part async for part in rechecking.leaving(forever(ended), Caller(None, PermissionDenied("No.")).stands, events=False)]
    assert ended == ["closed"]


async def test_a_reader_that_leaves_ends_what_it_read() -> None:
    ended: list[str] = []
    reading = rechecking.leaving(forever(ended), Caller().stands, events=True)
    assert await anext(reading) == b"a"
    await reading.aclose()
    assert ended == ["closed"]


async def test_a_body_ends_with_the_right_to_send_it() -> None:
    taken: list[bytes] = []
    with pytest.raises(PermissionDenied):
        async for part in rechecking.arriving(three([]), Caller(None, PermissionDenied("No.")).stands):
            taken.append(part)
    assert taken == [b"a"]
