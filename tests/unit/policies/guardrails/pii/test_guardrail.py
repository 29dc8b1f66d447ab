"""The guardrail pii over whole texts, and its settings."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Generator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app.configuration.plugins import OURS
from gateway.core.errors import ConfigError
from gateway.core.ports import Guardrail
from gateway.core.slices import at_once
from gateway.core.specs import GuardrailSpec
from gateway.core.types import ALLOW, Verdict
from policies.guardrails.folding import MAX_HIDDEN
from tests.steady import at_most, longest_step

KEY = "0123456789abcdef"
CARD, EMAIL = "4111 1111 1111 1111", "bob@example.com"


def made(**fields: Any) -> Guardrail:
    return OURS.guardrail(GuardrailSpec(name="g", type="pii", settings=fields), lambda _: "")


def check(guardrail: Guardrail, *texts: str) -> Verdict:
    found = guardrail.check(texts)
    assert not isinstance(found, Awaitable)
    return at_once(found) if isinstance(found, Generator) else found


def rewritten(guardrail: Guardrail, text: str) -> str:
    verdict = check(guardrail, text)
    assert verdict.action == "rewrite"
    return verdict.texts[0]


def test_each_entity_has_its_action() -> None:
    guardrail = made(entities={"email": "mask", "card": "block", "ip": "allow"})
    assert check(guardrail, "at 203.0.113.9", "or 536-22-1234") is ALLOW
    verdict = check(guardrail, "fine", f"to {EMAIL} at 203.0.113.9")
    assert verdict.action == "rewrite" and verdict.texts == ("fine", "to [EMAIL] at 203.0.113.9")
    verdict = check(guardrail, EMAIL, CARD)
    assert verdict.action == "block" and verdict.guardrail == "g"


def test_a_verdict_names_entities_and_never_the_text() -> None:
    for action in ("block", "mask"):
        verdict = check(made(entities={"email": action, "card": action}), f"{CARD} of {EMAIL}")
        assert "card" in verdict.reason
        assert not re.search(r"4111|bob|example\.com", verdict.reason)


def test_without_entities_all_are_masked() -> None:
    assert rewritten(made(), f"{CARD}, {EMAIL}, 536-22-1234") == "[CARD], [EMAIL], [SSN]"


def test_a_hash_is_keyed_and_does_not_depend_on_the_way_of_writing() -> None:
    guardrail = made(entities={"card": "hash", "email": "hash"}, hash_key=KEY)
    found = {rewritten(guardrail, text) for text in (CARD, "4111-1111-1111-1111", "４１１１１１１１１１１１１１１１")}
    assert len(found) == 1 and re.fullmatch(r"\[CARD:[0-9a-f]{16}\]", found.pop())
    assert rewritten(guardrail, EMAIL) == rewritten(guardrail, "BOB@Example.COM") != rewritten(guardrail, "bo.b@example.com")
    assert rewritten(guardrail, CARD) != rewritten(made(entities={"card": "hash"}, hash_key=KEY[::-1]), CARD)


def test_the_original_keeps_everything_but_the_entity() -> None:
    text = "Ｇｒüße\u200b \u200b４１１１\u200b-１１１１ 1111\u00a01111\u200b ﬁn"
    assert rewritten(made(), text) == "Ｇｒüße\u200b \u200b[CARD]\u200b ﬁn"


@pytest.mark.parametrize("control", ["\x00", "\x01", "\x1b", "\x7f", "\x9b"])
def test_control_characters_hide_nothing_and_stay_where_nothing_is_found(control: str) -> None:
    hidden = EMAIL[:3] + control + EMAIL[3:]
    assert rewritten(made(), f"a{control}b {hidden}, c{control}") == f"a{control}b [EMAIL], c{control}"
    assert rewritten(made(), f"{control.join(CARD)}.") == "[CARD]."
    assert check(made(), f"a{control}b") is ALLOW
    verdict = check(made(), "x", control, hidden)
    assert verdict.texts == ("x", control, "[EMAIL]")


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        (f"카드번호는 {CARD}입니다.", "카드번호는 [CARD]입니다."),
        (f"{EMAIL}으로, 전화+82 2 312 3456로", "[EMAIL]으로, 전화[PHONE]로"),
        ("여권번호는C01X00T47이고 생년월일은 12.03.1984입니다", "여권번호는[PASSPORT]이고 생년월일은 [BIRTH_DATE]입니다"),
        (f"البطاقة و{CARD}، הכרטיס ב{CARD}", "البطاقة و[CARD]، הכרטיס ב[CARD]"),
        ("kennzeichen ÖHR-AB 12, DE89370400440532013000로", "kennzeichen [PLATE], [IBAN]로"),
    ],
)
def test_particles_right_beside_an_entity_are_no_part_of_it(text: str, passed: str) -> None:
    assert rewritten(made(), text) == passed
    stream = made().stream()
    assert stream is not None
    assert "".join([stream.feed(character) for character in text]) + stream.finish() == passed


def test_allowed_texts_pass() -> None:
    guardrail = made(allow=["support@example.com", "*@example.org", CARD])
    assert check(guardrail, f"Support@Example.com or joe@example.org, {CARD}") is ALLOW
    assert rewritten(guardrail, f"support@example.com, {EMAIL}") == "support@example.com, [EMAIL]"


def test_custom_entities() -> None:
    guardrail = made(
        custom={"badge": {"pattern": r"EMP-\d{4,6}"}, "room": {"pattern": r"[a-z]\d{3}", "context": ["room", "Räume"], "longest": 4}},
        entities={"badge": "mask", "room": "block"},
    )
    assert rewritten(guardrail, "emp-12345 sits in B201, EMP-123") == "[BADGE] sits in B201, EMP-123"
    assert check(guardrail, "in room B201").action == check(guardrail, "Raume: B201").action == "block"
    assert check(guardrail, EMAIL) is ALLOW


def test_locales_narrow_the_numbers_that_countries_issue_and_nothing_else() -> None:
    spanish, swiss = "12345678Z", "756.1234.5678.97"
    text = f"{spanish} and {swiss}, {EMAIL}"
    every = {"national_id": "mask", "email": "mask"}
    assert rewritten(made(entities=every), text) == "[NATIONAL_ID] and [NATIONAL_ID], [EMAIL]"
    assert rewritten(made(entities=every, locales=["en", "de"]), text) == f"{spanish} and [NATIONAL_ID], [EMAIL]"
    assert rewritten(made(locales=["es"]), text) == f"[NATIONAL_ID] and {swiss}, [EMAIL]"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"locales": ["de", "xx"]}, "locales: there is no locale 'xx'; use some of de, en, es, "),
        ({"entities": {"emial": "mask"}}, "entities.emial: there is no such entity; known: email, "),
        (
            {"entities": {"email": "delete"}},
            "entities.email: there is no action 'delete'; use one of block, mask, hash, pseudonym, annotate, label, allow",
        ),
        ({"entities": {"person": "mask"}}, "entities.person: names and places have no pattern"),
        ({"entities": {"email": "hash"}}, "hash_key: the action hash needs one"),
        ({"entities": {"email": "hash"}, "hash_key": "short"}, "hash_key: 5 bytes are too few"),
        ({"entities": {"email": "allow"}}, "no entity is looked for"),
        ({"custom": {"badge": {"pattern": "a+"}}, "entities": {"badge": "mask"}}, r"custom.badge: the pattern 'a\+': \+ has no bound"),
        ({"custom": {"badge": {"pattern": "abc"}}, "entities": {"email": "mask"}}, "custom.badge: entities gives it no action"),
        ({"custom": {"email": {"pattern": "abc"}}, "entities": {"email": "mask"}}, "custom.email: there is a built-in entity"),
        ({"custom": {"Bad": {"pattern": "abc"}}, "entities": {"Bad": "mask"}}, "custom.Bad: a name has up to 40 small letters"),
        ({"custom": {"b": {"pattern": "a{9}", "longest": 8}}, "entities": {"b": "mask"}}, "more than longest: 8"),
        ({"custom": {"b": {"pattern": "abc", "context": [" "]}}, "entities": {"b": "mask"}}, "custom.b: an empty context word"),
        ({"allow": ["*"]}, r"allow: '\*' would let everything pass"),
        ({"colour": 1}, "colour"),
    ],
)
def test_settings_that_it_refuses(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        made(**fields)


ALL = made()


@given(st.lists(st.sampled_from([CARD, EMAIL, "born ", "12/03/1984", " ", ", ", "x", "1", "é", "\u200b" * 40, "word " * 400]), max_size=12))
@settings(max_examples=60, deadline=None)
def test_whole_texts_and_streams_are_judged_alike(pieces: Sequence[str]) -> None:
    text = "".join(pieces)
    stream = ALL.stream()
    assert stream is not None
    verdict = check(ALL, text)
    assert (verdict.texts[0] if verdict.action == "rewrite" else text) == stream.feed(text) + stream.finish()


def test_an_entity_full_of_invisible_characters_at_a_seam_is_found() -> None:
    hidden = ("\u200b" * MAX_HIDDEN).join("4111111111111111")
    for shift in (-400, -200, -10, 0):
        text = "слово " * 2000
        text = text[: 4096 + shift] + f" {hidden} end"
        assert rewritten(ALL, text).endswith(" [CARD] end")


def test_escapes_of_json_are_no_letters_of_an_entity() -> None:
    arguments = r'{"text": "a\nbob@example.com\t4111111111111111\r\ndob\n1984-03-12"}'
    assert rewritten(ALL, arguments) == r'{"text": "a\n[EMAIL]\t[CARD]\r\ndob\n[BIRTH_DATE]"}'
    for cut in range(len(arguments)):
        stream = ALL.stream()
        assert stream is not None
        out = stream.feed(arguments[:cut]) + stream.feed(arguments[cut:]) + stream.finish()
        assert out == rewritten(ALL, arguments)


def test_very_many_texts_are_read_in_steps() -> None:
    found = ALL.check([""] * 200_000 + [EMAIL])
    assert isinstance(found, Generator) and sum(1 for _ in found) > 1000


@pytest.mark.parametrize("unit", ["@", "%@", ".@"])
def test_a_long_text_of_signs_is_read_in_short_steps(unit: str) -> None:
    """32 KiB of them in one step took 24 ms."""
    found = ALL.check([unit * 20_000])
    assert isinstance(found, Generator)
    assert sum(1 for _ in found) >= len(unit * 20_000) // (16 * 1024)
    assert rewritten(ALL, "@@" + EMAIL) == "@@[EMAIL]"


@pytest.mark.parametrize("filler", ["word ", "слово ", "言葉"])
def test_an_entity_at_the_seam_of_two_windows_is_found(filler: str) -> None:
    size = 128 * 1024 if filler.isascii() else 4096
    for shift in (*range(-24, 3), -60):
        start = size + shift
        text = (filler * (size // 2))[:start] + f" born 12/03/1984 {EMAIL} end"
        assert rewritten(ALL, text).endswith(" born [BIRTH_DATE] [EMAIL] end"), shift


@pytest.mark.parametrize(
    "text",
    [
        "1 " * 32768,
        "1-" * 32768,
        "a@" * 32768,
        "a." * 32768,
        "1:" * 32768,
        "+1 " * 21845,
        "passport " * 7000,
        "\u0301" * 20000,
        "4" * 65536,
        "born 1/1 " * 7000,
    ],
)
def test_hostile_texts_take_short_steps(text: str) -> None:
    def step() -> float:
        found = ALL.check([text])
        assert not isinstance(found, Awaitable)
        return 0.0 if isinstance(found, Verdict) else longest_step(found)

    at_most(0.3, step)
