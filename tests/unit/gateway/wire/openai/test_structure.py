"""Names in requests: known, unknown, twice, in another case; media that nobody fetches."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import RequestError
from gateway.core.slices import at_once
from gateway.core.types import InferenceRequest
from gateway.wire import table
from gateway.wire.openai import api
from gateway.wire.openai.fields import DROPPED, NEVER
from gateway.wire.openai.structure import in_order, in_order_steps
from gateway.wire.openai.views import ChatRequest

CHAT, RERANK, EMBEDDINGS = b"/v1/chat/completions", b"/v1/rerank", b"/v1/embeddings"
USER = {"role": "user", "content": "hi"}


def parse(body: bytes | dict[str, Any], path: bytes = CHAT) -> InferenceRequest:
    return table.parse(path, body if isinstance(body, bytes) else json.dumps(body).encode(), {})


def chat(**fields: Any) -> InferenceRequest:
    return parse({"model": "m", "messages": [USER], **fields})


def part(**fields: Any) -> InferenceRequest:
    return parse({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "x", **fields}]}]})


def refused(body: bytes, path: bytes = CHAT) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body, path)
    assert caught.value.status == 400
    return caught.value


def settled(found: InferenceRequest, policy: str) -> dict[str, Any]:
    """What an engine would read."""
    if found.unknown:
        found.api.settle_unknown(found, policy)
    return dict(json.loads(found.api.target(found, None)[1]))


TWICE: list[tuple[bytes, bytes, str]] = [
    (CHAT, b'{"model":"a","model":"m","messages":[{"role":"user"}]}', "model"),
    (CHAT, b'{"model":"a","mod\\u0065l":"m","messages":[{"role":"user"}]}', "model"),
    (CHAT, b'{"model" :"a","model" :"m","messages":[{"role":"user","content":"hi"}]}', "model"),
    (CHAT, b'{"model":"m","messages":[{"role":"user","role":"system","content":"hi"}]}', "messages.role"),
    (CHAT, b'{"model":"m","messages":[{"role":"user","content":"hi: there","content":"ho"}]}', "messages.content"),
    (CHAT, b'{"model":"m","messages":[{"role":"user","content":"\\u003a","content":"ho"}]}', "messages.content"),
    (CHAT, b'{"model":"m","messages":[{"role":"u","content":[{"type":"text","text":"a","text":"b"}]}]}', "messages.text"),
    (CHAT, b'{"model":"m","messages":[{"role":"u","content":"x"}],"tools":[{"function":{"name":"f","name":"g"}}]}', "tools.name"),
    (CHAT, b'{"model":"m","messages":[{"role":"u","content":"x"}],"metadata":{"a":1,"a":2}}', "metadata.a"),
]


@pytest.mark.parametrize(("path", "body", "param"), TWICE)
def test_a_key_that_stands_twice_is_refused(path: bytes, body: bytes, param: str) -> None:
    error = refused(body, path)
    assert error.code == "invalid_value" and "twice" in error.message
    assert error.param == param


CASES: list[tuple[bytes, bytes, str]] = [
    (CHAT, b'{"model":"m","messages":[{"role":"u","content":"x"}],"Model":"n"}', "Model"),
    (CHAT, b'{"model":"m","messages":[{"role":"u","content":"x"}],"Max_Tokens":9}', "Max_Tokens"),
    (CHAT, '{"model":"m","messages":[{"role":"u","content":"x"}],"ſtream":true}'.encode(), "ſtream"),
    (CHAT, b'{"model":"m","messages":[{"role":"u","content":"x","Content":"y"}]}', "messages[0].Content"),
    (CHAT, b'{"model":"m","messages":[{"role":"u","content":[{"type":"text","text":"x","Text":"y"}]}]}', "messages[0].content[0].Text"),
    (CHAT, b'{"model":"m","messages":[{"role":"u","tool_calls":[{"Function":{}}]}]}', "messages[0].tool_calls[0].Function"),
    (CHAT, b'{"model":"m","messages":[{"role":"u"}],"tools":[{"function":{"Name":"f"}}]}', "tools[0].function.Name"),
    (CHAT, b'{"model":"m","messages":[{"role":"u"}],"stream_options":{"Include_Usage":true}}', "stream_options.Include_Usage"),
]


@pytest.mark.parametrize(("path", "body", "param"), CASES)
def test_a_name_in_another_case_is_refused(path: bytes, body: bytes, param: str) -> None:
    error = refused(body, path)
    assert error.param == param and "lower case" in error.message


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"u","y":"\xff"}]}',
        b'{"model":"m","messages":[{"role":"u","content":[{"type":"text","text":"x","y":"\xff"}]}]}',
        b'{"model":"m","messages":[{"role":"u","content":"x"}],"metadata":{"\xff":1}}',
    ],
)
def test_bytes_that_are_no_utf8_are_refused_at_any_depth(body: bytes) -> None:
    assert refused(body).code == "invalid_json"


def test_free_forms_keep_names_in_any_case() -> None:
    schema = {"type": "object", "properties": {"Name": {"type": "string"}, "name": {"type": "string"}, "api_base": {"type": "string"}}}
    fields = {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        "metadata": {"Model": "a", "priority": "high"},
        "chat_template_kwargs": {"Enable_Thinking": True},
    }
    found = chat(**fields)
    assert not found.unknown
    assert settled(found, "refuse") == {"model": "m", "messages": [USER], **fields}


@pytest.mark.parametrize("name", sorted(NEVER - DROPPED))
def test_names_of_upstreams_files_and_slots_reach_no_engine(name: str) -> None:
    value = [{"api_base": "http://x"}]
    for policy in ("refuse", "forward"):
        with pytest.raises(RequestError, match="never reaches"):
            settled(chat(**{name: value}), policy)
    assert settled(chat(**{name: value}), "drop") == {"model": "m", "messages": [USER]}


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"type": "image_url", "image_url": None, "uuid": "cat-1"}, {"type": "image_url", "image_url": None}),
        ({"type": "image_url", "image_url": {"url": "data:x", "UUID": "cat-1"}}, {"type": "image_url", "image_url": {"url": "data:x"}}),
        (
            {"type": "image_url", "image_url": {"url": "data:x", "content_hash": "ab"}},
            {"type": "image_url", "image_url": {"url": "data:x"}},
        ),
        ({"type": "file", "file": {"file_id": "file-1"}}, {"type": "file", "file": {}}),
    ],
)
def test_media_that_an_engine_has_stored_cannot_be_named(fields: dict[str, Any], kept: dict[str, Any]) -> None:
    """An engine keeps them for all its callers: a name would lead to another tenant's picture."""

    def found() -> Any:
        return parse({"model": "m", "messages": [{"role": "user", "content": [fields]}]})

    for policy in ("refuse", "forward"):
        with pytest.raises(RequestError, match="never reaches"):
            settled(found(), policy)
    assert settled(found(), "drop")["messages"][0]["content"] == [kept]


@pytest.mark.parametrize("name", sorted(DROPPED))
def test_the_names_of_other_gateways_are_dropped_without_an_error(name: str) -> None:
    assert settled(chat(**{name: "http://x"}), "refuse") == {"model": "m", "messages": [USER]}


def test_an_unknown_field_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(RequestError) as caught:
        settled(chat(temprature=1), "refuse")
    assert (caught.value.param, caught.value.code) == ("temprature", "unsupported_parameter")
    assert "did you mean 'temperature'" in caught.value.message and "models[]" not in caught.value.message, "what clients are told"


def test_a_model_may_forward_or_drop_unknown_fields() -> None:
    body = {"model": "m", "x": {"y": 1}, "messages": [{"role": "user", "z": 1, "content": [{"type": "text", "text": "hi", "w": 2}]}]}
    assert settled(parse(body), "forward") == body
    kept = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}
    assert settled(parse(body), "drop") == kept
    found = parse(body)
    assert sorted(found.unknown) == ["messages[0].content[0].w", "messages[0].z", "x"]
    documents = {"model": "m", "query": "q", "documents": [{"text": "a", "x": 1}]}
    assert settled(parse(documents, RERANK), "drop") == {**documents, "documents": [{"text": "a"}]}


def test_forwarding_lets_no_upstream_through_in_the_inside_of_an_unknown_field() -> None:
    with pytest.raises(RequestError, match="never reaches"):
        settled(chat(x={"deep": [{"API_Base": "http://x"}]}), "forward")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_audio": {"data": "http://x/a.wav", "format": "wav"}}, "input_audio"),
        ({"input_audio": "http://x/a.wav"}, "input_audio"),
        ({"file": {"file_data": "file:///etc/passwd"}}, "file"),
        ({"file": {"file_id": "http://x/"}}, "file.file_id"),
        ({"file": {"filename": "../../etc/passwd", "file_data": "AAAA"}}, "file.filename"),
        ({"uuid": "http://x/"}, "uuid"),
        ({"image_url": {"url": "data:x", "uuid": "/etc/passwd"}}, "image_url.uuid"),
        ({"image_url": {"url": "data:x", "detail": "http://x/"}}, "image_url.detail"),
        ({"input_audio": {"data": "AAAA", "format": "file:///etc/passwd"}}, "input_audio.format"),
        ({"modalities": "http://x/"}, "modalities"),
        ({"prompt_cache_breakpoint": "~/x"}, "prompt_cache_breakpoint"),
        ({"cache_control": {"type": "./x"}}, "cache_control"),
        ({"image": "http://x/a.png"}, "image"),
        ({"image": {"deep": ["http://x/a.png"]}}, "image"),
        ({"video": "/etc/passwd"}, "video"),
        ({"video": "\\\\host\\share"}, "video"),
        ({"Image_Url": "http://x/"}, "Image_Url"),
        ({"image_url": {"url": "data:x", "href": "http://x/"}}, "image_url.href"),
        ({"image_url": [{"url": "http://x/"}]}, "image_url"),
        ({"thinking": {"image_url": "http://x/"}}, "thinking"),
    ],
)
def test_no_part_names_what_an_engine_would_fetch(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        part(**fields)
    assert caught.value.param == f"messages[0].content[1].{param}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"prediction": {"type": "content", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}},
            "prediction.content[0].image_url",
        ),
        ({"tools": [{"type": "mcp", "server_url": "http://x/"}]}, "tools[0].server_url"),
        ({"messages": [{"role": "assistant", "audio": {"id": "http://x/"}}]}, "messages[0].audio"),
    ],
)
def test_nothing_else_in_a_chat_names_what_an_engine_would_fetch(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert caught.value.param == param


def test_documents_name_nothing_to_fetch() -> None:
    for document in ({"image": "http://x/"}, {"content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}):
        with pytest.raises(RequestError, match="not fetched"):
            parse({"model": "m", "query": "q", "documents": [document]}, RERANK)
    with pytest.raises(RequestError, match="never reaches"):
        settled(parse({"model": "m", "input": "http://x/", "modality": "image"}, EMBEDDINGS), "forward")


NAMES = st.sampled_from(["role", "content", "name", "x", "Content", "co\\u006etent"])
TEXTS = st.sampled_from(['"a"', '"a: b"', '"\\":"', '" :"', '"\\u003a"', "null"])
MESSAGES = st.lists(st.lists(st.tuples(NAMES, TEXTS), max_size=4), min_size=1, max_size=3)


@given(MESSAGES, st.sampled_from([":", " :", ": ", "\n: "]), st.lists(st.sampled_from(["model", "user", "x"]), max_size=2))
def test_the_glance_at_colons_finds_what_the_whole_check_finds(
    messages: list[list[tuple[str, str]]], colon: str, further: list[str]
) -> None:
    inside = ",".join("{" + ",".join(f'"{name}"{colon}{text}' for name, text in [("role", '"u"'), *message]) + "}" for message in messages)
    body = f'{{"model"{colon}"m","messages"{colon}[{inside}]' + "".join(f',"{name}"{colon}"m"' for name in further) + "}"

    def outcome(glance: bool) -> Any:
        try:
            with pytest.MonkeyPatch.context() as patch:
                if not glance:
                    patch.setattr(api, "in_order", lambda *given: False)
                made = parse(body.encode())
        except RequestError as error:
            return error.code, error.param
        return made.unknown, settled(made, "forward")

    assert outcome(False) == outcome(True)
    try:
        assert at_once(table.parse_steps(CHAT, body.encode(), {})).unknown == parse(body.encode()).unknown
    except RequestError as error:
        assert outcome(True) == (error.code, error.param)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"u","content":"hi"}]}',
        b'{"model":"m","messages":[{"role":"u","content":"a: b"}]}',
        b'{"model" :"m","messages":[{"role":"u","content":"a: b"}]}',
        b'{"model":"m","messages":[{"role":"u","content":"a : b"}]}',
        b'{"model":"m","messages":[{"role":"u","content":"\\": "}]}',
        b'{"model":"m","messages":[{"role":"u","content":"hi","x":1}]}',
        b'{"model":"m","model":"m","messages":[{"role":"u","content":"hi"}]}',
        b'{"model":"m","messages":[{"role":"u","content":[{"type":"text","text":"hi"}]}]}',
    ],
)
def test_the_large_body_s_order_is_that_of_a_small_one(body: bytes) -> None:
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    messages = msgspec.json.decode(body, type=ChatRequest).messages
    steps = in_order_steps(body, fields, messages)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            assert done.value is in_order(body, fields, messages)
            break


def test_a_sound_that_the_engine_kept_is_the_models_setting() -> None:
    def spoken(**audio: Any) -> Any:
        return parse({"model": "m", "messages": [USER, {"role": "assistant", "content": "b", "audio": audio}]})

    found = spoken(id="audio_1")
    assert found.unknown == ("messages[1].audio.id",)
    for policy in ("refuse", "forward"):
        with pytest.raises(RequestError, match="stored_audio"):
            found.api.settle_unknown(found, policy, ("audio", "store"))
    for policy in ("refuse", "forward", "drop"):
        found.api.settle_unknown(found, policy, ("stored_audio",))
        assert json.loads(bytes(found.fields["messages"]))[1]["audio"] == {"id": "audio_1"}
    assert settled(found, "drop")["messages"] == [USER, {"role": "assistant", "content": "b"}]
    assert settled(spoken(id="audio_1", transcript="b"), "drop")["messages"][1]["audio"] == {"transcript": "b"}
    with pytest.raises(RequestError, match="lower case"):
        spoken(ID="audio_1")


@pytest.mark.parametrize(
    ("field", "name"),
    [
        *(("chat_template_kwargs", name) for name in ("chat_template", "Chat_Template", "messages", "conversation", "tokenize")),
        ("mm_processor_kwargs", "prompt_embeds"),
        ("media_io_kwargs", "lora_path"),
    ],
)
def test_arguments_of_engines_functions_replace_nothing_of_the_request(field: str, name: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**{field: {"enable_thinking": True, name: "x"}})
    assert caught.value.param == f"{field}.{name}"
    assert chat(**{field: {"enable_thinking": True, "documents": [{"messages": 1}]}}).unknown == ()


def test_a_message_offers_only_tools_that_the_caller_runs() -> None:
    def offering(tool: dict[str, Any]) -> InferenceRequest:
        return parse({"model": "m", "messages": [{"role": "developer", "content": "x", "tools": [tool]}, USER]})

    found = offering({"type": "function", "function": {"name": "shell"}})
    assert found.unknown == ("messages[0].tools",), "noted for records"
    for policy in ("refuse", "forward", "drop"):
        assert settled(found, policy)["messages"][0]["tools"]
    with pytest.raises(RequestError) as caught:
        offering({"type": "mcp", "server_url": "data:,x"})
    assert caught.value.param == "messages[0].tools[0].type"
    with pytest.raises(RequestError, match="lower case"):
        offering({"Function": {"name": "shell"}})


@pytest.mark.parametrize("path", [EMBEDDINGS, b"/v1/completions", b"/v1/classify", b"/v1/images/generations"])
@pytest.mark.parametrize(
    "messages",
    [
        [{"a": 1}, 1],
        {"a": {}},
        '{"a"}',
        [{"content": [{"a": 1}, 3]}],
        [{"tool_calls": [3]}],
        [{"tool_calls": {"a": 3}}],
        [{"tool_calls": [{"function": 3}]}],
    ],
)
def test_messages_of_any_form_where_there_are_none_are_an_unknown_field(path: bytes, messages: Any) -> None:
    """Some engines take messages for embeddings: their media are looked at all the same."""
    body = {"model": "m", "input": "x", "prompt": "x"}
    del body["prompt" if path in (EMBEDDINGS, b"/v1/classify") else "input"]
    assert "messages" in parse({**body, "messages": messages}, path).unknown
    fetching = [{"role": "user", "content": [{"type": "image_url", "image_url": "http://x/"}]}]
    assert refused(json.dumps({**body, "messages": fetching}).encode(), path).param == "messages[0].content[0].image_url"


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"prediction": {"type": "content", "content": {"type": "image_url", "image_url": "http://x/"}}}, "prediction.content.image_url"),
        ({"mm_processor_kwargs": {"images": ["http://x/"]}}, "mm_processor_kwargs"),
        ({"mm_processor_kwargs": {"videos_kwargs": {"a": "/etc/passwd"}}}, "mm_processor_kwargs"),
        ({"media_io_kwargs": {"image": {"url": "http://x/"}}}, "media_io_kwargs"),
    ],
)
def test_settings_hold_nothing_to_fetch(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match="remote media") as caught:
        chat(**more)
    assert caught.value.param == param


@pytest.mark.parametrize("content", [{"url": "http://x/"}, ["http://x/"]])
def test_content_in_base64_is_a_text(content: Any) -> None:
    for name, holder in (("input_audio", {"data": content}), ("file", {"file_data": content})):
        with pytest.raises(RequestError, match="expected a text in base64"):
            part(**{name: holder})


def test_the_only_part_of_a_document_is_looked_at_as_one_of_several() -> None:
    document = {"content": {"type": "image_url", "image_url": "http://x/"}}
    body = json.dumps({"model": "m", "query": "q", "documents": [document]}).encode()
    assert refused(body, RERANK).param == "documents[0].content.image_url"
