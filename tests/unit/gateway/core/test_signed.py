"""Signed messages: one changed bit, an old moment or another secret, and they do not count."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.signed import NONCE, SIGNATURE, TIMESTAMP, WINDOW, headers, verified

NOW, NUMBER = 1_800_000_000.0, "0123456789abcdef"


def test_the_signature_is_what_the_page_says() -> None:
    made = headers("secret", b"{}", NOW, NUMBER)
    assert made[SIGNATURE] == "v1=" + hmac.new(b"secret", b"1800000000.0123456789abcdef.{}", hashlib.sha256).hexdigest()


@given(st.binary(max_size=50), st.binary(max_size=50), st.floats(-2 * WINDOW, 2 * WINDOW))
def test_only_the_same_body_near_its_moment_counts(body: bytes, other: bytes, late: float) -> None:
    made = headers("secret", body, NOW, NUMBER)
    near = abs(NOW + late - int(NOW)) <= WINDOW
    assert verified("secret", made, other, NOW + late) == (NUMBER if other == body and near else None)
    assert verified("Secret", made, body, NOW) is None


@pytest.mark.parametrize("name", [TIMESTAMP, NONCE, SIGNATURE])
@pytest.mark.parametrize("value", ["", "x", "1800000001", "v1=\u00e9", "fedcba9876543210"])
def test_each_header_is_needed_as_it_was_sent(name: str, value: str) -> None:
    assert verified("secret", {**headers("secret", b"", NOW, NUMBER), name: value}, b"", NOW) is None
    without = {key: value for key, value in headers("secret", b"", NOW, NUMBER).items() if key != name}
    assert verified("secret", without, b"", NOW) is None
