"""Which `traceparent` headers are passed on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.tracing import Sampler, of_header, traceparent

TRACE, PARENT = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
GOOD = b"00-%b-%b-01" % (TRACE, PARENT)


@pytest.mark.parametrize("value", [GOOD, b"00-%b-%b-00" % (TRACE, PARENT), b"cc-%b-%b-ff" % (TRACE, PARENT)])
def test_valid(value: bytes) -> None:
    assert traceparent(value) == value


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
        GOOD + b"\r\nx-injected: 1",
        GOOD + b"\n",
        b"\x0b" + GOOD,
        GOOD + b"\x0c",
        GOOD + b", " + GOOD,
        GOOD[:20] + b" " + GOOD[20:],
        GOOD.replace(b"-", b"_"),
    ],
)
def test_invalid(value: bytes) -> None:
    assert traceparent(value) is None


@pytest.mark.parametrize("value", [b" " + GOOD, GOOD + b" ", b"\t " + GOOD + b" \t "])
def test_white_space_around_a_value_is_not_of_it(value: bytes) -> None:
    assert traceparent(value) == GOOD
    traced = Sampler(0.0, "follow").begin(value, False)
    assert traced is not None and (traced.trace.encode(), traced.parent.encode()) == (TRACE, PARENT)
    assert of_header(value).trace.encode() == TRACE


@given(st.binary(max_size=60), st.text(" \t\r\n\x0b\x0c\x00", max_size=3))
def test_what_is_valid_is_safe_to_write_into_a_head(value: bytes, around: str) -> None:
    for header in (value, around.encode() + GOOD, GOOD + around.encode()):
        found = traceparent(header)
        if found is not None:
            assert len(found) == 55
            assert set(found) <= set(b"0123456789abcdef-")


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_one_wrong_byte(place: int, byte: int) -> None:
    changed = GOOD[:place] + bytes([byte]) + GOOD[place + 1 :]
    expected = (byte in b"0123456789abcdef") if GOOD[place : place + 1] != b"-" else byte == ord("-")
    assert (traceparent(changed) is not None) is expected


@pytest.mark.parametrize(
    ("parents", "flags", "trusted", "chance", "traced"),
    [
        ("follow", "01", False, 1.0, True),
        ("follow", "00", False, 0.0, False),
        ("trusted", "01", True, 1.0, True),
        ("trusted", "01", False, 1.0, False),
        ("trusted", "00", False, 0.0, True),
        ("ignore", "01", True, 1.0, False),
        ("ignore", "00", True, 0.0, True),
    ],
)
def test_who_decides_what_is_traced(parents: str, flags: str, trusted: bool, chance: float, traced: bool) -> None:
    sampler = Sampler(0.5, parents, lambda: chance)  # type: ignore[arg-type]
    found = sampler.begin(GOOD[:-2] + flags.encode(), trusted)
    assert (found is not None) is traced
    if found is not None:
        assert (found.trace.encode(), found.parent.encode()) == (TRACE, PARENT)


@pytest.mark.parametrize("header", [None, b"", b"no trace at all"])
def test_without_a_valid_header_chance_decides(header: bytes | None) -> None:
    assert Sampler(0.5, "follow", lambda: 0.6).begin(header, True) is None
    found = Sampler(0.5, "follow", lambda: 0.4).begin(header, True)
    assert found is not None and found.parent == ""
    assert traceparent(found.next_call()) is not None
    assert of_header(header).parent == ""


@pytest.mark.parametrize(("ratio", "traced"), [(0.0, 0), (1.0, 1000)])
def test_the_ends_of_the_ratio_are_none_and_all(ratio: float, traced: int) -> None:
    sampler = Sampler(ratio, "follow")
    assert sum(sampler.begin(None, False) is not None for _ in range(1000)) == traced
