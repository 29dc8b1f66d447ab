"""The format of API keys."""

from __future__ import annotations

import hashlib
import hmac

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.identity import keys


class Fixed:
    """Entropy that the test decides."""

    def __init__(self, value: bytes) -> None:
        self.value = value

    def bytes(self, n: int) -> bytes:
        assert n == len(self.value) == 24
        return self.value

    def uniform(self) -> float:
        return 0.0


random_bytes = st.binary(min_size=24, max_size=24)


@settings(deadline=None)
@given(random_bytes)
def test_a_key_has_prefix_length_and_a_checksum(value: bytes) -> None:
    key = keys.generate(Fixed(value))
    assert key.startswith("gh_") and len(key) == keys.LENGTH == 42 and key[3:].isalnum() and key.isascii()
    assert keys.well_formed(key)


@settings(deadline=None)
@given(random_bytes, random_bytes)
def test_different_bits_make_different_keys(one: bytes, other: bytes) -> None:
    assert (keys.generate(Fixed(one)) == keys.generate(Fixed(other))) == (one == other)


@settings(deadline=None)
@given(random_bytes, st.integers(3, 41), st.sampled_from(keys.ALPHABET))
def test_one_wrong_character_is_noticed(value: bytes, place: int, character: str) -> None:
    key = keys.generate(Fixed(value))
    wrong = key[:place] + character + key[place + 1 :]
    assert keys.well_formed(wrong) == (wrong == key)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_judged(text: str) -> None:
    assert keys.well_formed(text) is False or text.startswith("gh_")


def test_a_known_key() -> None:
    assert keys.generate(Fixed(bytes(24))) == "gh_" + "0" * 33 + keys.generate(Fixed(bytes(24)))[-6:]
    assert not keys.well_formed("gh_" + "0" * 39)
    assert not keys.well_formed("gh-" + keys.generate(Fixed(bytes(24)))[3:])
    assert not keys.well_formed("gh_" + "٣" * 39)


def test_what_is_stored() -> None:
    key = keys.generate(Fixed(b"a" * 24))
    assert keys.digest(key) == hashlib.sha256(key.encode()).digest()
    stored = keys.fingerprint(key, b"pepper")
    assert stored == hmac.new(b"pepper", key.encode(), hashlib.sha256).digest()
    assert stored not in (keys.fingerprint(key, b"other"), keys.fingerprint(key + "x", b"pepper"))
