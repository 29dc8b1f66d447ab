"""Log probabilities of answers that guardrails read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.openai.answers import OpenAiAnswer

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
