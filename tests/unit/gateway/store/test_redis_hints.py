"""RESP2 as it comes, cut anywhere; what is no Redis is refused and never waited for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.store.listening import Broken
from gateway.store.redis_hints import MOST_BYTES, MOST_PARTS, Replies, parsed

PLAIN = st.one_of(st.integers(-(2**62), 2**62), st.binary(max_size=100), st.none())
REPLIES = st.lists(st.one_of(PLAIN, st.lists(PLAIN, max_size=5)), max_size=8)


def encoded(reply: Any) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))


@given(REPLIES, st.data())
def test_replies_arrive_whole_however_they_are_cut(replies: list[Any], data: st.DataObject) -> None:
    stream = b"".join(map(encoded, replies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, found = Replies(), list[Any]()
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[begin:end])
    assert found == replies


def test_simple_replies_and_errors() -> None:
    status, error = Replies().feed(b"+OK\r\n-WRONGPASS invalid\r\n")
    assert status == b"OK" and isinstance(error, Broken) and str(error) == "WRONGPASS invalid"


@given(st.binary(max_size=300))
def test_whatever_arrives_gives_replies_or_is_refused(data: bytes) -> None:
    reader = Replies()
    try:
        for start in range(0, len(data), 7):
            reader.feed(data[start : start + 7])
    except Broken:
        pass


@pytest.mark.parametrize(
    "data",
    [
        *(b"HTTP/1.1 400 Bad Request\r\n", b":x\r\n", b":\r\n", b"$-2\r\n", b"$5\r\nabcdefg\r\n", b"$%d\r\n" % (MOST_BYTES + 1)),
        *(b"*%d\r\n" % (MOST_PARTS + 1), b"*1\r\n*1\r\n*1\r\n:1\r\n", b"+" + b"a" * (MOST_BYTES + 2), b":" + b"1" * 30 + b"\r\n"),
    ],
)
def test_what_is_no_redis(data: bytes) -> None:
    with pytest.raises(Broken):
        Replies().feed(data)


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://h:6380/0", "rediss://u:p@h", "redis://:p@h", "unix:///run/redis.sock", "redis://[::1]:1"]
)
def test_addresses(url: str) -> None:
    assert parsed(Secret(url)).scheme in ("redis", "rediss", "unix")


@pytest.mark.parametrize(
    "url", ["", "h:6379", "http://h", "redis://", "redis:///x", "unix://", "redis://h:0", "redis://u:hunter2@h:x", "redis://[::1"]
)
def test_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="redis://") as caught:
        parsed(Secret(url))
    assert caught.value.path == "redis.url" and "hunter2" not in caught.value.message
