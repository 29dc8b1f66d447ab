"""The texts of whole answers: found, replaced, and what cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.errors import EngineError
from gateway.wire.openai.answers import OpenAiAnswer, answer_texts, is_json, replace_answer_texts


def answer() -> dict[str, Any]:
    return {
        "choices": [
            {"message": {"content": "a", "reasoning_content": "b", "reasoning": "c", "refusal": "d"}, "logprobs": {"content": []}},
            {"message": {"content": None, "tool_calls": [{"function": {"name": "n", "arguments": "e"}}, {"custom": 1}, "odd"]}},
            {"text": "f"},
            "odd",
            {"message": None},
        ]
    }


def test_texts_of_an_answer() -> None:
    document = answer()
    assert answer_texts(document) == ["a", "b", "c", "d", "n", "e", "odd", "f"]
    replace_answer_texts(document, list("ABCDNEOF"))
    assert answer_texts(document) == list("ABCDNEOF")
    assert document["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("document", [{}, {"choices": None}, {"choices": 5}, {"choices": []}, {"data": [{"embedding": [1.0]}]}])
def test_an_answer_without_texts(document: dict[str, Any]) -> None:
    assert answer_texts(document) == []


@pytest.mark.parametrize("body", [b"no json", b"[1]", b'"text"', b"{", b"\xff"])
def test_an_answer_that_cannot_be_read_is_the_engines_failure(body: bytes) -> None:
    with pytest.raises(EngineError):
        OpenAiAnswer(body, False)


@pytest.mark.parametrize("choices", [{"0": {"text": "a"}}, ["a"], [{"text": "a"}, "b"], "a", 5, [[]]])
@pytest.mark.parametrize("generates", [True, False])
def test_choices_that_hide_their_texts_are_refused(choices: Any, generates: bool) -> None:
    with pytest.raises(EngineError):
        OpenAiAnswer(json.dumps({"choices": choices}).encode(), generates)


def test_only_generated_text_needs_choices() -> None:
    assert OpenAiAnswer(b'{"data":[]}', False).texts == []
    with pytest.raises(EngineError):
        OpenAiAnswer(b'{"text":"hidden"}', True)


READABLE = {"choices": [{"message": {"content": "a"}}, {"text": "f"}]}


def test_an_answer_is_written_anew_with_other_texts() -> None:
    found = OpenAiAnswer(json.dumps(READABLE).encode(), True)
    assert json.loads(found.replaced(["A", "F"]))["choices"] == [{"message": {"content": "A"}}, {"text": "F"}]
    assert found.evidence() == found.body and found.detail(lambda data: "h") is None


@pytest.mark.parametrize(("body", "expected"), [(b"{}", True), (b" \n[1]", True), (b"", False), (b"oops", False), (b"<html>", False)])
def test_what_looks_like_json(body: bytes, expected: bool) -> None:
    assert is_json(body) is expected


def test_answers_without_choices_are_read_too() -> None:
    ranks = {
        "id": "r",
        "results": [{"index": 0, "relevance_score": 0.5, "document": {"text": "a b"}}, {"index": 1, "label": "c d"}],
        "note": "e",
    }
    found = OpenAiAnswer(json.dumps(ranks).encode(), False)
    assert found.texts == ["a b", "c d"] and b"note" not in found.body
    assert json.loads(found.replaced(["A", "C"]))["results"] == [
        {"index": 0, "relevance_score": 0.5, "document": {"text": "A"}},
        {"index": 1, "label": "C"},
    ]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        ([{"object": "embedding", "embedding": [0.5, -1e-3], "index": 0}], []),
        ([{"embedding": "AACAPwAAgD8="}], []),
        ([{"embedding": "a phrase, not a vector"}], ["a phrase, not a vector"]),
        ([{"embedding": [0.5, "hidden"]}], ["hidden"]),
        ([["hidden"], "too"], ["hidden", "too"]),
        ("hidden", ["hidden"]),
        ({"a": "hidden"}, ["hidden"]),
    ],
)
def test_vectors_hold_no_texts(data: Any, texts: list[str]) -> None:
    found = OpenAiAnswer(json.dumps({"object": "list", "data": data}).encode(), False)
    assert found.texts == texts
    assert json.loads(found.replaced([text.upper() for text in texts]))["object"] == "list"
