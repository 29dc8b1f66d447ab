"""The input of a batch, however it is cut."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.lines import Check, Splitter

SPACE = b" \t\r\n"


def good(name: str) -> bytes:
    line = {"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": {"model": "m"}}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


@given(st.lists(st.binary(max_size=8).filter(lambda one: b"\n" not in one), max_size=8), st.lists(st.integers(1, 9), min_size=1))
def test_lines_are_the_same_however_they_arrive(lines: list[bytes], sizes: list[int]) -> None:
    content, splitter, place, turn = b"\n".join(lines), Splitter(100), 0, 0
    found: list[tuple[int, bytes]] = []
    while place < len(content):
        size = sizes[turn % len(sizes)]
        found += list(splitter.feed(content[place : place + size]))
        place, turn = place + size, turn + 1
    found += list(splitter.feed(b"", last=True))
    assert found == [(number, line.lstrip(SPACE)) for number, line in enumerate(lines, 1) if line.strip(SPACE)]


def test_a_line_without_an_end_is_not_gathered() -> None:
    check = Check("/v1/embeddings", 10, 100)
    check.feed(b"x" * 1000)
    assert check.over and [error.code for error in check.errors] == ["line_too_long"]


@pytest.mark.parametrize("cut", [7, 100, 1000])
def test_a_long_blank_line_hides_nothing_behind_it(cut: int) -> None:
    content, check = good("a") + b" " * 150 + b"\n" + b" " * 150 + good("a"), Check("/v1/embeddings", 10, 100)
    for start in range(0, len(content), cut):
        check.feed(content[start : start + cut])
    check.finish()
    assert [(error.code, error.line) for error in check.errors] == [("duplicate_custom_id", 3)]


def test_blank_lines_count_and_are_not_gone_through_one_by_one() -> None:
    given, check = [0], Check("/v1/embeddings", 10, 100)

    class Watched(Splitter):
        def _given(self, line: bytes) -> Iterator[tuple[int, bytes]]:
            given[0] += 1
            return super()._given(line)

    check._splitter = Watched(100)
    for content in (b"\n" * 50_000, b"\r\n \t\n" * 50_000 + b" ", good("a") + b"\n" * 50_000 + good("a")):
        check.feed(content)
    check.finish()
    assert [(error.code, error.line) for error in check.errors] == [("duplicate_custom_id", 200_002)]
    assert given[0] == 2


def test_colons_in_names_and_values_are_no_second_field() -> None:
    check = Check("/v1/embeddings", 10, 1_000)
    check.feed(good("a:\\u003a")[:-2] + b',"a:b\\u003ac":{":":[":"]},"\\\\u003a":":"}')
    check.finish()
    assert (check.total, check.errors) == (1, [])


@pytest.mark.parametrize(
    ("content", "param", "message"),
    [
        (b"\xef\xbb\xbf{}", None, "byte order mark"),
        ("{}".encode("utf-16"), None, "byte order mark"),
        (b'{"custom_id":"\xff"}', None, "not UTF-8 (byte 14)"),
        (b'{"custom_id":1}', "custom_id", "Expected `str`"),
        (b'{"custom_id":"a"}', "method", "missing required field"),
        (good("a")[:-2] + b',"body":{"model":"other"}}', "body", "body: the key 'body' appears twice"),
        (good("a")[:-2] + b',"custom\\u005fid":"b"}', "custom_id", "the key 'custom_id' appears twice"),
        (good("a")[:-2] + b',"note":":","note":{":":"\\u003a"}}', "note", "the key 'note' appears twice"),
        (good("a")[:-2] + b',"x":"' + b":" * 70_000 + b'","x":1}', None, "a key appears twice"),
        (b'{"custom_id":"a","body":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "nested too deeply"),
    ],
)
def test_an_error_says_what_is_wrong(content: bytes, param: str | None, message: str) -> None:
    check = Check("/v1/embeddings", 10, 1_000_000)
    check.feed(content)
    check.finish()
    [error] = check.errors
    assert (error.code, error.line, error.param) == ("invalid_json_line", 1, param) and message in error.message


def test_too_many_lines_are_told_once() -> None:
    check = Check("/v1/embeddings", 2, 1000)
    check.feed(b"".join(good(str(number)) for number in range(5)))
    check.finish()
    assert [error.code for error in check.errors] == ["too_many_lines"]
