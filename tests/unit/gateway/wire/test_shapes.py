"""What is taken from a shape is a text within one event, and the event of that text again."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.shapes import shape, text_of

MARKS = (b'"content":"', b'"content": "')
PARTS = [b'"', b"\\", b"\n", b"\n\n", b"\r", b'"content":"', b"}", b",", b"data: {", "é".encode(), b"a"]


def event(text: str, tight: bool = True) -> bytes:
    return b"data: %b\n\n" % json.dumps({"delta": {"content": text}, "n": None}, separators=(",", ":") if tight else None).encode()


@given(st.text(max_size=6), st.text(max_size=6), st.booleans())
def test_a_text_is_found_as_json_writes_it(first: str, second: str, tight: bool) -> None:
    before, after = shape(event(first, tight), MARKS, (44, 125))
    found = text_of(event(second, tight), before, after)
    if before:
        assert found == b"" or json.loads(b'"' + found + b'"') == second
        assert before.endswith(MARKS) and after.startswith(b'"')
    else:
        assert found == b"" and json.dumps(first).find("\\") >= 0


@given(st.lists(st.sampled_from(PARTS), max_size=8))
def test_what_holds_more_than_a_text_is_no_event_of_the_shape(parts: list[bytes]) -> None:
    before, after = shape(event("x"), MARKS, (44, 125))
    found = text_of(before + b"".join(parts) + after, before, after)
    assert b'"' not in found and b"\n" not in found and b"\r" not in found and not found.endswith(b"\\")


def test_no_shape_is_that_of_anything() -> None:
    assert shape(b"data: {}\n\n", MARKS, (44,)) == shape(b'data: {"content":"a"}\n\n', MARKS, (44,)) == (b"", b"")
    assert text_of(b"data", b"", b"") == b"" and text_of(b"ab", b"ab", b"b") == b""
