"""Which kept sequence a prompt gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from engines.genai.kept import LEAST, Kept, beginning
from engines.genai.native import Text

GREEDY, DRAWN = {"do_sample": False}, {"do_sample": True, "top_k": 40}


def text(*tokens: int, reusable: int | None = None) -> Text:
    return cast(Text, SimpleNamespace(tokens=list(tokens), reusable=len(tokens) - 1 if reusable is None else reusable))


def prompt(of: Any, *more: int) -> list[int]:
    return [*of.tokens, *more]


def test_the_longest_beginning_of_the_same_domain_and_settings_counts_and_is_given_once() -> None:
    kept, one, longer = Kept(), text(*range(20)), text(*range(30))
    foreign, drawn = text(*range(40)), text(*range(40))
    for made, domain, settings in ((one, b"a", GREEDY), (longer, b"a", GREEDY), (foreign, b"b", GREEDY), (drawn, b"a", DRAWN)):
        kept.put(made, domain, settings)
    wanted = list(range(50))
    assert kept.take(wanted, b"a", GREEDY, full=False) == (longer, 29)
    assert kept.take(wanted, b"a", GREEDY, full=False) == (one, 19)
    assert kept.take(wanted, b"a", GREEDY, full=False) is None
    assert kept.take(wanted, b"b", GREEDY, full=False) == (foreign, 39)
    assert len(kept) == 1


def test_the_last_token_of_a_prompt_is_read_and_few_common_ones_are_not_worth_it() -> None:
    kept, made = Kept(), text(*range(40))
    kept.put(made, b"", GREEDY)
    assert kept.take(list(range(LEAST)), b"", GREEDY, full=True) is None
    assert kept.take([99, *range(39)], b"", GREEDY, full=True) is None
    assert kept.take(list(range(25)), b"", GREEDY, full=False) == (made, 24)


def test_a_long_conversation_stays_for_those_who_go_on_with_it_unless_it_had_to_go() -> None:
    kept, made = Kept(), text(*range(100))
    kept.put(made, b"", GREEDY)
    assert kept.take([*range(30), 7, 7], b"", GREEDY, full=False) is None
    assert kept.take([*range(30), 7, 7], b"", GREEDY, full=True) == (made, 30)


def test_what_was_used_last_stays() -> None:
    kept, first, second = Kept(), text(1), text(2)
    kept.put(first, b"", GREEDY)
    kept.put(second, b"", GREEDY)
    assert kept.shrink(2) == []
    assert kept.shrink(1) == [first] and len(kept) == 1
    assert kept.shrink(-1) == [second] and len(kept) == 0


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_the_common_beginning(one: list[int], other: list[int]) -> None:
    common = beginning(one, other)
    assert one[:common] == other[:common]
    assert one[: common + 1] != other[: common + 1] or common == len(one) == len(other) or common == min(len(one), len(other))
