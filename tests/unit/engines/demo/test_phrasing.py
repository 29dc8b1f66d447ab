"""Questions are asked in many ways, and always the same ones for the same seed."""

import itertools
import random

import pytest

from engines.demo.phrasing import Frames, bare, framed, is_question, normal_form, typed, varied

FRAMES = Frames(
    what=("what is {s}", "tell me about {b}"),
    how=("how do i {v}",),
    ask=("{q}",),
    before=("hi, ",),
    after=(" please",),
    more=("more",),
    synonyms={"create": ("make",)},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("What IS a key?", "what is a key"), ("  how--do I\tcreate?! ", "how do i create"), ("x-request-id", "x request id"), ("???", "")],
)
def test_normal_form_keeps_words_only(text: str, expected: str) -> None:
    assert normal_form(text) == expected


@pytest.mark.parametrize(("noun", "expected"), [("a key", "key"), ("an engine", "engine"), ("the queue", "queue"), ("audit", "audit")])
def test_bare_drops_the_article(noun: str, expected: str) -> None:
    assert bare(noun) == expected


def test_frames_fit_the_kind_of_seed() -> None:
    rng = random.Random(1)
    assert {framed(rng, FRAMES, "what", "a key") for _ in range(50)} == {"what is a key", "tell me about key"}
    assert framed(rng, FRAMES, "how", "create a key") == "how do i create a key"
    assert framed(rng, FRAMES, "ask", "who are you") == "who are you"


@pytest.mark.parametrize(
    ("text", "expected"), [("what is it", True), ("Whats up", False), ("  How so", True), ("tell me", False), ("island", False)]
)
def test_questions_are_known_by_their_first_word(text: str, expected: bool) -> None:
    assert is_question(text) is expected


def test_the_same_seed_types_the_same() -> None:
    first, second = (random.Random(3) for _ in range(2))
    ways = [varied(first, FRAMES, "how do i create a key") for _ in range(200)]
    assert ways == [varied(second, FRAMES, "how do i create a key") for _ in range(200)]
    assert len(set(ways)) > 40
    assert "How do I create a key?" in ways


def test_typing_mistakes_are_few() -> None:
    rng, text = random.Random(5), "how do i create a key"
    ways = [normal_form(typed(rng, text)) for _ in range(400)]
    assert sum(way == text for way in ways) > 240
    assert all(abs(len(way) - len(text)) <= 8 for way in ways)


def test_short_texts_are_not_mistyped() -> None:
    rng = random.Random(7)
    assert {normal_form(typed(rng, "hello")) for _ in range(200)} == {"hello"}


def test_every_frame_of_the_same_text_differs_somewhere() -> None:
    rng = random.Random(9)
    endings = {typed(rng, "what is a key")[-1] for _ in itertools.repeat(None, 300)}
    assert {"?", "y"} <= endings
