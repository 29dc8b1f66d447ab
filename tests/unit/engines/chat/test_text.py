"""Whole characters, held stop strings, whatever the tokens' boundaries."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.chat.text import Assembler, held


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


def assemble(parts: list[bytes], stops: tuple[str, ...] = ()) -> tuple[list[str], str | None]:
    assembler = Assembler(stops)
    out = []
    for part in parts:
        out.append(assembler.feed(part))
        if assembler.stopped is not None:
            return out, assembler.stopped
    out.append(assembler.finish())
    return out, assembler.stopped


@given(st.text(), st.lists(st.integers(0, 1000)))
def test_any_split_gives_the_same_whole_characters(text: str, cuts: list[int]) -> None:
    out, _ = assemble(pieces(text.encode(), cuts))
    assert "".join(out) == text


@given(st.binary(), st.lists(st.integers(0, 1000)))
def test_bytes_that_are_no_text_become_replacement_characters(data: bytes, cuts: list[int]) -> None:
    out, _ = assemble(pieces(data, cuts))
    assert "".join(out) == data.decode("utf-8", "replace")


@given(st.text("abé", max_size=30), st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3), st.lists(st.integers(0, 100)))
def test_stop_strings_are_found_wherever_the_tokens_end(text: str, stops: list[str], cuts: list[int]) -> None:
    out, stopped = assemble(pieces(text.encode(), cuts), tuple(stops))
    joined = "".join(out)
    one_by_one, same = assemble([char.encode() for char in text], tuple(stops))
    assert (joined, stopped) == ("".join(one_by_one), same)
    assert all(stop not in joined for stop in stops)
    if stopped is None:
        assert joined == text and all(stop not in text for stop in stops)
    else:
        assert text.startswith(joined + stopped)


def test_only_what_could_become_a_stop_string_is_held() -> None:
    assembler = Assembler(("STOP", "END"))
    assert assembler.feed(b"go on S") == "go on "
    assert assembler.feed(b"T") == ""
    assert assembler.feed(b"ART EN") == "START "
    assert assembler.finish() == "EN"


def test_nothing_comes_after_a_stop_string() -> None:
    assembler = Assembler(("x",))
    assert assembler.feed(b"axb") == "a" and assembler.stopped == "x"
    assert assembler.feed(b"more") == "" and assembler.finish() == ""


@pytest.mark.parametrize(("text", "stops", "count"), [("ab", ("bc",), 1), ("ab", ("abc", "b!"), 2), ("ab", ("c",), 0), ("", ("a",), 0), ("aa", ("aab",), 2)])  # fmt: skip  # noqa: E501
def test_held(text: str, stops: tuple[str, ...], count: int) -> None:
    assert held(text, stops) == count
