"""Pages of lists that are in memory, and changes that are made again."""

from __future__ import annotations

import random

import msgspec
import pytest

from admin.resource import CHANGE_TRIES, Paged, anew, cursor_key, key_cursor, portion
from gateway.core.errors import RequestError, VersionMismatch


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_have_everything_once_in_order_while_items_come_and_go(limit: int) -> None:
    items = [f"user/ä{number:03}\n{source}" for number in range(0, 60, 2) for source in ("file", "store")]
    random.Random(limit).shuffle(items)
    found: list[str] = []
    cursor: str | None = None
    for turn in range(200):
        query = msgspec.convert({"limit": limit, "cursor": cursor}, Paged)  # a cursor fits the query's own pattern
        page, cursor = portion(query, items, str)
        assert len(page) <= limit
        found += page
        if cursor is None:
            break
        if turn == 1:
            items.remove(page[-1])  # the place of a cursor need not be there any more
            items.append("a: before it")
    assert found == sorted(set(found)) and set(found) >= set(items) - {"a: before it"}


def test_a_cursor_may_have_the_longest_key_and_a_wrong_one_is_refused() -> None:
    key = "user/" + "\U0001f600" * 256 + "\nstore"
    assert msgspec.convert({"cursor": key_cursor(key)}, Paged).cursor == key_cursor(key)
    assert cursor_key(key_cursor(key)) == key and cursor_key(None) is None
    for wrong in ("file:a", "store:_w", "store:a"):
        with pytest.raises(RequestError, match="did not come from a page"):
            cursor_key(wrong)


@pytest.mark.parametrize("lost", [0, 1, CHANGE_TRIES - 1, CHANGE_TRIES])
async def test_a_change_is_made_again_where_somebody_else_was_faster(lost: int) -> None:
    tries: list[int] = []

    async def change() -> int:
        tries.append(len(tries))
        if len(tries) <= lost:
            error = VersionMismatch("somebody else")
            error.current = len(tries)
            raise error
        return len(tries)

    if lost == CHANGE_TRIES:
        with pytest.raises(VersionMismatch):
            await anew(change)
    else:
        assert await anew(change) == lost + 1


async def test_what_is_refused_for_another_reason_is_not_tried_again() -> None:
    tries: list[int] = []

    async def change() -> int:
        tries.append(1)
        raise VersionMismatch("in use", code="in_use", status=409)

    with pytest.raises(VersionMismatch):
        await anew(change)
    assert len(tries) == 1
