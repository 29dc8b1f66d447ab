"""Personal data in streams: cut anywhere the output is the same, no entity leaves in part, and nothing else is held."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import GuardrailViolation
from gateway.core.plugins import Context
from gateway.core.slices import at_once
from gateway.core.types import Verdict
from policies.guardrails import content
from policies.guardrails.folding import MAX_HIDDEN, veiled
from policies.guardrails.pii.table import ENTITIES, RECOGNISERS
from policies.guardrails.recognition.actions import Actions
from policies.guardrails.recognition.finder import Finder
from policies.guardrails.recognition.guardrail import EntityGuardrail
from policies.guardrails.recognition.normal import as_bytes, fold
from policies.guardrails.recognition.stream import EntityStream
from policies.guardrails.secrets import guardrail as secrets
from tests.steady import at_most, spent
from tests.unit.policies.guardrails.pii.finding import ALL

MASK = Actions("g", ALL, dict.fromkeys(ENTITIES, "mask"), b"k")
BEGINNINGS = [re.compile(one.bounded.start.encode("latin-1"), re.IGNORECASE | re.DOTALL) for one in RECOGNISERS]
SAMPLES = {
    "email": "bob@example.com",
    "phone": "+1 415 555 2671",
    "card": "4111 1111 1111 1111",
    "iban": "DE89 3704 0044 0532 0130 00",
    "ssn": "536-22-1234",
    "national_id": "RSSMRA85T10A562S",
    "ip": "2001:db8::8a2e:370:7334",
    "mac": "00:1B:44:11:3A:B7",
    "crypto": "0x52908400098527886E0F7030069857D2E4169EE7",
    "birth_date": "12 March 1984",
    "passport": "C01X00T47",
    "plate": "B-MW 1234",
}
LEADS = {"birth_date": "born on ", "passport": "Reisepass ", "plate": "Kennzeichen "}
PIECES = [
    *SAMPLES.values(),
    *LEADS.values(),
    *("４１１１\u200b1111-1111 1111", "12/03/1984", "123456789", " ", "  ", ".", "-", "the", "a", "1", "12", "é", "e\u0301", "\u0301"),
    *(
        "㎏",
        "ﬁ",
        "½",
        "@",
        "+",
        "x.y",
        "::1",
        ":",
        "(030) ",
        "tel ",
        "030/1234567",
        "\n",
        "\u200b" * 40,
        "\u200b",
        "\x01",
        "\x00",
        "\x7f",
        "护照",
        "\ud800",
        "٤",
    ),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join) | st.text(max_size=40)


def run(*pieces: str) -> str:
    stream = EntityStream(MASK)
    return "".join([stream.feed(piece) for piece in pieces]) + stream.finish()


@given(TEXTS, st.data())
@settings(max_examples=300, deadline=None)
def test_the_output_does_not_depend_on_the_cuts(text: str, data: st.DataObject) -> None:
    whole = run(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert run(*(text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True))) == whole
    assert run(*text) == whole


@pytest.mark.parametrize("seed", range(8))
def test_the_output_of_a_long_text_does_not_depend_on_the_cuts(seed: int) -> None:
    draw = random.Random(seed)
    leads = ["Date of birth: ", "tel ", "plate ", "née le ", "电话", "出生", "passport ", "reg ", "born "]
    others = [
        "12/03/1984",
        "０２/０７/１９９７",
        "030/1234567",
        "B-MW 1234",
        "C01X00T47",
        " ",
        ", ",
        "x",
        "ﷺ",
        "the ",
        "a@",
        "bob@a1.io",
        "4111 ",
    ]
    for _ in range(12):
        text = "".join(draw.choice(leads if draw.random() < 0.3 else others) for _ in range(60))
        whole, rest, pieces = run(text), text, []
        while rest:
            size = draw.randint(1, 60)
            pieces.append(rest[:size])
            rest = rest[size:]
        assert run(*pieces) == whole, text


def test_a_date_beyond_ascii_is_found_behind_words_of_ascii() -> None:
    assert run("Date of birth: ０２/０７/１９９７, s") == "Date of birth: [BIRTH_DATE], s"


@pytest.mark.parametrize("entity", ENTITIES)
def test_an_entity_cut_at_any_place_never_leaves_in_part(entity: str) -> None:
    before, after = f"Well, {LEADS.get(entity, '')}", ", yes."
    text = before + SAMPLES[entity] + after
    for cut in range(len(text) + 1):
        stream = EntityStream(MASK)
        first = stream.feed(text[:cut])
        assert (before + "[").startswith(first[: len(before) + 1]), first
        assert first + stream.feed(text[cut:]) + stream.finish() == f"{before}[{entity.upper()}]{after}"
        assert stream.found == {entity}


@pytest.mark.parametrize("entity", ENTITIES)
def test_the_bytes_of_a_whole_text_one_by_one(entity: str) -> None:
    text = f"Well, {LEADS.get(entity, '')}{SAMPLES[entity]}, yes."
    assert SAMPLES[entity] not in run(*text) and f"[{entity.upper()}]" in run(*text)


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_only_the_beginning_of_a_candidate_is_held(text: str) -> None:
    stream = EntityStream(MASK)
    released = ""
    for end, character in enumerate(text, 1):
        released += stream.feed(character)
        held = stream.held
        assert text[:end].endswith(held) or "\u200b" * MAX_HIDDEN in text
        data = as_bytes(fold(veiled(held)))
        assert len(data) <= ALL.longest and len(held) <= ALL.longest * (MAX_HIDDEN + 1)
        beside = len(fold(veiled(held[:1])))  # the first character may fold to several, of which a later one begins the candidate
        assert not data or any(one.fullmatch(data, place) for one in BEGINNINGS for place in range(beside)), held
    stream.finish()
    assert stream.held == ""


@pytest.mark.parametrize(
    "text", ["Hello, world! ", "a sum of 17 apples ", "x = f(y) / 2;\n", "Das ist schön, sagte er. ", "これは本です。", "— “ok” "]
)
def test_ordinary_text_leaves_at_once(text: str) -> None:
    stream = EntityStream(MASK)
    assert stream.feed(text) == text and stream.held == ""


def test_words_are_not_held_where_no_address_is_looked_for() -> None:
    finder = Finder([one for one in RECOGNISERS if one.entity in ("card", "phone", "ssn", "passport")])
    stream = EntityStream(Actions("g", finder, dict.fromkeys(("card", "phone", "ssn", "passport"), "mask"), b"k"))
    for token in ("The", " quick", " brown", " fox", ".", " In", " summer"):
        assert stream.feed(token) == token


def test_a_number_that_needs_a_word_is_held_only_behind_it() -> None:
    finder = Finder([one for one in RECOGNISERS if one.entity == "passport"])
    made = Actions("g", finder, {"passport": "mask"}, b"k")
    assert EntityStream(made).feed("number 1234567") == "number 1234567"
    assert EntityStream(made).feed("passport 1234567") == "passport "


def test_a_blocked_entity_ends_the_stream_when_it_is_complete() -> None:
    stream = EntityStream(Actions("g", ALL, dict.fromkeys(ENTITIES, "block"), b"k"))
    assert stream.feed("pay with 4111 1111 1111 1111") == "pay with "
    with pytest.raises(GuardrailViolation) as refused:
        stream.feed(", please")
    assert refused.value.code == "g" and "card" in refused.value.message and "4111" not in refused.value.message


def test_the_end_of_a_stream_decides_what_is_held() -> None:
    stream = EntityStream(MASK)
    assert stream.feed("write bob@example.com") == "write "
    assert stream.held == "bob@example.com" and stream.finish() == "[EMAIL]"


def test_long_runs_of_invisible_characters_do_not_grow_what_is_held() -> None:
    stream = EntityStream(MASK)
    stream.feed("4")
    for _ in range(100):
        stream.feed("\u200b" * 100)
    assert len(stream.held) <= 1 + MAX_HIDDEN
    assert stream.feed("111 1111 1111 1111") + stream.finish() == "[CARD]"


HERE = Context(name="g")
SECRETS = secrets.build(secrets.SecretsSettings(action="mask"), HERE)
ADDRESSES = content.build(content.ContentSettings(urls=content.UrlSettings(allow=("ok.example",)), action="mask"), HERE)
ENDLESS: dict[str, tuple[EntityGuardrail | content.Content, tuple[str, ...]]] = {
    "secrets": (
        SECRETS,
        (
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefgh1234 ",
            "password=Tr0ub4dor&3x ",
            "postgres://u:secretpw1@h/db ",
            "-----BEGIN PRIVATE KEY-----\nMIIBVgIBADANBgkqhkiG9w0B\n-----END PRIVATE KEY-----\n",
        ),
    ),
    "content": (
        ADDRESSES,
        (
            "https://evil.example/a?b ",
            "![a](http://evil.example/x.png) ",
            "https://ok.example/ ",
            '<img src="//evil.example">',
            "](javascript:x) ",
        ),
    ),
}
"""Guardrails of entities without a greatest length, and what they find."""


def passed(guardrail: EntityGuardrail | content.Content, *pieces: str) -> str:
    matcher = guardrail.stream()
    return "".join([matcher.feed(piece) for piece in pieces]) + matcher.finish()


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("filler", ["word ", "ein \u00dcber ", "\u8a00\u8449"])
def test_what_stands_far_behind_an_entity_without_a_greatest_length_is_found(name: str, filler: str) -> None:
    """Beyond ASCII it was not, where it stood more than 48 characters behind one in the same piece."""
    guardrail, found = ENDLESS[name]
    for seed in range(12):
        draw = random.Random(seed)
        text = "".join([draw.choice(found) + filler * draw.choice((0, 1, 9, 40)) for _ in range(12)])
        one_by_one = passed(guardrail, *text)
        assert "Tr0ub" not in one_by_one and "secretpw1" not in one_by_one and "evil" not in one_by_one
        cuts = sorted(draw.sample(range(len(text)), 5))
        assert passed(guardrail, text) == one_by_one == passed(guardrail, *[text[a:b] for a, b in pairwise([0, *cuts, len(text)])])
        checked = guardrail.check([text])
        verdict = checked if isinstance(checked, Verdict) else at_once(checked)
        assert verdict.texts == (one_by_one,)


@pytest.mark.parametrize(
    ("name", "unit"), [("content", "![a](http://"), ("content", "see https://evil.example/x?y "), ("content", "](//x ")]
)
def test_a_piece_of_such_entities_in_a_row_costs_what_it_is_long(name: str, unit: str) -> None:
    """Images in one event of 16 KiB held the loop for a second: behind each of them all of the rest was searched."""
    guardrail = ENDLESS[name][0]

    def ratio() -> float:
        short, long = ((unit * size)[:size] for size in (2048, 16_384))
        return spent(lambda: passed(guardrail, long)) / spent(lambda: passed(guardrail, short))

    at_most(16.0, ratio)
