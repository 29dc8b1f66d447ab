"""Log probabilities of answers that guardrails read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.core.errors import EngineError
from gateway.wire.openai.answers import OpenAiAnswer
from gateway.wire.openai.scores import LARGE
from tests.steady import at_most, spent

TOKENS = [{"token": "He", "logprob": -0.5, "bytes": [72, 101], "top_logprobs": [{"token": "hidden"}]}, {"token": "y", "logprob": 0}]


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ({"message": {"content": "Hey"}, "logprobs": {"content": TOKENS}}, ["He", "y"]),
        ({"message": {"content": "Hey you"}, "logprobs": {"content": [*TOKENS, {"token": "hidden"}]}}, ["He", "y"]),
        ({"message": {"content": "Hello"}, "logprobs": {"content": [{"token": "He", "bytes": [104, 105]}]}}, None),
        ({"message": {"content": "He"}, "logprobs": {"content": [{"token": "He", "bytes": ["x"]}], "hidden": "y"}}, None),
        ({"message": {"content": "\u00e9"}, "logprobs": {"content": [{"token": "\ufffd", "bytes": [195]}]}}, ["\ufffd"]),
        ({"message": {"content": "x"}, "logprobs": {"content": [{"token": "hidden"}]}}, None),
        ({"message": {"content": None}, "logprobs": {"content": TOKENS}}, None),
        ({"text": "Hey", "logprobs": {"tokens": ["He", "y"], "token_logprobs": [0, "hidden"], "top_logprobs": [{}]}}, ["He", "y"]),
        ({"text": "x", "logprobs": {"tokens": ["hidden"]}}, None),
        ({"text": "x", "logprobs": "hidden"}, None),
    ],
)
def test_log_probabilities_pass_as_far_as_they_repeat_the_text(choice: dict[str, Any], kept: list[str] | None) -> None:
    body = json.dumps({"choices": [choice]}).encode()
    found = json.loads(OpenAiAnswer(body, True).body)["choices"][0]["logprobs"]
    assert "hidden" not in json.dumps(found)
    assert (found and (found.get("tokens") or [one["token"] for one in found["content"]])) == kept
    assert json.loads(OpenAiAnswer(body, True, False).body)["choices"][0] == choice, "where no guardrail reads them they pass"
    large = json.dumps({"choices": [choice, choice], "x": "x" * LARGE, "top_logprobs": []}).encode()
    of_large = json.loads(OpenAiAnswer(large, True).body)["choices"]
    assert [one["logprobs"] for one in of_large] == [found, found]
    assert json.loads(OpenAiAnswer(large, True, False).body)["choices"] == [choice, choice]


def test_alternatives_of_thousands_of_tokens_are_not_decoded() -> None:
    one = {"token": " word", "logprob": -0.123456, "bytes": list(b" word")}
    tokens = [{**one, "top_logprobs": [one] * 20}] * 1000
    body = json.dumps({"choices": [{"message": {"content": " word" * 1000}, "logprobs": {"content": tokens}}]}).encode()
    kept = json.loads(OpenAiAnswer(body, True).body)["choices"][0]["logprobs"]["content"]
    assert kept == [{**one, "top_logprobs": []}] * 1000
    at_most(0.9, lambda: spent(lambda: OpenAiAnswer(body, True)) / spent(lambda: msgspec.json.decode(body)))


@pytest.mark.parametrize("choices", [None, {}, "x", [1], [[]], [{"message": 1, "logprobs": 1}]])
def test_large_answers_of_another_form_are_judged_as_small_ones(choices: Any) -> None:
    def judged(*more: Any) -> Any:
        try:
            return json.loads(OpenAiAnswer(json.dumps({"choices": choices, **dict(more)}).encode(), True).body)
        except EngineError as error:
            return error.message

    assert judged(("x", "x" * LARGE), ("top_logprobs", 1)) == judged()
