"""What one scan clears, every guardrail behind it allows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.plugins import Context
from gateway.core.slices import at_once
from gateway.core.types import ALLOW, Verdict
from loadtests.guardrails.corpus import logs, near_misses, samples
from policies.guardrails import denylist, pii, secrets
from policies.guardrails.phrases import PhraseSet
from policies.guardrails.prefilter import LARGEST, MOST, PORTION, Prefilter, prefilter

HERE = Context(name="g")
PHRASES = ("red falcon", "c++", "ünder cover", "%done%")
CUSTOM = {"badge": pii.CustomEntity(pattern=r"[a-z]{2}\d{4}"), "code": pii.CustomEntity(pattern=r"x\d{3}", context=("staff",))}
ENTITIES = dict.fromkeys((*pii.ENTITIES, *CUSTOM), "mask")
GUARDRAILS = (
    pii.build(pii.PiiSettings(entities=ENTITIES, custom=CUSTOM), HERE),
    secrets.build(secrets.SecretsSettings(action="mask"), HERE),
    denylist.build(denylist.DenyListSettings(phrases=PHRASES), HERE),
)
FILTER = Prefilter([guardrail.trigger for guardrail in GUARDRAILS])
FRAGMENTS = (
    *(
        "red",
        "falcon",
        "Falcon",
        " ",
        "  ",
        "\t",
        "\n",
        "\x0b",
        "\x1c",
        "c++",
        "%DONE%",
        "_",
        "x",
        "é",
        "\u200b",
        "\x00",
        "\x08",
        "\x7f",
        "\\n",
        "\\u0040",
    ),
    *("bob@example.com", "@", "4111 1111 1111 1111", "12", "3", "-", ".", "/", ":", "staff x123", "ab1234", "passport", "C01X00T47"),
    *("password", "=", "hunter2", "AKIAZ7Q3XW5T2VN4RKPM", "born on 12 March 1984", "tel", "SSN", "536221234", "plate B-MW 1234"),
    *("postgres://u:secretpw@h/db", "Bearer ", "sk-", "-----BEGIN PRIVATE KEY-----", "{", '"', "}", ","),
)


def allowed(texts: list[str]) -> bool:
    """Whether every guardrail allows the texts."""
    for guardrail in GUARDRAILS:
        found = guardrail.check(texts)
        if (found if isinstance(found, Verdict) else at_once(found)) is not ALLOW:
            return False
    return True


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join), min_size=1, max_size=3))
def test_what_is_cleared_is_allowed(texts: list[str]) -> None:
    if FILTER.clear(texts):
        assert allowed(texts)


@given(st.text(st.characters(max_codepoint=0x7F), max_size=60))
def test_no_text_of_ascii_is_cleared_that_is_not_allowed(text: str) -> None:
    if FILTER.clear([text]):
        assert allowed([text])


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join), min_size=1, max_size=3), st.booleans())
def test_json_is_cleared_only_if_its_texts_would_be_allowed(texts: list[str], escaped: bool) -> None:
    values = [json.dumps({"role": "user", text: [text]}, ensure_ascii=escaped).encode() for text in texts]
    if FILTER.clear_json(values):
        assert allowed(texts)


@given(st.text(st.characters(max_codepoint=0x7F), max_size=60))
def test_no_json_of_ascii_is_cleared_whose_text_is_not_allowed(text: str) -> None:
    if FILTER.clear_json([json.dumps(text).encode()]):
        assert allowed([text])


@pytest.mark.parametrize("text", ["a plain text", "two\nlines", 'it says "so"', '"', "\n"])
def test_json_of_prose_is_cleared(text: str) -> None:
    usual = Prefilter([guardrail.trigger for guardrail in (pii.build(pii.PiiSettings(), HERE), *GUARDRAILS[1:])])
    assert usual.clear_json([json.dumps([{"role": "user", "content": text}]).encode(), b"100"])


@pytest.mark.parametrize(
    "text", ["a red falcon", "red\nfalcon", "red \t falcon", "caf\u00e9", "a\\b", "\\n", "\\\\", "\x01", "/bob@example.com", "a" * MOST]
)
def test_json_with_what_it_cannot_judge_is_not_cleared(text: str) -> None:
    assert not FILTER.clear_json([json.dumps({"content": text}).encode()])
    assert not FILTER.clear_json([b'"a"', json.dumps(text).encode()])


def test_what_stands_in_two_values_is_not_read_together() -> None:
    usual = Prefilter([GUARDRAILS[2].trigger, "zzz"])
    assert usual.clear_json([b"[100,200]", b'"red"', b'"falcon"'])


@pytest.mark.parametrize("data", [b'"red falcon"', b'"a \x01 b \\" c"', b'"bob\\u0040example.com"', b'"a\\/b"', b'"a\\tb"'])
def test_escapes_but_the_usual_two_are_left_to_the_guardrails(data: bytes) -> None:
    assert not FILTER.clear_json([data])


def test_no_sample_with_an_entity_is_cleared() -> None:
    found = [sample.text for sample in samples(5, 10)]
    missed = [text for text in found if text.isascii() and not allowed([text]) and FILTER.clear([text])]
    assert len(found) > 50
    assert missed == []
    others = [*(sample.text for sample in near_misses(5, 100)), *logs(5, 100)]
    assert [text for text in others if FILTER.clear([text]) and not allowed([text])] == []


@pytest.mark.parametrize(
    "text", ["a red falcon", "RED\tFALCON", "red \n falcon.", "(c++)", "%Done%", "bob@example.com", "staff x123", "AB1234"]
)
def test_what_a_guardrail_acts_upon_is_never_cleared(text: str) -> None:
    assert not allowed([text])
    assert not FILTER.clear([text])


def test_prose_is_cleared_in_one_scan_of_all_texts() -> None:
    usual = Prefilter([guardrail.trigger for guardrail in (pii.build(pii.PiiSettings(), HERE), *GUARDRAILS[1:])])
    assert usual.clear(["You are a helpful assistant.", "Hello! Please tell me about the weather, and keep it short."])
    assert not usual.clear(["You are a helpful assistant.", "Write to bob@example.com."])
    assert not usual.clear(["red", "the red falcon"])
    assert usual.clear(["a red", "falcon"])  # a phrase does not span two texts


@pytest.mark.parametrize("text", ["caf\u00e9", "a\\nb", "a" * (MOST + 1)])
def test_what_it_cannot_judge_is_left_to_the_guardrails(text: str) -> None:
    assert not FILTER.clear([text])


def test_phrases_that_no_text_of_ascii_can_hold_do_not_trigger() -> None:
    assert Prefilter([PhraseSet(["\u00fcnder"]).trigger, "zzz"]).clear(["under the table \x1f\t", "\x0b"])


@pytest.mark.parametrize("control", ["\x00", "\x01", "\x08", "\x0e", "\x1b", "\x7f"])
def test_a_control_character_is_for_the_guardrails_to_read(control: str) -> None:
    texts = ["under the table", f"un{control}der"]
    assert FILTER.clear(["under the table", "under"]) and not FILTER.clear(texts) and not FILTER.clear(texts[1:])
    assert not FILTER.clear_json([json.dumps(texts).encode()]) and allowed(texts)
    assert not allowed([f"red fal{control}con"])


def test_one_trigger_or_too_many_have_no_filter() -> None:
    assert prefilter([]) is None
    assert prefilter(["a"]) is None
    assert prefilter(["a", "b" * LARGEST]) is None
    assert isinstance(prefilter(["a", "b"]), Prefilter)


def test_a_trigger_that_is_no_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be compiled"):
        Prefilter(["a", "(b"])


@pytest.mark.parametrize("found", ["bob@example.com", "the red    falcon", "passport C01X00T47", "postgres://u:secretpw@h/db"])
def test_what_lies_between_two_portions_is_found(found: str) -> None:
    usual = Prefilter([pii.build(pii.PiiSettings(), HERE).trigger, *(guardrail.trigger for guardrail in GUARDRAILS[1:])])
    for place in range(PORTION - len(found) - 2, PORTION + 3):
        text = ("under " * PORTION)[: place - 1] + f" {found} " + "under " * 1000
        assert not usual.clear([text]) and not usual.clear_json([json.dumps([text]).encode()]), place


def test_a_long_text_of_a_new_kind_to_thousands_of_phrases_is_left_to_the_guardrails() -> None:
    """All of it at once took 80 ms."""
    words = [f"{number * 7919 % 1_000_003:05d}".translate(str.maketrans("0123456789", "mnopqrstuv")) for number in range(6000)]
    phrases = [f"{one} {other} zu" for one, other in zip(words[::2], words[1::2], strict=True)]
    text = " ".join((words[1::3] + words[::3] + words[2::3]) * 4)[:MOST]
    new = Prefilter([PhraseSet(phrases).trigger, "zzzz"])
    assert len(text) == MOST and not new.clear([text])
