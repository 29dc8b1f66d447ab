"""Forms that arrive in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import RequestError
from gateway.server.multipart import MultipartReader, Part, boundary_of

HEAD = b'--xY\r\nContent-Disposition: form-data; name="a"; filename="f"\r\n\r\n'
PIECES = st.lists(st.sampled_from([b"\r", b"\n", b"-", b"x", b"Y", b"a"]), max_size=12).map(b"".join)
PARTS = st.lists(PIECES.filter(lambda one: b"\r\n--xY" not in b"\r\n" + one), min_size=1, max_size=3)


def read(body: bytes, sizes: list[int]) -> list[bytes]:
    reader, place, turn = MultipartReader(b"xY"), 0, 0
    found: list[bytes] = []
    while place < len(body):
        size = sizes[turn % len(sizes)]
        for event in reader.feed(body[place : place + size]):
            if isinstance(event, Part):
                found.append(b"")
            else:
                found[-1] += event.data
        place, turn = place + size, turn + 1
    reader.finish()
    return found


@given(PARTS, st.lists(st.integers(1, 30), min_size=1))
def test_parts_are_the_same_however_they_arrive(parts: list[bytes], sizes: list[int]) -> None:
    assert read(b"".join(HEAD + part + b"\r\n" for part in parts) + b"--xY--\r\n", sizes) == parts


@pytest.mark.parametrize("body", [HEAD + b"cut", b"--xY\r\n\r\nno name\r\n--xY--", b"--xYz", (HEAD + b"a\r\n") * 17])
def test_what_is_malformed_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        read(body, [7])


def test_a_boundary_is_needed() -> None:
    assert boundary_of(b'multipart/form-data; boundary="a b"') == b"a b"
    with pytest.raises(RequestError):
        boundary_of(b"application/json")
