"""Leads: what some recognisers must be right behind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.guardrails.recognition.around import Around
from policies.guardrails.recognition.leads import Behind, Leads
from policies.guardrails.recognition.recogniser import Recogniser

LEADS = Leads(["bearer[ \t]{1,4}", "key ?[:=]", "://[^ :]{0,5}:"])
BEHIND = Behind(Recogniser("key", "[a-f0-9]{3,6}", behind="key ?[:=]"), 7)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 0),
        ("x", 1),
        ("x ke", 2),
        ("Key ", 0),
        ("key:", -1),
        ("x bearer", 2),
        ("BEARER\t", -1),
        ("http:/", 4),
        ("://user", 0),
        ("://user: ", -1),
    ],
)
def test_where_a_lead_may_begin(text: str, place: int) -> None:
    assert LEADS.open(text.encode(), 0) == place


def test_what_is_before_the_place_does_not_count() -> None:
    assert LEADS.open(b"key: ke", 4) == 5 and LEADS.open(b"key: ", 4) == 5


def test_without_leads_nothing_is_open() -> None:
    assert Leads([]).open(b"key: ke", 0) == 7


@settings(deadline=None)
@given(st.lists(st.sampled_from(["key", " ", ":", "=", "bearer", "k", "://", "abc", "x"]), max_size=6).map("".join))
def test_a_lead_is_seen_however_the_text_arrives(text: str) -> None:
    whole, place, seen = LEADS.open(text.encode(), 0), 0, False
    for end in range(1, len(text) + 1):
        place = LEADS.open(text[:end].encode(), place)
        if place < 0:
            seen = True
            break
    assert seen == (whole < 0) and (seen or place == whole)


def test_where_one_may_begin_and_end() -> None:
    data = b"key: key=abcdef0 key =12"
    assert BEHIND.places(data, 0) == [4, 9, 22]
    around = Around(())
    assert BEHIND.ends(data, 9, len(data), around) == [([0], 15)]
    assert BEHIND.ends(data, 4, len(data), around) == BEHIND.ends(data, 22, len(data), around) == []
