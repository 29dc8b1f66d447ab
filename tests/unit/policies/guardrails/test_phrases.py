"""The compiled phrases: what can be one, and where one occurs."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Generator

import pytest

from gateway.core.slices import at_once
from policies.guardrails.denylist import DenyList
from policies.guardrails.phrase_bases import Bases
from policies.guardrails.phrases import MAX_LATER, MAX_PHRASES, Node, Pace, PhraseSet
from tests.steady import at_most, spent


@pytest.mark.parametrize(
    ("phrase", "text", "occurs"),
    [
        ("bad", "so BAD!", True),
        ("bad", "badly", False),
        ("bad", "abad", False),
        ("bad", "bad_", False),
        ("bad", "x-bad-x", True),
        ("bad", "ba\u200bd", True),
        ("bad", "ｂａｄ", True),
        ("bad", "这是bad的", True),
        ("cafe", "café", False),
        ("café", "cafe\u0301", True),
        ("café", "CAFÉ", True),
        ("bad word", "bad\nword", True),
        ("bad  word", "bad \t word", True),
        ("bad word", "bad" + " " * 4 + "word", True),
        ("bad word", "bad" + " " * 5 + "word", False),
        ("bad word", "badword", False),
        ("c++", "c++ and", True),
        ("c++", "c++x", True),
        ("c++", "xc++", False),
        (".*", "anything", False),
        ("a|b", "a", False),
        ("a|b", "(a|b)", True),
        ("禁止", "不要禁止的", True),
        ("ﬁsh", "fish", True),
        ("straße", "STRASSE", True),
        ("\\d", "5", False),
        ("   padded  ", "is padded", True),
    ],
)
def test_where_a_phrase_occurs(phrase: str, text: str, occurs: bool) -> None:
    assert PhraseSet([phrase]).occurs(text) is occurs


def test_one_that_begins_like_another() -> None:
    phrases = PhraseSet(["foo", "foo bar", "foobar"])
    assert phrases.occurs("foo barn") and phrases.occurs("foobar") and not phrases.occurs("foobarn")


@pytest.mark.parametrize(
    ("phrases", "message"),
    [
        ([], "no phrase is given"),
        (["a", "  "], "is empty"),
        (["\u200b"], "is empty"),
        (["x" * 201], "longer than 200 characters"),
        (["a\x00b"], "control characters"),
        (["\u0301a"], "begins with a combining mark"),
        (["a" + "\u0301" * 17], "more than 16 combining marks"),
        ([f"p{n}" for n in range(MAX_PHRASES + 1)], "are the most"),
    ],
)
def test_what_is_no_phrase(phrases: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PhraseSet(phrases)


def test_thousands_of_phrases_stay_small() -> None:
    """The trie is made where texts go: Python's memory for 5,000 phrases is a few megabytes."""
    words = [f"{chr(97 + n % 26)}{n * 7919} forbidden phrase number {n}" for n in range(5000)]
    tracemalloc.start()
    phrases = PhraseSet(words)
    phrases.root.children()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 6 * 1024 * 1024
    assert phrases.occurs(f"... {words[4321].upper()}.") and not phrases.occurs("forbidden phrase number 7")
    assert phrases.longest == max(len(word) + 3 * word.count(" ") for word in words)


def test_the_costly_pattern_is_made_when_a_text_has_the_letters_of_a_phrase() -> None:
    phrases = PhraseSet(["bad", "worse thing"])
    assert not phrases.occurs("all is well") and not phrases.occurs("wörse") and phrases._exact is None
    assert not phrases.occurs("badly") and phrases._exact is not None
    assert phrases.occurs("so BAD") and phrases.occurs_in(b"a worse   thing.")


def test_a_text_with_the_letters_of_many_lists_does_not_have_all_of_them_compiled_at_once() -> None:
    pace = Pace()
    lists = [PhraseSet([f"bad{number:03}"], pace) for number in range(20)]
    text = " ".join([f"xbad{number:03}y" for number in range(20)])
    pace.at = time.monotonic() + 3600.0  # something else just was
    assert all(one.may_occur(text) and one.may_occur_in(text.encode()) for one in lists), "too much,"
    assert not any(one.made or one.may_occur("all is well") for one in lists), "but nothing is compiled"
    for one in lists:
        pace.at = 0.0
        assert not one.may_occur(text) and one.made and pace.at > 0.0


def test_a_list_that_might_be_refused_is_made_at_once() -> None:
    long = PhraseSet([f"{number:04}{'x' * 196}" for number in range(MAX_LATER // 200 + 1)])
    assert long._exact is not None and long._letters is long._exact
    assert long.occurs(f"a 0001{'x' * 196}.") and not long.occurs(f"a 0001{'x' * 197}.")


@pytest.mark.parametrize("text", ["a ", "é ", "界", "\U0001f600", "\U00020000 ", "- "])
def test_what_is_made_later_is_never_near_what_re2_has_room_for(text: str) -> None:
    one = (text * 200)[:128].strip()
    phrases = PhraseSet([f"{chr(ord('a') + number)}-{one}" for number in range(2)])
    assert phrases._exact is None and phrases.occurs(f"b-{one}") and phrases._exact is not None
    assert phrases._exact.ProgramSize() < 200_000  # type: ignore[attr-defined]  # of some eleven million instructions


def many(count: int) -> list[str]:
    """Phrases that begin in many ways."""
    return [f"{number * 7919 % 1_000_003:x}o {number * 104_729 % 1_000_003:x}p word" for number in range(count)]


def test_the_first_match_among_thousands_of_phrases_takes_no_longer_than_the_next() -> None:
    """Where it lies is not asked: to make ready for that took RE2 almost half of what it takes to compile the phrases."""
    phrases = many(3000)

    def first() -> float:
        made: list[PhraseSet] = []
        building = spent(lambda: made.append(PhraseSet(phrases)))
        return spent(lambda: made[0].occurs(f"so {phrases[7]}.")) / building

    at_most(0.1, first)


def test_the_more_phrases_the_fewer_characters_are_searched_in_a_step() -> None:
    assert PhraseSet(many(10)).portion == PhraseSet(many(500)).portion > PhraseSet(many(3000)).portion > PhraseSet(many(9000)).portion
    assert PhraseSet(many(9000)).portion >= 2048


def test_a_text_with_all_phrases_leaves_a_fraction_of_the_trie() -> None:
    phrases = many(2000)
    root = PhraseSet(phrases).root

    def end(text: str) -> Node | None:
        node: Node | None = root
        for character in text:
            node = None if node is None else node.step(character)
        return node

    for phrase in phrases:
        one, spaced = end(phrase), end(phrase.replace(" ", "    "))
        assert one is not None and one.end and spaced is not None and spaced.end
        assert end(phrase.replace(" ", "     ")) is None and end(phrase + "x") is None and end(phrase[:-1] + "x") is None
    count, waiting = 0, [root]
    while waiting:
        count += 1
        waiting += (waiting.pop()._next or {}).values()
    assert count < sum(map(len, phrases)) / 4


def versions(*changes: tuple[int, int], count: int = 4000) -> list[PhraseSet]:
    """Versions of a list: the first, and for each change one that lacks so many of its phrases and has so many others."""
    phrases, bases = many(count), Bases()
    others = [[*phrases[removed:], *[f"new {number} phrase" for number in range(added)]] for removed, added in changes]
    return [PhraseSet(one, bases=bases) for one in (phrases, *others)]


def test_a_list_that_has_changed_a_little_shares_the_pattern_of_the_one_before() -> None:
    phrases = many(4000)
    first, more, fewer, both = versions((0, 3), (2, 0), (2, 3))
    assert more._letters is fewer._letters is both._letters is first._letters
    for one, removed, added in ((first, 0, 0), (more, 0, 3), (fewer, 2, 0), (both, 2, 3)):
        assert one.made == (removed == 0)
        assert one.may_occur(f"so {phrases[7]}.") and one.may_occur_in(f"so {phrases[3999]}.".encode())
        assert one.may_occur(f"a new 2 phrase, {chr(233)}") == one.may_occur_in(b"a new 2 phrase") == (added == 3)
        assert not one.may_occur("all is well") and not one.may_occur(f"a new {added} phrase")
        guardrail = DenyList("words", one, mask=False)
        for text, refused in ((phrases[1], removed == 0), (phrases[2], True), ("a new 2 phrase", added == 3), ("all is well", False)):
            found = guardrail.check([f"so {text}."])
            assert (at_once(found) if isinstance(found, Generator) else found).action == ("block" if refused else "allow"), text


def test_one_that_has_changed_much_has_a_pattern_of_its_own() -> None:
    first, fewer, more = versions((1000, 0), (0, 2000))
    assert first._letters is not fewer._letters is not more._letters is not first._letters and fewer.made and more.made
    small, other = versions((0, 1), count=100)
    assert small._letters is not other._letters and other.made


def test_what_was_removed_is_dropped_with_the_last_list_that_shares_it() -> None:
    bases = Bases()
    first = PhraseSet(many(4000), bases=bases)
    second = PhraseSet([*many(4000), "one more"], bases=bases)
    del first
    assert bases.nearest(frozenset(many(4000))) is second._base is not None
    del second
    gc.collect()
    assert bases.nearest(frozenset(many(4000))) is None


def test_a_list_that_has_changed_a_little_is_ready_soon() -> None:
    phrases = many(6000)

    def again() -> float:
        bases, made = Bases(), list[PhraseSet]()
        first = spent(lambda: made.append(PhraseSet(phrases, bases=bases)))
        return spent(lambda: made.append(PhraseSet([*phrases[1:], "one more"], bases=bases))) / first

    at_most(0.5, again)
