"""Heads that come again: taken for what they were only if every byte but the digits of the length is the same."""

from __future__ import annotations

import pytest

from gateway.core.types import ResponseHead
from gateway.transport.repeated import MOST_DIGITS, MOST_HEAD, known_head, known_response, number

HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nAccept: */*\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nDate: now\r\ncontent-length: 4\r\nServer: e\r\n\r\nbody"
FIELDS = [(b"Date", b"now"), (b"content-length", b"4"), (b"Server", b"e")]


def test_a_head_that_comes_again_is_known_whatever_its_length() -> None:
    known = known_head(HEAD + b"body", b"POST ", b"12")
    assert known is not None and known.before + b"12" + known.after == HEAD
    for digits in (b"12", b"0", b"007", b"9" * MOST_DIGITS):
        assert known.digits(HEAD.replace(b"12", digits) + b"more") == digits


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEAD[:-1],
        HEAD[: HEAD.index(b"12") + 1],
        HEAD.replace(b"12", b""),
        HEAD.replace(b"12", b"+1"),
        HEAD.replace(b"12", b"1 2"),
        HEAD.replace(b"12", b"12 "),
        HEAD.replace(b"12", b"1_2"),
        HEAD.replace(b"12", b"12,12"),
        HEAD.replace(b"12", b"12\r"),
        HEAD.replace(b"12", "\u0661".encode()),
        HEAD.replace(b"12", b"9" * (MOST_DIGITS + 1)),
        HEAD.replace(b"12\r\n", b"12\n"),
        HEAD.replace(b"*/*", b"*/* "),
        HEAD.replace(b"*/*\r\n", b"*/*\r\nTransfer-Encoding: chunked\r\n"),
        HEAD.replace(b"POST", b"post"),
        b"\r\n" + HEAD,
    ],
)
def test_any_other_head_is_for_the_parser(data: bytes) -> None:
    known = known_head(HEAD, b"POST ", b"12")
    assert known is not None and known.digits(data) == b""


@pytest.mark.parametrize(
    "data",
    [
        HEAD[:-2],  # it does not end here
        HEAD.replace(b": a", b": " + b"a" * MOST_HEAD),
        b"\r\n" + HEAD,
        HEAD.replace(b"\r\n", b"\n"),
        HEAD.replace(b"a\r\n", b"a\n"),
        HEAD.replace(b"\r\n\r\n", b"\n\n\r\n\r\n"),  # the parser may have taken `\n\n` for its end
        HEAD.replace(b"12", b"12 "),
        HEAD.replace(b"12", b"13"),  # a parser that read something else
        HEAD.replace(b"Content-Length", b"X-Content-Length"),
        HEAD.replace(b"Accept: */*", b"Content-Length: 12"),
        HEAD.replace(b"12", b"1\r\n 2"),
        HEAD.replace(b"Content-Length: 12", b"Content-Length:"),
    ],
)
def test_a_head_that_could_be_read_in_another_way_is_not_remembered(data: bytes) -> None:
    assert known_head(data, b"POST ", b"12") is None


def test_what_a_connection_remembers_is_bounded() -> None:
    longest = HEAD.replace(b": a", b": a" + b"a" * (MOST_HEAD - len(HEAD)))
    assert len(longest) == MOST_HEAD and known_head(longest, b"POST ", b"12") is not None
    assert known_head(longest.replace(b": a", b": aa"), b"POST ", b"12") is None


def test_digits_are_a_number() -> None:
    for digits in (b"", b"0", b"7", b"10", b"0090", b"237", b"99999999"):
        assert number(digits) == int(digits or b"0")


def test_a_whole_response_that_comes_again_is_known() -> None:
    known = known_response(ANSWER, ResponseHead(200, list(FIELDS)))
    assert known is not None
    chunks: list[bytes] = []
    again = known.again(ANSWER.replace(b": 4", b": 10").replace(b"body", b"other body"), chunks)
    assert again is not None and again.status == 200 and chunks == [b"other body"]
    assert again.headers == [(b"Date", b"now"), (b"content-length", b"10"), (b"Server", b"e")]
    again.headers.clear()
    assert (once := known.again(ANSWER, [])) is not None and once.headers == FIELDS


@pytest.mark.parametrize(
    "data",
    [ANSWER[:-1], ANSWER + b"x", ANSWER.replace(b"now", b"then"), ANSWER.replace(b"4\r", b"0\r")[:-4], ANSWER.replace(b"200", b"201")],
)
def test_any_other_response_is_for_the_parser(data: bytes) -> None:
    known, chunks = known_response(ANSWER, ResponseHead(200, list(FIELDS))), list[bytes]()
    assert known is not None and known.again(data, chunks) is None and chunks == []


@pytest.mark.parametrize(
    "head",
    [
        ResponseHead(204, FIELDS),
        ResponseHead(200, [(b"Date", b"now"), (b"Server", b"e")]),
        ResponseHead(200, [*FIELDS, (b"Transfer-Encoding", b"identity")]),
        ResponseHead(200, [*FIELDS, (b"Upgrade", b"h2c")]),
        ResponseHead(200, [(b"content-length", b"5")]),
    ],
)
def test_a_response_whose_end_is_not_plain_is_not_remembered(head: ResponseHead) -> None:
    assert known_response(ANSWER, head) is None
