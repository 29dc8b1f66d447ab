"""Typed views of OpenAI requests: bounds, errors, what is forwarded, which texts are read and written."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import RequestError
from gateway.core.types import InferenceRequest
from gateway.wire import table


def parse(path: bytes, body: bytes) -> InferenceRequest:
    return table.parse(path, body, {})


CHAT, COMPLETIONS, EMBEDDINGS = b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"
CLASSIFY, RERANK = b"/v1/classify", b"/v1/rerank"
SMALLEST: dict[bytes, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    EMBEDDINGS: {"model": "m", "input": "hi"},
    CLASSIFY: {"model": "m", "input": "hi"},
    RERANK: {"model": "m", "query": "q", "documents": ["d"]},
}


def request(path: bytes, **fields: Any) -> InferenceRequest:
    return parse(path, json.dumps({**SMALLEST[path], **fields}).encode())


def refused(path: bytes, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        request(path, **fields)
    return caught.value


def forwarded(found: InferenceRequest) -> dict[str, Any]:
    """What an engine would read."""
    return dict(json.loads(msgspec.json.encode(found.fields)))


# --- bounds

GENERATION: dict[str, tuple[list[Any], list[Any]]] = {
    "model": (["x", "x" * 256], ["", "x" * 257, 5, None]),
    "stream": ([True, False, None], ["yes", 1]),
    "stream_options": ([None, {}, {"include_usage": None}, {"include_usage": True, "other": 1}], [[], {"include_usage": "x"}]),
    "max_tokens": ([1, 10_000_000, None], [0, -1, 10_000_001, 1.5, "1", 10**30]),
    "n": ([1, 128, None], [0, 129]),
    "temperature": ([0, 2, 0.5, None], [-0.01, 2.01, "1"]),
    "top_p": ([0, 1, None], [-0.01, 1.01]),
    "presence_penalty": ([-2, 2, None], [-2.01, 2.01]),
    "frequency_penalty": ([-2, 2, None], [-2.01, 2.01]),
    "stop": (["x", ["x"] * 16, ["x" * 1024], None], [["x"] * 17, ["x" * 1025], 5, [5]]),
    "user": (["x" * 512, None], ["x" * 513, 5]),
    "logit_bias": ([{}, {"5": -100}, {str(i): 1 for i in range(1024)}, None], [{str(i): 1 for i in range(1025)}, {"5": "x"}]),
}
BOUNDS: dict[bytes, dict[str, tuple[list[Any], list[Any]]]] = {
    CHAT: GENERATION
    | {
        "messages": (
            [[{"role": "user"}], [{"role": "u", "content": "x"}] * 4096],
            [[], [{"role": "u"}] * 4097, [{}], "x", [{"role": "x" * 65}]],
        ),
        "max_completion_tokens": ([1, None], [0, 10_000_001]),
        "logprobs": ([True, None], [1]),
        "top_logprobs": ([0, 20, None], [-1, 21]),
    },
    COMPLETIONS: GENERATION
    | {
        "prompt": (["", ["a", "b"], [1, 2], [[1], [2]]], [5, [1.5], None, [{}]]),
        "max_tokens": ([0, 1, None], [-1, 10_000_001, 1.5]),
        "logprobs": ([0, 20, None], [-1, 21, True]),
        "best_of": ([1, 128], [0, 129]),
        "suffix": (["x", None], [5]),
    },
    EMBEDDINGS: {
        "input": (["", ["a"], [1], [[1, 2]]], [[], 5, None, [[]] * 3 + [["x"]]]),
        "dimensions": ([1, 65536, None], [0, 65537]),
        "user": (["x" * 512], ["x" * 513]),
    },
    CLASSIFY: {"input": (["a", ["a"]], [[], 5])},
    RERANK: {
        "query": (["", "x"], [5, None]),
        "documents": ([["d"], [{"text": "d"}], ["d"] * 2048], [[], ["d"] * 2049, [5], "d"]),
        "top_n": ([1, 2048, None], [0, 2049]),
    },
}


@pytest.mark.parametrize(("path", "field"), [(p, f) for p, fields in BOUNDS.items() for f in fields])
def test_bounds(path: bytes, field: str) -> None:
    good, bad = BOUNDS[path][field]
    for value in good:
        request(path, **{field: value})
    for value in bad:
        error = refused(path, **{field: value})
        assert error.status == 400
        assert (error.param or "").startswith(field), (value, error.param)


@pytest.mark.parametrize("path", list(SMALLEST))
def test_the_smallest_request(path: bytes) -> None:
    found = request(path)
    assert (found.model, found.path, found.stream, found.max_tokens) == ("m", path, False, 0)
    assert forwarded(found) == SMALLEST[path]


def test_fields_that_nobody_knows_pass_untouched() -> None:
    found = parse(CHAT, b'{"model":"m","messages":[{"role":"user","x":1.50}],"top_k":1e2,"tools":[{"a" : "\\u00e9"}]}')
    assert bytes(found.fields["top_k"]) == b"1e2"
    assert bytes(found.fields["tools"]) == b'[{"a" : "\\u00e9"}]'
    assert bytes(found.fields["messages"]) == b'[{"role":"user","x":1.50}]'


# --- errors


@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        (b"", "invalid_json", None, "The body is empty; send a JSON object."),
        (b" \r\n", "invalid_json", None, "The body is empty; send a JSON object."),
        (b"{", "invalid_json", None, "The body is not valid JSON: Input data was truncated."),
        (b"nope", "invalid_json", None, None),
        (
            b'{"model":"m","messages":[{"role":"\xff"}]}',
            "invalid_json",
            None,
            "The body is not valid JSON: the byte 0xff at offset 34 is not UTF-8.",
        ),
        (
            '{"model":"m","messages":[{"role":"u","content":"caf\u00e9"}]}'.encode("latin-1"),
            "invalid_json",
            None,
            "The body is not valid JSON: the byte 0xe9 at offset 51 is not UTF-8.",
        ),
        (b'{"model":"\\ud800","messages":[{"role":"u"}]}', "invalid_json", "model", None),
        (b"[]", "invalid_value", None, "body: Expected `object`, got `array`."),
        (b'{"messages":[{"role":"u"}]}', "missing_required_parameter", "model", "model is required."),
        (b'{"model":"m"}', "missing_required_parameter", "messages", "messages is required."),
        (b'{"model":"m","messages":[{}]}', "missing_required_parameter", "messages[0].role", "messages[0].role is required."),
        (b'{"model":"m","messages":[{"role":"u"}],"n":0}', "invalid_value", "n", "n: Expected `int` >= 1."),
        (b'{"model":"m","messages":[{"role":5}]}', "invalid_value", "messages[0].role", "messages[0].role: Expected `str`, got `int`."),
        (b'{"model":"m","messages":[{"role":"u"}]} x', "invalid_json", None, None),
        (b'{"model":"m","messages":[{"role":"u"}],"x":"\xff"}', "invalid_json", None, None),
        (b'{"model":"m","messages":[{"role":"u"}],"x":{"\xff":1}}', "invalid_json", None, None),
        (b'{"model":"m","messages":[{"role":"u","content":[{"type":"x","a_url":"data:","n":1e999}]}]}', "invalid_value", "messages", None),
    ],
)
def test_errors_name_the_field(body: bytes, code: str, param: str | None, message: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        parse(CHAT, body)
    assert (caught.value.code, caught.value.param) == (code, param)
    if message is not None:
        assert caught.value.message == message


@given(st.binary(max_size=60))
def test_whatever_comes_is_a_request_or_a_request_error(body: bytes) -> None:
    try:
        parse(CHAT, body)
    except RequestError as error:
        assert error.status == 400


@pytest.mark.parametrize(("depth", "passes"), [(64, True), (65, False), (100_000, False)])
def test_the_configured_depth(depth: int, passes: bool) -> None:
    body = b'{"model":"m","messages":[{"role":"u"}],"x":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    if passes:
        parse(CHAT, body)
    else:
        with pytest.raises(RequestError) as caught:
            parse(CHAT, body)
        assert caught.value.code == "invalid_json"


# --- what is forwarded


def test_keys_are_forwarded_unescaped() -> None:
    found = parse(CHAT, b'{"mod\\u0065l":"m","messages":[{"role":"user"}]}')
    assert found.model == "m"
    assert msgspec.json.encode(found.fields) == b'{"model":"m","messages":[{"role":"user"}]}'


KEYS = st.sampled_from(["model", "mod\\u0065l", "user", "\\u0075ser", "x"])


@given(st.lists(st.tuples(KEYS, st.sampled_from(["a", "b", "c"])), max_size=3))
def test_what_was_read_is_what_is_forwarded(pairs: list[tuple[str, str]]) -> None:
    body = '{"messages":[{"role":"u"}],"model":"m"' + "".join(f',"{key}":"{value}"' for key, value in pairs) + "}"
    names = ["model", *(json.loads(f'"{key}"') for key, _ in pairs)]
    if len(set(names)) < len(names):
        with pytest.raises(RequestError, match="twice"):
            parse(CHAT, body.encode())
        return
    found = parse(CHAT, body.encode())
    sent = msgspec.json.encode(found.fields)
    assert json.loads(sent)["model"] == found.model == found.view.model
    assert json.loads(sent).get("user") == found.view.user


@pytest.mark.parametrize("path", list(SMALLEST))
@pytest.mark.parametrize("name", ["api_base", "base_url", "api_key", "api_version", "extra_headers"])
@pytest.mark.parametrize("value", ["http://127.0.0.1:1", None, {"a": 1}])
def test_names_of_upstreams_never_pass(path: bytes, name: str, value: Any) -> None:
    assert forwarded(request(path, **{name: value}, other=1)) == {**SMALLEST[path], "other": 1}


def test_names_of_upstreams_spelled_with_escapes_never_pass() -> None:
    found = parse(CHAT, b'{"model":"m","messages":[{"role":"user"}],"api\\u005fbase":"http://x","\\u0061pi_key":1}')
    assert set(forwarded(found)) == {"model", "messages"}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("given_options", [None, {}, {"include_usage": False}, {"include_usage": None}, "absent"])
def test_usage_is_asked_of_streams(path: bytes, given_options: Any) -> None:
    options = {} if given_options == "absent" else {"stream_options": given_options}
    found = request(path, stream=True, **options)
    assert (found.stream, found.include_usage) == (True, False)
    assert forwarded(found)["stream_options"] == {"include_usage": True}


def test_a_client_that_asks_for_usage_keeps_its_options() -> None:
    found = request(CHAT, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert found.include_usage
    assert forwarded(found)["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize("usage", [{}, {"include_usage": False}, {"include_usage": None}])
def test_a_client_that_does_not_ask_for_usage_keeps_its_other_options(usage: dict[str, Any]) -> None:
    found = request(CHAT, stream=True, stream_options={**usage, "include_obfuscation": True})
    assert not found.include_usage
    assert forwarded(found)["stream_options"] == {"include_usage": True, "include_obfuscation": True}


@pytest.mark.parametrize("stream", [False, None])
def test_nothing_is_added_to_what_is_no_stream(stream: bool | None) -> None:
    found = request(CHAT, stream=stream)
    assert not found.stream
    assert "stream_options" not in forwarded(found)


def test_embeddings_never_stream() -> None:
    assert request(EMBEDDINGS, stream=True).stream is False


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (CHAT, {}, 0),
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 7, "n": 3}, 21),
        (CHAT, {"max_tokens": 7, "max_completion_tokens": 5}, 7),
        (CHAT, {"max_tokens": 5, "n": 128}, 640),
        (COMPLETIONS, {"max_tokens": 5, "n": 2}, 10),
        (COMPLETIONS, {"max_tokens": 5, "n": 2, "best_of": 3}, 15),
        (COMPLETIONS, {"max_tokens": 5, "prompt": ["a", "b", "c"], "n": 2}, 30),
        (COMPLETIONS, {"max_tokens": 5, "prompt": [1, 2, 3]}, 5),
        (COMPLETIONS, {"max_tokens": 5, "prompt": [[1, 2], [3]]}, 10),
        (COMPLETIONS, {"max_tokens": 5, "prompt": []}, 5),
    ],
)
def test_what_may_be_generated(path: bytes, fields: dict[str, Any], expected: int) -> None:
    assert request(path, **fields).max_tokens == expected


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": 3}, 3),
        (COMPLETIONS, {"n": 2, "best_of": 3}, 3),
        (COMPLETIONS, {"n": 2, "prompt": ["a", "b", "c"]}, 6),
        (COMPLETIONS, {"prompt": [[1, 2], "a"], "max_tokens": 5}, 2),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
    ],
)
def test_how_many_answers_are_generated_whether_they_are_bounded_or_not(path: bytes, fields: dict[str, Any], expected: int) -> None:
    assert request(path, **fields).choices == expected


def test_the_estimate_of_the_prompt_is_a_quarter_of_the_bytes() -> None:
    body = json.dumps(SMALLEST[CHAT]).encode()
    assert parse(CHAT, body).prompt_tokens == len(body) // 4


REMOTE = [
    '[{"type":"image_url","image_url":{"url":"http://a/"}}]',
    '[{"type":"image_url","image\\u005furl":"http://a/"}]',
    '[{"type":"image_url","image_\\u0075rl":{"\\u0075rl":"http://a/"}}]',
    '[{"type":"image","url":"file:///etc/passwd"}]',
    '[{"type":"file","file_url":"http://a/"}]',
]


@pytest.mark.parametrize("content", REMOTE)
def test_remote_media_are_refused_however_they_are_spelled(content: str) -> None:
    with pytest.raises(RequestError, match="remote media"):
        parse(CHAT, f'{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}'.encode())


@pytest.mark.parametrize("kind", ["image_url", "video_url", "audio_url"])
@pytest.mark.parametrize("url", ["http://10.0.0.1/x", "https://x", "file:///etc/passwd", "", " data:x", "DATA:x", "ftp://x"])
@pytest.mark.parametrize("nested", [True, False])
def test_no_engine_is_made_to_fetch(kind: str, url: str, nested: bool) -> None:
    part = {"type": kind, kind: {"url": url} if nested else url}
    error = refused(CHAT, messages=[{"role": "user"}, {"role": "user", "content": [{"type": "text", "text": "x"}, part]}])
    assert error.param == f"messages[1].content[1].{kind}"


def test_data_urls_pass() -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}]
    found = request(CHAT, messages=[{"role": "user", "content": content}])
    assert forwarded(found)["messages"][0]["content"] == content


@pytest.mark.parametrize(("modalities", "refused"), [(["text", "audio"], True), (["text"], False), (None, False), ("audio", False)])
def test_sound_cannot_be_asked_for_where_answers_are_inspected(modalities: Any, refused: bool) -> None:
    found = request(CHAT, modalities=modalities)
    assert ("audio cannot be inspected" in found.api.unanswerable(found)) is refused
