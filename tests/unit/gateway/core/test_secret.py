"""A secret shows itself only when it is asked to."""

from __future__ import annotations

import copy
import json
import pickle
import traceback

import msgspec
import pytest

from gateway.core.secret import MASK, Secret

VALUE = "gh_planted_secret"


@pytest.mark.parametrize("show", [repr, str, "{}".format, "{:>40}".format, "{!r}".format, "%s".__mod__, lambda s: repr([s])])
def test_no_form_of_it_shows_it(show: object) -> None:
    text = show(Secret(VALUE))  # type: ignore[operator]
    assert VALUE not in text
    assert MASK in text


def test_it_is_not_in_the_dump_of_what_holds_it() -> None:
    class Holder(msgspec.Struct):
        key: Secret

    assert VALUE not in repr(Holder(Secret(VALUE)))


@pytest.mark.parametrize("dump", [pickle.dumps, copy.deepcopy, copy.copy, msgspec.json.encode, json.dumps])
def test_it_is_never_serialised(dump: object) -> None:
    with pytest.raises(TypeError) as caught:
        dump(Secret(VALUE))  # type: ignore[operator]
    assert VALUE not in "".join(traceback.format_exception(caught.value))


def test_it_opens_when_asked() -> None:
    assert Secret(VALUE).reveal() == VALUE


def test_equality_is_of_the_values() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("\u00e9") != Secret("e")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert len(Secret(VALUE)) == len(VALUE)


def test_it_has_no_other_place_for_attributes() -> None:
    with pytest.raises(AttributeError):
        Secret("a").other = 1  # type: ignore[attr-defined]
