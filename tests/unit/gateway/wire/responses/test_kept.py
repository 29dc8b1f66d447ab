"""What a kept answer was made from, page by page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import RequestError
from gateway.core.slices import in_slices
from gateway.wire.responses.kept import input_items

ID = "resp_" + "0f" * 24
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
GIVEN: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello", "type": "message", "id": "msg_1"},
    {"role": "user", "content": [{"type": "input_text", "text": 'a "b"'}], "type": "message", "id": "msg_1"},
    CALL,
    {"type": "function_call_output", "call_id": "c", "output": "sunny", "id": None},
]
OUTPUT = [{"type": "message", "id": "msg_2", "role": "assistant", "content": []}]


async def page(given: list[dict[str, Any]] = GIVEN, limit: int = 20, after: str | None = None, newest: bool = False) -> dict[str, Any]:
    items, answer = json.dumps([*given, *OUTPUT]).encode(), json.dumps({"id": ID, "output": OUTPUT}).encode()
    found: dict[str, Any] = json.loads(await in_slices(input_items(ID, items, answer, limit, after, newest)))
    return found


async def test_items_are_shown_as_openai_shows_them() -> None:
    found = await page()
    own = f"in_{'0f' * 24}_"
    said = {"type": "message", "status": "completed"}
    assert found == {
        "object": "list",
        "data": [
            {**said, "role": "user", "content": [{"type": "input_text", "text": "hi"}], "id": f"{own}0"},
            {**said, "role": "assistant", "content": [{"type": "output_text", "text": "hello", "annotations": []}], "id": "msg_1"},
            {**said, **GIVEN[2], "id": f"{own}2"},
            CALL,
            {**GIVEN[4], "id": f"{own}4"},
        ],
        "first_id": f"{own}0",
        "last_id": f"{own}4",
        "has_more": False,
    }


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
async def test_pages_hold_every_item_once(limit: int, newest: bool) -> None:
    whole = (await page(newest=newest))["data"]
    found: list[dict[str, Any]] = []
    after, more = None, True
    while more:
        one = await page(limit=limit, after=after, newest=newest)
        assert len(one["data"]) == min(limit, len(whole) - len(found))
        found += one["data"]
        after, more = one["last_id"], one["has_more"]
    assert found == whole and whole == (await page(newest=not newest))["data"][::-1]
    assert await page(after=after, newest=newest) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_only_what_is_listed_can_be_gone_on_from() -> None:
    for after in ("msg_2", "x" * 1000, ""):
        with pytest.raises(RequestError, match="after: there is no item") as refused:
            await page(after=after)
        assert refused.value.param == "after" and len(refused.value.message) < 200


async def test_values_keep_their_bytes() -> None:
    items = b'[{"type":"x","id":"i","big":12345678901234567890123456789,"e":1e400}]'
    found = await in_slices(input_items(ID, items, b'{"output":[]}', 5, None, False))
    assert b'"big":12345678901234567890123456789,"e":1e400' in found
