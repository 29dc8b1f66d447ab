"""Half a surrogate pair is named as such, with its field: the JSON parser calls the body truncated or malformed."""

from __future__ import annotations

import msgspec
import pytest

from gateway.wire.bodies import unreadable
from gateway.wire.surrogates import MOST, MOST_FIELDS, lone_surrogate


@pytest.mark.parametrize(
    ("body", "at", "field"),
    [
        (rb'{"input":"\ud800"}', 10, "input"),
        (rb'{"input":["a","\uDC00 and more text"]}', 15, "input[1]"),
        (rb'{"messages":[{"role":"user","content":"\ud83d\ude00 \ud83d"}]}', 52, "messages[0].content"),
        (rb'{"a":"\\ud800","b":"\\\ud800\ud800"}', 22, "b"),
        (rb'{"a":{"\ud800":1}}', 7, "a"),
        (rb'{"input":"\ud800"', 10, ""),
        (b'{"input":"' + b"x" * MOST_FIELDS + rb'\ud800"}', 10 + MOST_FIELDS, ""),
    ],
)
def test_the_half_and_its_field_are_named(body: bytes, at: int, field: str) -> None:
    found = lone_surrogate(body)
    assert found is not None and found[1] == field
    assert found[0].endswith(f" at byte {at} is half of a surrogate pair; send both halves, or the character as UTF-8")
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(body)
    error = unreadable(body, caught.value)
    assert error.param == (field or None) and str(error).startswith(f"{field or 'The body'}: \\u") and error.code == "invalid_json"


@pytest.mark.parametrize("body", [b"", b"{", rb'{"a":"\ud83d\ude00 \\ud800 \u00e9"}', b'{"a":"\xed\xa0\x80"}', rb'{"a":"\u12', b"\\" * 99])
def test_whole_pairs_and_other_mistakes_are_none(body: bytes) -> None:
    assert lone_surrogate(body) is None


def test_not_more_than_so_many_escapes_are_looked_at() -> None:
    assert lone_surrogate(rb"\n" * (MOST - 1) + rb"\ud800") is not None
    assert lone_surrogate(rb"\n" * MOST + rb"\ud800") is None
