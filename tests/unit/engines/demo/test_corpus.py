"""The stream of training examples: reproducible, complete, and without the questions that are kept for measuring."""

import hashlib
import itertools
import re

import pytest

from engines.demo.chatml import TURN_END, TURN_START
from engines.demo.corpus import Corpus, Example
from engines.demo.phrasing import normal_form
from engines.demo.source import Source, load


@pytest.fixture(scope="module")
def source() -> Source:
    return load()


@pytest.fixture(scope="module")
def examples(source: Source) -> list[Example]:
    return list(itertools.islice(Corpus(source, 1).examples(), 6000))


def text_of(example: Example) -> str:
    return "".join(piece.text for piece in example.pieces)


def turns(example: Example) -> list[tuple[str, str]]:
    return re.findall(rf"{re.escape(TURN_START)}(\w+)\n(.*?){re.escape(TURN_END)}", text_of(example), re.DOTALL)


def dialogues(examples: list[Example]) -> list[Example]:
    """Those that are whole: neither documents nor openings."""
    return [example for example in examples if text_of(example).startswith(TURN_START) and text_of(example).endswith(f"{TURN_END}\n")]


def openings(examples: list[Example]) -> list[Example]:
    """Those that end within an answer or with its last word."""
    return [example for example in examples if text_of(example).startswith(TURN_START) and not text_of(example).endswith("\n")]


def pairs(examples: list[Example]) -> list[tuple[str, str]]:
    """(question, answer) of all dialogues."""
    found = []
    for example in dialogues(examples):
        said = [turn for turn in turns(example) if turn[0] != "system"]
        found += [(question[1], answer[1]) for question, answer in zip(said[::2], said[1::2], strict=True)]
    return found


def digest(source: Source, seed: int) -> str:
    return hashlib.sha256(
        "".join(text_of(example) for example in itertools.islice(Corpus(source, seed).examples(), 300)).encode()
    ).hexdigest()


def test_the_same_seed_gives_the_same_examples(source: Source) -> None:
    assert digest(source, 11) == digest(source, 11)
    assert digest(source, 11) == digest(load(), 11)
    assert digest(source, 11) != digest(source, 12)


def test_every_topic_is_taught(source: Source, examples: list[Example]) -> None:
    taught = {topic for example in examples for topic in example.topics}
    assert {topic.id for topic in source.topics} <= taught
    assert {talk.id for talk in source.talks} <= taught
    assert {"outside", "count", "names", "story"} <= taught


def test_dialogues_alternate_and_end_with_the_assistant(examples: list[Example]) -> None:
    whole = dialogues(examples)
    assert len(whole) > 300
    for example in whole:
        roles = [role for role, _ in turns(example)]
        said = roles[1:] if roles[0] == "system" else roles
        assert said == ["user", "assistant"] * (len(said) // 2)
        assert said


def test_only_what_the_assistant_says_is_learned_in_dialogues(examples: list[Example]) -> None:
    for example in dialogues(examples):
        learned = [piece.text.removesuffix(TURN_END) for piece in example.pieces if piece.learned]
        assert learned == [content for role, content in turns(example) if role == "assistant"]


def test_openings_teach_the_first_words_of_the_written_answer(source: Source, examples: list[Example]) -> None:
    answers = {topic.id: topic.answer for topic in source.topics} | {talk.id: talk.answer for talk in source.talks}
    answers["outside"] = source.outside.answer
    further = {topic.id: topic.more for topic in source.topics}
    short = openings(examples)
    assert len(short) > 3000
    for example in short:
        (topic,) = example.topics
        *before, last = [piece.text for piece in example.pieces if piece.learned]
        assert example.pieces[-1].text == last
        assert before in ([], [f"{answers[topic]}{TURN_END}"])
        assert f"{further[topic] if before else answers[topic]}{TURN_END}".startswith(last)
        assert 1 <= len(last.split(" ")) <= 6


def test_held_out_questions_never_appear(source: Source, examples: list[Example]) -> None:
    forbidden = {normal_form(question) for questions in source.heldout.values() for question in questions}
    asked = {normal_form(content) for example in examples for role, content in turns(example) if role == "user"}
    assert len(asked) > 3000
    assert not forbidden & asked


def test_the_questions_of_the_first_minutes_are_taught(source: Source) -> None:
    by_id = {topic.id: topic for topic in source.topics}
    for topic, question in [
        ("circuit-breaker", "What is a circuit breaker?"),
        ("create-key", "How do I create a key?"),
        ("gatehouse", "What is Gatehouse?"),
    ]:
        assert question in itertools.islice(Corpus(source, 2).questions(by_id[topic]), 3000)


def test_answers_are_the_written_ones(source: Source, examples: list[Example]) -> None:
    written = {text for topic in source.topics for text in (topic.answer, topic.more)}
    written |= {talk.answer for talk in source.talks} | {source.outside.answer, source.extras.story, source.extras.unknown_name}
    others = {answer for _, answer in pairs(examples)} - written
    assert others
    assert all(re.fullmatch(r"(1, )?2.*\.|1, 2.*\.|Nice to meet you, \w+\..*|Your name is \w+\.", answer) for answer in others)


def test_counting_is_right(examples: list[Example]) -> None:
    counted = [(question, answer) for question, answer in pairs(examples) if answer.startswith("1, 2")]
    assert len(counted) > 10
    for _, answer in counted:
        numbers = [int(number) for number in answer.rstrip(".").split(", ")]
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_name_is_remembered_within_its_dialogue(examples: list[Example]) -> None:
    checked = 0
    for example in examples:
        name = None
        for role, content in turns(example):
            if role != "assistant":
                continue
            if said := re.match(r"Nice to meet you, (\w+)\.", content):
                name = said[1]
            elif said := re.match(r"Your name is (\w+)\.$", content):
                assert said[1] == name
                checked += 1
    assert checked > 10
