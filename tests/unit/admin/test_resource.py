"""Pages of lists that are in memory."""

from __future__ import annotations

import random

import msgspec
import pytest

from admin.resource import Paged, cursor_key, key_cursor, portion
from gateway.core.errors import RequestError


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
