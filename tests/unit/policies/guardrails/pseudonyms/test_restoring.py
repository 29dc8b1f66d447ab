"""Pseudonyms in streams: restored however they are cut, and nothing is held that cannot become one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.guardrails.pseudonyms import restoring
from policies.guardrails.pseudonyms.restoring import Forms, Restoring

FORMS = Forms(["email", "phone", "email_2"])
VALUES = {"<EMAIL_1>": "bob@example.com", "<EMAIL_12>": "eve@example.com", "<PHONE_1>": '+1 "415"\\', "<EMAIL_2_1>": "other"}
PIECES = [
    *VALUES,
    "<EMAIL_3>",
    "<email_1>",
    "<EMAIL_0>",
    "<EMAIL_01>",
    "<",
    "<<",
    "<E",
    "<EMAIL_",
    "<EMAIL_1",
    ">",
    "a < b",
    "text ",
    "é",
    "1",
    "_",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


def run(*pieces: str, nested: bool = False) -> str:
    stream = Restoring(FORMS, VALUES.get, nested)
    return "".join([stream.feed(piece) for piece in pieces]) + stream.finish()


def plain(text: str) -> str:
    return FORMS.pattern.sub(lambda match: VALUES.get(match[0], match[0]), text)


@given(TEXTS, st.data())
def test_the_cuts_make_no_difference(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert run(*(text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True))) == plain(text)
    assert run(*text) == run(text) == plain(text)
    assert run(*text, nested=True) == plain(text)


@given(TEXTS, st.integers(20, 40))
def test_no_window_cuts_a_pseudonym_in_two(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(restoring, "WINDOW", size)
        windows = list(FORMS.windows(text))
    assert "".join(text[begin:end] for begin, end in windows) == text
    assert [one for begin, end in windows for one in FORMS.pattern.findall(text, begin, end)] == FORMS.pattern.findall(text)


@given(TEXTS)
def test_only_the_beginning_of_a_pseudonym_is_held(text: str) -> None:
    stream = Restoring(FORMS, VALUES.get, False)
    for character in text:
        stream.feed(character)
        held = stream.held
        assert len(held) < FORMS.longest
        names = ("<EMAIL_", "<PHONE_", "<EMAIL_2_")
        assert not held or any(name.startswith(held) or (held.startswith(name) and held[len(name) :].isdigit()) for name in names)


def test_ordinary_text_is_never_held() -> None:
    stream = Restoring(FORMS, VALUES.get, False)
    for piece in ("Hello", " <b>", " x < y", "<p", ">", "EMAIL_1>", " 1 <2", "<EMAIL1"):
        assert stream.feed(piece) + stream.held == piece and (not stream.held or piece.endswith(stream.held))
        stream.feed(" ")
        assert stream.held == ""


@pytest.mark.parametrize(
    "text", ["<email_1>", "EMAIL_1", "&lt;EMAIL_1&gt;", "< EMAIL_1 >", "<EMAIL_01>", "<EMAIL_99999999>", "＜EMAIL_1＞"]
)
def test_only_the_exact_form_is_restored(text: str) -> None:
    assert run(text) == text


def test_what_is_restored_is_not_read_again() -> None:
    stream = Restoring(FORMS, {"<EMAIL_1>": "<PHONE_1>", "<PHONE_1>": "secret"}.get, False)
    assert stream.feed("<EMAIL_1>") + stream.finish() == "<PHONE_1>"


@given(st.integers(0, 3), st.data())
def test_values_are_escaped_for_the_strings_around_them(times: int, data: st.DataObject) -> None:
    text = "<PHONE_1>"
    for _ in range(times):
        text = json.dumps({"to": text, "n": 1})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    found = run(*(text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True)), nested=True)
    for _ in range(times):
        found = json.loads(found)["to"]
    assert found == VALUES["<PHONE_1>"]
