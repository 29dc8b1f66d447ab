"""Answers outside the process: only what was sealed for this place, with this key, since the last purge, opens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.caches.place import Place
from gateway.caches.sealing import Sealer, Sealers
from gateway.core.clock import SystemEntropy

PLACE, MARKS, NOW = Place(b"k" * 32, "m", "acme"), bytes(range(40)), 1_000.0
KEYS = {"acme": ("1", b"a" * 32), "beta": ("1", b"b" * 32)}
MOST = 1 << 20


def sealers(keys: Callable[[str], tuple[str, bytes] | None] = KEYS.get, now: float = NOW, uses: int = 1 << 32) -> Sealers:
    return Sealers(keys, SystemEntropy(), lambda: now, uses)


def sealer(tenant: str = "acme", now: float = NOW) -> Sealer:
    found = sealers(now=now).of(tenant)
    assert found is not None
    return found


def sealed(value: bytes = b"an answer", place: Place = PLACE, compress: int = 0) -> bytes:
    return sealer(place.tenant).seal(value, place, MARKS, NOW + 60, compress)


@pytest.mark.parametrize("value", [b"", b"an answer", b"a" * 100_000])
@pytest.mark.parametrize("compress", [0, 10])
def test_another_process_opens_it(value: bytes, compress: int) -> None:
    found = sealed(value, compress=compress)
    assert sealer().open(found, PLACE, MARKS, MOST) == (value, NOW + 60)
    assert (len(found) < 1_000) == (len(value) < 1_000 or compress > 0)


def test_the_text_is_not_in_it() -> None:
    assert b"answer" not in sealed()


@pytest.mark.parametrize(
    ("place", "marks", "tenant", "now"),
    [
        (PLACE._replace(key=b"l" * 32), MARKS, "acme", NOW),
        (PLACE._replace(model="n"), MARKS, "acme", NOW),
        (PLACE._replace(tenant="beta"), MARKS, "acme", NOW),
        (PLACE._replace(tenant="beta"), MARKS, "beta", NOW),
        (PLACE, b"x" + MARKS[1:], "acme", NOW),
        (PLACE, MARKS[:31] + b"x" + MARKS[32:], "acme", NOW),
        (PLACE, MARKS, "acme", NOW + 60),
    ],
)
def test_it_opens_nowhere_else(place: Place, marks: bytes, tenant: str, now: float) -> None:
    assert sealer(tenant, now).open(sealed(), place, marks, MOST) is None


def test_a_purge_of_a_single_answer_leaves_the_others() -> None:
    assert sealer().open(sealed(), PLACE, MARKS[:32] + b"another!", MOST) is not None


def test_no_byte_of_it_can_be_changed_and_none_is_missing() -> None:
    found, opener = sealed(), sealer()
    for at in range(len(found)):
        for other in (found[at] ^ 1, found[at] ^ 0x80):
            assert opener.open(found[:at] + bytes([other]) + found[at + 1 :], PLACE, MARKS, MOST) is None
        assert opener.open(found[:at], PLACE, MARKS, MOST) is None
    assert opener.open(found + b"\0", PLACE, MARKS, MOST) is None


def test_what_unpacks_to_more_than_an_answer_may_have_does_not_open() -> None:
    found = sealed(b"a" * 10_000, compress=10)
    assert sealer().open(found, PLACE, MARKS, 9_999) is None
    assert sealer().open(found, PLACE, MARKS, 10_000) is not None


def test_a_new_key_of_the_tenant_opens_nothing_from_before() -> None:
    keys = dict(KEYS)
    ring = sealers(keys.get)
    before = ring.of("acme")
    assert before is not None
    old = before.seal(b"an answer", PLACE, MARKS, NOW + 60, 0)
    keys["acme"] = ("2", b"c" * 32)
    after = ring.of("acme")
    assert after is not None
    assert after.open(old, PLACE, MARKS, MOST) is None
    del keys["acme"]
    assert ring.of("acme") is None


def test_a_derived_key_is_used_for_so_many_answers_only() -> None:
    ring = sealers(uses=3)
    salts = set()
    for _ in range(8):
        found = ring.of("acme")
        assert found is not None
        salts.add(found.seal(b"", PLACE, MARKS, NOW + 60, 0)[12:28])
    assert len(salts) == 3
