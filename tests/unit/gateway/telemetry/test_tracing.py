"""Which `traceparent` headers are passed on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.tracing import valid_traceparent

TRACE, PARENT = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
GOOD = b"00-%b-%b-01" % (TRACE, PARENT)


@pytest.mark.parametrize("value", [GOOD, b"00-%b-%b-00" % (TRACE, PARENT), b"cc-%b-%b-ff" % (TRACE, PARENT)])
def test_valid(value: bytes) -> None:
    assert valid_traceparent(value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"ff-%b-%b-01" % (TRACE, PARENT),
        b"00-%b-%b-01" % (b"0" * 32, PARENT),
        b"00-%b-%b-01" % (TRACE, b"0" * 16),
        b"00-%b-%b-01" % (TRACE.upper(), PARENT),
        b"00-%b-%b-1" % (TRACE, PARENT),
        b"00-%b-%b" % (TRACE, PARENT),
        b"00-%b-%b-01-extra" % (TRACE, PARENT),
        b" " + GOOD,
        GOOD + b"\r\nx-injected: 1",
        GOOD.replace(b"-", b"_"),
    ],
)
def test_invalid(value: bytes) -> None:
    assert not valid_traceparent(value)


@given(st.binary(max_size=60))
def test_what_is_valid_is_safe_to_write_into_a_head(value: bytes) -> None:
    if valid_traceparent(value):
        assert len(value) == 55
        assert set(value) <= set(b"0123456789abcdef-")


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_wrong_byte(place: int, byte: int) -> None:
    changed = GOOD[:place] + bytes([byte]) + GOOD[place + 1 :]
    expected = (byte in b"0123456789abcdef") if GOOD[place : place + 1] != b"-" else byte == ord("-")
    assert valid_traceparent(changed) is expected
