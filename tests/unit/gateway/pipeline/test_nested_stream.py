"""Escapes of JSON inside of an answer's texts, in pieces."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GuardrailViolation
from gateway.core.plugins import Context
from gateway.core.slices import at_once
from gateway.pipeline.guarded import Guarded
from gateway.pipeline.nested import LEVELS
from gateway.pipeline.nested_stream import Nested, reading, whole_steps
from policies.guardrails import denylist
from policies.guardrails.pii import guardrail as pii
from policies.guardrails.secrets import guardrail as secrets

HERE = Context(name="g")
PHRASE = "project aurora"
KINDS: dict[str, tuple[Guarded, str]] = {
    "denylist": (
        Guarded(denylist.build(denylist.DenyListSettings(phrases=(PHRASE,), action="mask"), HERE), False, lambda *e: None),
        PHRASE,
    ),
    "pii": (Guarded(pii.build(pii.PiiSettings(), HERE), False, lambda *e: None), "bob.quux@example.com"),
    "secrets": (Guarded(secrets.build(secrets.SecretsSettings(action="mask"), HERE), False, lambda *e: None), "AKIAZ7Q3XW5T2VN4RKPM"),
}
WRITTEN: dict[str, Callable[[str], str]] = {
    "first": lambda value: f"\\u{ord(value[0]):04x}{value[1:]}",
    "last": lambda value: f"{value[:-1]}\\u{ord(value[-1]):04X}",
    "middle": lambda value: f"{value[:6]}\\u{ord(value[6]):04x}{value[7:]}",
    "all": lambda value: "".join(f"\\u{ord(sign):04x}" for sign in value),
    "behind a line's end": lambda value: f"one\\ntwo \\u{ord(value[0]):04x}{value[1:]}",
}


def nested(*guards: Guarded) -> Nested:
    found = reading(guards, [None] * len(guards), 0)
    assert found is not None
    return Nested(found)


def in_pieces(text: str, size: int, *guards: Guarded) -> tuple[str, bool]:
    """What was released, and whether it was refused."""
    reader, out = nested(*guards), ""
    try:
        for at in range(0, len(text), size):
            out += reader.feed(text[at : at + size])
            assert text.startswith(out) and text[len(out) : at + size] == reader.held
        out += reader.finish()
    except GuardrailViolation:
        return out, True
    return out, False


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_with_escapes_is_refused_wherever_it_is_cut(kind: str, written: str, levels: int, size: int) -> None:
    guard, value = KINDS[kind]
    text = f'{{"a": "clean", "b": "say {WRITTEN[written](value)} now"}}'
    for _ in range(levels - 1):
        text = json.dumps({"k": text})
    out, refused = in_pieces(text, size, guard)
    assert refused
    said = out.replace("\\", "")
    assert value not in said and json.loads(f'"{WRITTEN[written](value)}"')[-12:] not in said


@pytest.mark.parametrize("size", [1, 5, 4096])
@pytest.mark.parametrize(
    "text",
    [
        "plain project aurora",
        "project\\u0020aurora, which is no JSON",
        '{"a": "caf\\u00e9 \\ud83d\\ude00 \\ud83d x \\udc00", "b": [1, "\\"quoted\\" \\\\ path"]}',
        '{"a": "cut off \\u00',
        '{"a": "wrong \\x \\u00zz \\ud83d\\n',
        ' \n ["a\\nb", {"c\\td": "\\/"}] behind',
        "   ",
        "",
    ],
)
def test_all_else_passes_as_it_came(text: str, size: int) -> None:
    assert in_pieces(text, size, *(guard for guard, _ in KINDS.values())) == (text, False)


@given(
    st.recursive(st.text('ab \n"\\@\u00e9\U0001f600\ud83d', max_size=30), lambda inner: st.lists(inner, max_size=3).map(json.dumps)),
    st.integers(1, 9),
)
def test_clean_json_passes_in_any_pieces_and_holds_nothing_at_its_end(text: str, size: int) -> None:
    text = json.dumps({"k": text})
    out, refused = in_pieces(text, size, KINDS["denylist"][0], KINDS["secrets"][0])
    assert (out, refused) == (text, False)


def test_ordinary_text_behind_an_escape_is_not_held() -> None:
    reader = nested(KINDS["denylist"][0])
    assert reader.feed('{"code": "import os\\nprint(1) ') == '{"code": "import os\\nprint(1) '
    assert reader.feed("and more ") == "and more "
    assert reader.feed("pro") == "" and reader.held == "pro"
    assert reader.feed("gram") == "program"[: len("program") - len(reader.held)]


def test_a_long_string_keeps_its_end_in_mind() -> None:
    guard, value = KINDS["denylist"]
    text = '{"a": "' + "word " * 9000 + value[:7] + "\\u0020" + value[8:] + '"}'
    assert in_pieces(text, 100, guard)[1]


def test_too_many_levels_are_refused() -> None:
    text = "\u00e9"
    for _ in range(LEVELS + 2):
        text = json.dumps([text])
    with pytest.raises(GuardrailViolation, match="more than 8 times"):
        nested(KINDS["denylist"][0]).feed(text)


def test_of_whole_texts_each_is_read() -> None:
    guard, value = KINDS["denylist"]
    hidden = f'{{"a": "{WRITTEN["first"](value)}"}}'
    note = guard.note("response", lambda data: "")
    with pytest.raises(GuardrailViolation) as refused:
        at_once(whole_steps([guard], [note], ["x", '["\\n"]', hidden]))
    assert refused.value.code == "g" and note.shown()["verdict"] == "block"
    at_once(whole_steps([guard], [note], ["x", value, "\\u0070" + value[1:]]))


def test_one_that_only_watches_notes_it() -> None:
    guard = Guarded(KINDS["denylist"][0].guardrail, False, lambda *e: None, monitor=True)
    note = guard.note("response", lambda data: "")
    found = reading([guard], [note], 3)
    assert found is not None
    text = '{"a": "project\\u0020aurora"}'
    reader = Nested(found)
    assert reader.feed(text) + reader.finish() == text
    assert note.shown()["action"] == "pass" and note.shown()["spans"][0]["text"] == 3
