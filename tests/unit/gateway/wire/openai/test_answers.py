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
