"""RESP2 and RESP3 as they come, cut anywhere; what is no Redis is refused and never waited for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.transport.redis.resp import MOST_BYTES, MOST_DEPTH, MOST_ITEMS, MOST_LINE, NotRedis, Parser, Push, RedisError, command

PLAIN = st.one_of(st.integers(-(2**62), 2**62), st.binary(max_size=60), st.none(), st.booleans(), st.floats(allow_nan=False))
REPLIES = st.lists(st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4), max_leaves=12), max_size=6)


def encoded(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, bool):
        return b"#t\r\n" if reply else b"#f\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, float):
        return b",%r\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))


@given(REPLIES, st.data())
def test_replies_arrive_whole_however_they_are_cut(replies: list[Any], data: st.DataObject) -> None:
    stream = b"".join(map(encoded, replies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parser, found = Parser(), list[Any]()
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += parser.feed(stream[begin:end])
    assert found == replies


EVERYTHING = (
    b"+OK\r\n-WRONGPASS no\r\n:-7\r\n$5\r\na\r\nbc\r\n$-1\r\n*-1\r\n*0\r\n*2\r\n:1\r\n*1\r\n$0\r\n\r\n_\r\n#t\r\n,1.5\r\n,inf\r\n"
    b"(12345678901234567890123\r\n!9\r\nERR worse\r\n=7\r\ntxt:abc\r\n%1\r\n+k\r\n:1\r\n~2\r\n:1\r\n:2\r\n>2\r\n+message\r\n+x\r\n"
    b"|1\r\n+ttl\r\n:3\r\n*1\r\n|1\r\n+a\r\n:1\r\n:9\r\n"
)


@pytest.mark.parametrize("cut", range(len(EVERYTHING) + 1))
def test_every_type_at_every_cut(cut: int) -> None:
    parser = Parser()
    found = parser.feed(EVERYTHING[:cut]) + parser.feed(EVERYTHING[cut:])
    errors = [str(one) for one in found if isinstance(one, RedisError)]
    assert errors == ["WRONGPASS no", "ERR worse"] and found[1].code == "WRONGPASS"
    assert [one for one in found if isinstance(one, Push)] == [[b"message", b"x"]]
    assert [one for one in found if not isinstance(one, RedisError | Push)] == [
        *(b"OK", -7, b"a\r\nbc", None, None, [], [1, [b""]], None, True, 1.5, float("inf"), 12345678901234567890123),
        *(b"abc", [b"k", 1], [1, 2], [9]),
    ]


@given(st.binary(max_size=300))
def test_whatever_arrives_gives_replies_or_is_refused(data: bytes) -> None:
    parser = Parser()
    try:
        for start in range(0, len(data), 7):
            parser.feed(data[start : start + 7])
    except NotRedis:
        pass


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\r\n",
            b":x\r\n",
            b":\r\n",
            b":1_0\r\n",
            b"$-2\r\n",
            b"$5\r\nabcdefg\r\n",
            b"#y\r\n",
            b",x\r\n",
        ),
        *(b"$%d\r\n" % (MOST_BYTES + 1), b"*%d\r\n" % (MOST_ITEMS + 1), b"*1\r\n" * (MOST_DEPTH + 1), b"*-2\r\n", b"%-1\r\n"),
        *(b"+" + b"a" * (MOST_LINE + 2), b":" + b"1" * 70 + b"\r\n", b"*600000\r\n*600000\r\n", b"\x16\x03\x01\x02\x00\x01\r\n"),
    ],
)
def test_what_is_no_redis(data: bytes) -> None:
    with pytest.raises(NotRedis):
        Parser().feed(data)


def test_a_reply_that_never_ends_is_refused() -> None:
    parser, part = Parser(), b"$65536\r\n" + b"x" * 65536 + b"\r\n"
    parser.feed(b"*100000\r\n")
    with pytest.raises(NotRedis, match="too long"):
        for _ in range(MOST_BYTES // 65536 + 10):
            parser.feed(part)


def test_commands_are_arrays_of_strings() -> None:
    assert command("SET", "k", b"\r\n\xff") == b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\n\r\n\xff\r\n"
