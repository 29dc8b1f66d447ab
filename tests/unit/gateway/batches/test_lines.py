"""The input of a batch, however it is cut."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.lines import Check, Splitter


@given(st.lists(st.binary(max_size=8).filter(lambda one: b"\n" not in one), max_size=8), st.lists(st.integers(1, 9), min_size=1))
def test_lines_are_the_same_however_they_arrive(lines: list[bytes], sizes: list[int]) -> None:
    content, splitter, place, turn = b"\n".join(lines), Splitter(100), 0, 0
    found: list[tuple[int, bytes]] = []
    while place < len(content):
        size = sizes[turn % len(sizes)]
        found += list(splitter.feed(content[place : place + size]))
        place, turn = place + size, turn + 1
    found += list(splitter.feed(b"", last=True))
    assert found == [(number, line) for number, line in enumerate(lines, 1) if line.strip(b" \t\r\n")]


def test_a_line_without_an_end_is_not_gathered() -> None:
    check = Check("/v1/embeddings", 10, 100)
    check.feed(b"x" * 1000)
    assert check.over and [error.code for error in check.errors] == ["line_too_long"]


def test_too_many_lines_are_told_once() -> None:
    line = {"method": "POST", "url": "/v1/embeddings", "body": {"model": "m"}}
    check = Check("/v1/embeddings", 2, 1000)
    check.feed(b"\n".join(json.dumps({**line, "custom_id": str(number)}).encode() for number in range(5)) + b"\n")
    check.finish()
    assert [error.code for error in check.errors] == ["too_many_lines"]
