"""Keys in Redis: no two scopes share one, and what operators see of them leads back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.specs import LimitSpec, RateSpec
from gateway.limits.bucket import Shape
from gateway.limits.redis.names import Names, shown

NAMES = Names("gatehouse")
SHAPE = Shape(LimitSpec(name="l", requests=RateSpec(rate=1)))
PARTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=40)
KEYS = st.lists(st.one_of(PARTS, st.sampled_from(["a", "a/b", "b", "0" * 32, "x" * 70])), max_size=4).map(tuple)


@given(KEYS, KEYS)
def test_scopes_do_not_share_a_key(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    if "/".join(one) or "/".join(other):  # no part and an empty one is the same to nobody: a limit has one kind of scopes
        assert (NAMES.bucket(SHAPE, one) == NAMES.bucket(SHAPE, other)) == (one == other)


@given(KEYS)
def test_what_is_shown_leads_back(key: tuple[str, ...]) -> None:
    name = NAMES.bucket(SHAPE, key)
    scope = shown(name, NAMES.of_limit(SHAPE))
    assert name in NAMES.meant(SHAPE, scope)
    if "/".join(key).count("/") < 12 and not "/".join(key).startswith("#"):
        assert name in NAMES.meant(SHAPE, "/".join(key)), "as `limits show` has it"


@pytest.mark.parametrize(
    ("key", "end"),
    [(("team", "api_key", "ci"), ":team/api_key/ci"), (("a/b", "c"), None), (("a", "b c"), None), ((), ":"), (("é",), None)],
)
def test_plain_scopes_are_written_out(key: tuple[str, ...], end: str | None) -> None:
    name = NAMES.bucket(SHAPE, key).decode()
    assert name.startswith("gatehouse:{limits}:bucket:l:")
    assert name.endswith(end) if end is not None else shown(name.encode(), NAMES.of_limit(SHAPE)).startswith("#")


def test_a_limit_of_another_kind_has_other_keys() -> None:
    other = Shape(LimitSpec(name="l", per="tenant", requests=RateSpec(rate=1)))
    assert NAMES.of_limit(SHAPE) != NAMES.of_limit(other)
    assert NAMES.told(NAMES.bucket(SHAPE, ("a",))).startswith(b"gatehouse:{limits}:told:l:")
    assert not list(NAMES.meant(SHAPE, "/" * 40)), "nothing that takes long to try"
