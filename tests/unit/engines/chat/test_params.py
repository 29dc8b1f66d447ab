"""Bodies are typed and bounded; what is wrong is named."""

import json
from typing import Any

import pytest

from engines.chat.defaults import Defaults
from engines.chat.params import MAX_IDS, ChatRequest, CompletionRequest, check_common, parse, prompts_of, sampling_params
from engines.sidecar.shell import ApiError

CHAT = {"messages": [{"role": "user", "content": "x"}]}


def refused(kind: type[Any], body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(body if isinstance(body, bytes) else json.dumps(body).encode(), kind)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"functions": []}, "functions", "unsupported_parameter"), ({"audio": {}}, "audio", "unsupported_parameter"),
        ({"stream_options": {"x": 1}}, "stream_options.x", "unsupported_parameter"), ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "invalid_value"), ({"top_p": 1.1}, "top_p", "invalid_value"), ({"n": 0}, "n", "invalid_value"),
        ({"top_logprobs": 21}, "top_logprobs", "invalid_value"), ({"seed": "x"}, "seed", "invalid_value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
        ({"stop": [""]}, "stop[0]", "invalid_value"), ({"logit_bias": {"1": "x"}}, "logit_bias[...]", "invalid_value"),
        ({"modalities": ["audio"]}, "modalities[0]", "invalid_value"), ({"grammar": "x" * 70_000}, "grammar", "invalid_value"),
    ],
)  # fmt: skip
def test_the_parameter_is_named(change: dict[str, Any], param: str, code: str) -> None:
    error = refused(ChatRequest, {**CHAT, **change})
    assert (error.param, error.code) == (param, code)


def test_tokens_of_a_prompt_are_bounded() -> None:
    for prompt in ([1] * (MAX_IDS + 1), [[1] * (MAX_IDS + 1)]):
        assert refused(CompletionRequest, {"prompt": prompt}).code == "invalid_value"


def test_missing_and_malformed() -> None:
    assert (refused(ChatRequest, {}).code, refused(ChatRequest, {}).param) == ("missing_required_parameter", "messages")
    for body in (b"", b"{", b"nul", b"\xff\xfe", b"[" * 100_000):
        assert refused(ChatRequest, body).code in ("invalid_json", "invalid_value")


def test_parameters_without_effect_are_accepted_and_null_is_absent() -> None:
    body = {**CHAT, "user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "temperature": None, "stop": None, "tools": None}
    assert parse(json.dumps(body).encode(), ChatRequest).stops() == ()
    unknown = {**body, "functions": None, "audio": None, "prediction": None, "z": None}
    assert parse(json.dumps(unknown).encode(), ChatRequest) == parse(json.dumps(body).encode(), ChatRequest)
    assert refused(ChatRequest, {**unknown, "zz": 0}).param == "zz"
    assert refused(ChatRequest, {**unknown, "messages": None}).code == "invalid_value"


def test_rules_between_parameters() -> None:
    obfuscated = {**CHAT, "stream": True, "stream_options": {"include_obfuscation": True}}
    for body, param in (
        ({**CHAT, "store": True}, "store"),
        ({**CHAT, "stream_options": {}}, "stream_options"),
        (obfuscated, "stream_options.include_obfuscation"),
        ({**CHAT, "repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repetition_penalty"),
    ):
        with pytest.raises(ApiError) as caught:
            check_common(parse(json.dumps(body).encode(), ChatRequest))
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]]), (["a", [1]], ["a", [1]])],
)
def test_the_four_forms_of_prompts(value: Any, expected: Any) -> None:
    assert prompts_of(value, "prompt") == expected


def test_prompts_are_bounded_and_not_mixed() -> None:
    for value in (["a"] * 257, [1, "a"]):
        with pytest.raises(ApiError) as caught:
            prompts_of(value, "input")
        assert caught.value.param == "input"
    assert len(prompts_of([1] * 5000, "prompt")) == 1


def settings(**body: Any) -> Any:
    return sampling_params(parse(json.dumps({"prompt": "x", **body}).encode(), CompletionRequest), Defaults(), 100, 2**40, None)


def test_defaults_and_requests_become_sampling_settings() -> None:
    assert settings().temperature == 0.8 and settings(temperature=0).temperature == 0
    assert settings(top_k=-1).top_k == 0 and settings(repetition_penalty=1.5).repeat_penalty == 1.5
    assert 0 <= settings().seed < 2**32 - 1


def test_bias_is_by_token_and_minus_100_bans() -> None:
    assert settings(logit_bias={"5": -100, "6": 2}).logit_bias == ((5, float("-inf")), (6, 2.0))
    for value in (101, -100.5):
        with pytest.raises(ApiError, match=f"logit_bias: '6' has {float(value)}, not a number from -100 to 100"):
            settings(logit_bias={"5": 1, "6": value})
    for key in ("100", "-1", "x", "１", "9" * 5000):
        with pytest.raises(ApiError):
            settings(logit_bias={key: 1})
