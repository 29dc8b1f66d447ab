"""The deny list on whole texts and on streams, cut anywhere."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Generator, Sequence

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.app.configuration.plugins import OURS
from gateway.core.errors import ConfigError, GuardrailViolation
from gateway.core.ports import Guardrail
from gateway.core.slices import at_once
from gateway.core.specs import GuardrailSpec
from gateway.core.types import ALLOW, Verdict
from policies.guardrails.denylist import DenyList, DenyListSettings
from policies.guardrails.folding import MAX_HIDDEN
from policies.guardrails.phrase_stream import MOST_AT_ONCE, REASON
from policies.guardrails.phrases import Pace, PhraseSet
from tests.steady import at_most, uncollected


def check(guardrail: Guardrail, texts: Sequence[str]) -> Verdict:
    """Its verdict, the steps to it without pauses."""
    found = guardrail.check(texts)
    assert not isinstance(found, Awaitable)
    return at_once(found) if isinstance(found, Generator) else found


PHRASES = ["bad", "bad word", "café", "straße", "禁止", "a b c", "x-ray", "c++", "ệ", "ab abc", "ﬁsh", "ab ab ab", "word"]
PIECES = [
    *[
        "bad",
        "word",
        " ",
        "  ",
        "b",
        "a",
        "d",
        "c",
        "ab",
        "e",
        "\u0301",
        "\u0323",
        "\u0302",
        "\u200b",
        "\x01",
        "\x00",
        "é",
        "B",
        "W",
        "ß",
        "SS",
        "禁",
        "止",
    ],
    *[
        "fi",
        "ﬁ",
        "s",
        "h",
        "-",
        "x",
        "ray",
        "+",
        "c++",
        ".",
        "\n",
        "\u00a0",
        "\u0345",
        "α",
        "z",
        "_",
        "stra",
        "ệ",
        "\u200d" * 3,
        "\u200b" * 33,
    ],
    "the quick brown fox jumps over the lazy dog, " * 4,
]
SET = PhraseSet(PHRASES)
BLOCK, MASK = DenyList("words", SET, mask=False), DenyList("words", SET, mask=True, replacement="***")
texts = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
cuts = st.lists(st.integers(0, 400), max_size=12)


def pieces(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def streamed(guardrail: DenyList, parts: list[str]) -> tuple[str, bool]:
    """What left, and whether it was blocked."""
    matcher = guardrail.stream()
    out = ""
    try:
        for part in parts:
            out += matcher.feed(part)
        return out + matcher.finish(), False
    except GuardrailViolation as error:
        assert (error.code, error.message) == ("words", REASON)
        return out, True


@given(texts, cuts)
@settings(max_examples=150, deadline=None)
@example("bad" + "\u200b" * 33, [3, 20])
@example("e\u0323\u0302", [1, 2])
def test_masking_does_not_depend_on_how_the_text_was_cut(text: str, places: list[int]) -> None:
    whole = streamed(MASK, [text])
    assert streamed(MASK, pieces(text, places)) == whole
    assert streamed(MASK, list(text)) == whole
    verdict = check(MASK, [text])
    assert (verdict.texts or (text,)) == (whole[0],)
    assert (verdict.action == "allow") == (whole[0] == text)


@given(texts, cuts)
@settings(max_examples=150, deadline=None)
def test_blocking_does_not_depend_on_how_the_text_was_cut(text: str, places: list[int]) -> None:
    blocked = check(BLOCK, [text]).action == "block"
    for parts in ([text], pieces(text, places), list(text)):
        out, stopped = streamed(BLOCK, parts)
        assert stopped == blocked
        assert text.startswith(out)
        assert blocked or out == text
        assert not SET.occurs(out)


@pytest.mark.parametrize("phrase", PHRASES)
@pytest.mark.parametrize("around", [("", ""), ("so ", " it is"), ("…", "."), ("x" * 200 + " ", " " + "y" * 200)])
def test_a_planted_phrase_split_at_every_offset_never_leaves(phrase: str, around: tuple[str, str]) -> None:
    before, after = around
    for variant in {
        phrase,
        phrase.upper(),
        "\u200b".join(phrase),
        "\x00".join(phrase),
        "\x1b".join(phrase),
        "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in phrase),
    }:
        text = before + variant + after
        start, end = len(before), len(before) + len(variant)
        for first in range(max(0, start - 1), min(end + 1, len(text)) + 1):
            for second in {first, min(first + 1, len(text))}:
                parts = [text[:first], text[first:second], text[second:]]
                out, stopped = streamed(BLOCK, parts)
                assert stopped and before.startswith(out)
                assert streamed(MASK, parts) == (before + "***" + after, False)


@pytest.mark.parametrize("text", ["\u0345a b", "so \u0345a b", "\u0301\u0345a", "x\u0345\u0301a", "\u0345"])
def test_a_mark_that_folds_to_a_letter_may_begin_a_phrase(text: str) -> None:
    """The iota that is written below other letters (U+0345) is a letter of its own once case is folded."""
    guardrail = DenyList("words", PhraseSet(["\u03b9a", "\u03b9"]), mask=True, replacement="***")
    for cut in range(len(text) + 1):
        assert streamed(guardrail, pieces(text, [cut])) == streamed(guardrail, [text]) == streamed(guardrail, list(text))


@settings(deadline=None)
@given(st.text(max_size=300), cuts)
def test_any_text_without_a_phrase_passes_unchanged(text: str, places: list[int]) -> None:
    if check(BLOCK, [text]) is ALLOW:
        assert streamed(BLOCK, pieces(text, places)) == (text, False)
        assert streamed(MASK, pieces(text, places)) == (text, False)


@settings(deadline=None)
@given(texts)
def test_what_is_held_is_bounded(text: str) -> None:
    matcher = MASK.stream()
    bound = SET.longest * (MAX_HIDDEN + 1) + 1
    for character in text * 2:
        matcher.feed(character)
        assert len(matcher._held) <= bound


def test_nothing_is_held_that_cannot_become_a_phrase() -> None:
    matcher = BLOCK.stream()
    assert matcher.feed("hello ") == "hello "
    assert matcher.feed("ba") == ""
    assert matcher.feed("r") == "bar"
    assert matcher.feed(" ab ") == " "
    assert matcher.feed("zz") == "ab zz"
    assert matcher.feed("x") == "x"
    assert matcher.feed("xbad") == "xbad"
    assert matcher.feed(" wor") == " "
    assert matcher.finish() == "wor"


def test_the_end_of_the_text_completes_a_phrase() -> None:
    matcher = BLOCK.stream()
    assert matcher.feed("it is bad") == "it is "
    with pytest.raises(GuardrailViolation):
        matcher.finish()
    assert streamed(MASK, ["it is bad"]) == ("it is ***", False)


def test_the_leftmost_and_then_the_longest_phrase_is_masked() -> None:
    assert streamed(MASK, ["bad word, bad words"]) == ("***, *** words", False)
    assert streamed(MASK, ["ab ab abc"]) == ("ab ***", False)
    assert streamed(MASK, ["ab ab ab ab ab ab"]) == ("*** ***", False)


def test_several_texts_are_judged_together_and_rewritten_apart() -> None:
    assert check(BLOCK, ["fine", "also fine"]) is ALLOW
    assert check(BLOCK, ["fine", "bad"]).action == "block"
    assert check(BLOCK, ["ab", "ab", "ab"]) is ALLOW  # a phrase does not go on from one text to the next
    verdict = check(MASK, ["fine", "Bad!", "die Straße"])
    assert (verdict.action, verdict.guardrail, verdict.texts) == ("rewrite", "words", ("fine", "***!", "die ***"))
    assert "bad" not in verdict.reason.lower()
    assert check(BLOCK, []) is ALLOW


def test_many_invisible_characters_are_not_let_through() -> None:
    text = "hello" + "\u200b" * (MAX_HIDDEN + 1) + "there"
    assert check(BLOCK, [text]).action == "block"
    assert streamed(BLOCK, list(text)) == ("hello" + "\u200b" * MAX_HIDDEN, True)
    assert check(MASK, [text]).texts == ("hello" + "\u200b" * MAX_HIDDEN + "there",)


def test_a_text_in_letters_of_the_tag_block_is_not_let_through() -> None:
    """Nobody sees them and models read them; three flags are written with them."""
    said = "".join(chr(0xE0000 + ord(character)) for character in "say bad")
    wales = "\U0001f3f4" + "".join(chr(0xE0000 + code) for code in b"gbwls\x7f")
    assert check(BLOCK, ["hello " + said]).action == "block"
    assert streamed(BLOCK, list("hello" + said)) == ("hello", True)
    assert check(MASK, ["hello" + said + " there"]).texts == ("hello there",)
    assert streamed(MASK, [wales[:3], wales[3:] + said, " there"]) == (wales + " there", False)
    assert check(BLOCK, [f"hello {wales}!"]) is ALLOW


def test_long_pieces_are_skipped_and_phrases_at_their_ends_are_not() -> None:
    filler = "the quick brown fox jumps over the lazy dog. " * 100
    for text, expected in (
        (filler + "ba", filler + "ba"),
        (filler + "bad", filler + "***"),
        (filler + "é bad", filler + "é ***"),
        ("é" * 500 + " bad", "é" * 500 + " ***"),
        (filler + "x" + "\u0301" * 40, filler + "x" + "\u0301" * 40),
    ):
        assert streamed(MASK, [text]) == (expected, False)
    matcher = MASK.stream()
    assert matcher.feed(filler + "ba") == filler
    assert matcher.feed("d " + filler) == "*** " + filler
    matcher = MASK.stream()
    assert matcher.feed(filler + "bad") + matcher.feed("ly") + matcher.finish() == filler + "badly"


def settings_of(**given: object) -> GuardrailSpec:
    return GuardrailSpec(name="words", type="denylist", settings=dict(given))


def test_it_is_built_from_its_settings() -> None:
    files = {"words.txt": "# comment\n\nevil phrase\r\n  other  \n"}
    guardrail = OURS.guardrail(settings_of(phrases=["bad"], phrases_file="words.txt", action="mask", replacement="-"), files.__getitem__)
    assert guardrail.name == "words"
    assert getattr(check(guardrail, ["bad EVIL phrase, Other"]), "texts", None) == ("- -, -",)


def missing(path: str) -> str:
    raise FileNotFoundError(2, "No such file or directory", path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no phrase is given"),
        ({"phrases": ["\u200b"]}, "is empty"),
        ({"phrases_file": "nope.txt"}, "cannot read nope.txt: No such file or directory"),
        ({"phrases": ["a"], "action": "maim"}, "Invalid enum value 'maim'"),
        ({"phrase": ["a"]}, "unknown field"),
    ],
)
def test_settings_that_make_no_guardrail(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OURS.guardrail(settings_of(**given), missing)
    assert message in str(caught.value)


def test_settings_have_defaults() -> None:
    assert msgspec.convert({"phrases": ["a"]}, DenyListSettings).action == "block"


# --- long texts

LONG_STEP = 0.06
"""Seconds: three times what is meant, for a busy machine."""
LONG = {
    "matches": "bad thing ",
    "a match in much": "x" * 300 + " bad ",
    "matches among the widest characters": "\ufdfa" * 100 + " bad ",
    "the widest characters": "\ufdfa",
    "marks": "\u0301",
    "invisible characters": "\u200b" * 31 + "a",
    "half a match": "bad wor",
}


@given(texts, st.integers(20, 60), cuts)
@settings(max_examples=60, deadline=None)
def test_what_passes_of_a_long_text_does_not_depend_on_the_windows(text: str, times: int, places: list[int]) -> None:
    text *= times
    one_by_one = streamed(MASK, list(text))
    assert streamed(MASK, [text]) == one_by_one == streamed(MASK, pieces(text, places))
    assert (check(MASK, [text]).texts or (text,)) == (one_by_one[0],)
    assert (check(MASK, [text, "x" * 70_000]).texts or (text,))[0] == one_by_one[0]
    assert (check(BLOCK, [text, "x" * 70_000]).action == "block") == (check(BLOCK, [text]).action == "block")


def held(guardrail: Guardrail, texts: list[str]) -> float:
    """Processor time of the longest step, in seconds; at most 8 s for all of them, twice what is meant."""
    longest, began = 0.0, time.thread_time()
    mark = began
    with uncollected():
        found = guardrail.check(texts)
        if isinstance(found, Generator):
            for _ in found:
                longest, mark = max(longest, time.thread_time() - mark), time.thread_time()
    return max(longest, time.thread_time() - mark, (time.thread_time() - began) / 8.0 * LONG_STEP)


@pytest.mark.parametrize("shape", LONG)
@pytest.mark.parametrize("guardrail", [MASK, BLOCK], ids=["mask", "block"])
def test_no_step_is_long_and_the_whole_is_linear(guardrail: DenyList, shape: str) -> None:
    """Against 181 s for the first one, of 8.4 MB, when each match copied the rest of the text."""
    unit = LONG[shape]
    size = 1 << 20
    text = unit * (size // len(unit.encode()))
    held(guardrail, [text[:100_000]])  # what is expanded once for all
    at_most(LONG_STEP, lambda: held(guardrail, [text]))


def test_a_list_of_thousands_reads_a_long_text_in_more_steps() -> None:
    text = "all is well " * 4000
    few = DenyList("few", PhraseSet(["bad"]), mask=False)
    assert few.check([text]) is ALLOW
    many = DenyList("many", PhraseSet([f"{number * 7919:x} is bad" for number in range(9000)]), mask=False)
    found = many.check([text])
    assert isinstance(found, Generator) and sum(1 for _ in found) > 5


def test_many_short_texts_are_judged_in_steps_too() -> None:
    texts = ["bad", "good"] * 50_000
    at_most(LONG_STEP, lambda: held(MASK, texts))
    assert check(MASK, texts).texts == ("***", "good") * 50_000
    assert check(BLOCK, texts).action == "block" and check(MASK, ["good"] * 10_000) is ALLOW


def test_a_piece_of_a_stream_with_thousands_of_phrases_is_refused() -> None:
    """Masking them would hold up everything else for a tenth of a second; whole texts, which are read in pieces, have no such bound."""
    guardrail = DenyList("words", PhraseSet(["darn", "!"]), mask=True, replacement="-")
    stream = guardrail.stream()
    for _ in range(3):
        assert stream.feed("darn " * MOST_AT_ONCE) == "- " * MOST_AT_ONCE
    with pytest.raises(GuardrailViolation, match=REASON):
        guardrail.stream().feed("darn " * (MOST_AT_ONCE + 2))
    for text in ("darn " * 100_000, "!" * 100_000):
        verdict = check(guardrail, [text])
        assert verdict.action == "rewrite" and verdict.texts == (text.replace("darn", "-").replace("!", "-"),)


@pytest.mark.parametrize("text", ["it is bad", "it is bad é", "sobadly", "é sobadly"])
@pytest.mark.parametrize("mask", [True, False])
def test_the_verdict_is_the_same_before_the_pattern_is_compiled(text: str, mask: bool) -> None:
    pace = Pace()
    made = DenyList("words", PhraseSet(["bad"], pace), mask=mask, replacement="#")
    pace.at = time.monotonic() + 3600.0  # something else just was
    first, stream = made.check([text]), made.stream()
    said = stream.feed(text) + stream.finish() if mask or "sobadly" in text else ""
    assert isinstance(first, Verdict) and not made._phrases.made
    pace.at = 0.0
    then = made.check([text])
    assert isinstance(then, Verdict) and (then.action, then.texts) == (first.action, first.texts) and made._phrases.made
    assert first.action == ("allow" if "sobadly" in text else "rewrite" if mask else "block")
    assert said in ("", (first.texts or (text,))[0])


def test_a_phrase_is_found_beside_particles_of_korean() -> None:
    made = DenyList("words", PhraseSet(["project aurora", "오로라"]), mask=True, replacement="#")
    text = "project aurora는 오로라를 봅니다"
    verdict = check(made, [text])
    assert verdict.texts == ("#는 #를 봅니다",)
    stream = made.stream()
    assert "".join([stream.feed(character) for character in text]) + stream.finish() == "#는 #를 봅니다"


def test_a_word_behind_an_escape_of_json_is_found() -> None:
    arguments = r'{"q": "a\nbad thing\tbad C:\bad \\nbad"}'
    made = DenyList("words", PhraseSet(["bad", "new"]), mask=True, replacement="#")
    verdict = check(made, [arguments])
    assert "bad" not in verdict.texts[0]
    for cut in range(len(arguments)):
        stream = made.stream()
        assert stream.feed(arguments[:cut]) + stream.feed(arguments[cut:]) + stream.finish() == verdict.texts[0]
    found = check(made, [r"C:\new\x"])
    assert found.texts == (r"C:\#\x",), "the letter may belong to a word too"
    long = "word " * 100 + r"\nbad"
    assert made.stream().feed(long + " x").endswith(r"\n# x"), "where a search skips ahead"
