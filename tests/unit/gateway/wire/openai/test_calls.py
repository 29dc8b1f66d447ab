"""Every call of an answer is found, wherever and however an engine writes it, under each name that a client may take for the tool's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.errors import EngineError, RequestError
from gateway.core.tools import ToolUse
from gateway.wire.openai.calls import MAX_CALLS, OpenAiCalls, in_request, of_answer, offered, suspicious


def function(name: str = "delete_file", arguments: Any = '{"path":"/x"}', **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def whole(**message: Any) -> list[ToolUse]:
    body = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", **message}}]}).encode()
    assert suspicious(body)
    return of_answer(body)[1]


def event(index: int = 0, /, **delta: Any) -> bytes:
    return b"data: " + json.dumps({"id": "c", "choices": [{"index": index, "delta": delta}]}).encode()


def streamed(*events: bytes) -> list[ToolUse]:
    reader = OpenAiCalls()
    assert any([reader.feed(one)[1] for one in events])
    return reader.uses()


@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": [function()]},
        {"function_call": {"name": "delete_file", "arguments": '{"path":"/x"}'}},
        {"tool_calls": function()},
        {"tool_call": function()},
        {"Tool_Calls": [function()]},
        {"content": [{"type": "tool_use", "name": "delete_file", "input": {"path": "/x"}}]},
        {"content": [{"type": "text", "text": "x"}, {"type": "function_call", "name": "delete_file", "arguments": '{"path":"/x"}'}]},
        {"extra": {"deep": [{"tool_calls": [function()]}]}},
        {"tool_calls": [function(arguments={"path": "/x"})]},
        {"tool_calls": [{"name": "delete_file", "args": {"path": "/x"}}]},
    ],
)
def test_a_call_is_found_wherever_it_stands(message: dict[str, Any]) -> None:
    (use,) = whole(**message)
    assert (use.kind, use.names, json.loads(use.arguments), use.unreadable) == ("call", ("delete_file",), {"path": "/x"}, "")


def test_every_name_counts() -> None:
    (use,) = whole(tool_calls=[{"name": "harmless", **function(), "custom": {"name": "other", "input": ""}}])
    assert set(use.names) == {"harmless", "delete_file", "other"}
    (use,) = whole(tool_calls=[{"id": "x", "type": "web_search"}])
    assert use.names == ("web_search",), "its type, where it has no name"
    (use,) = whole(tool_calls=[{"type": "custom", "custom": {"name": "shell", "input": "{ rm -rf / }"}}])
    assert (use.names, use.arguments, use.free) == (("shell",), "{ rm -rf / }", True)


def test_a_key_that_is_there_twice_is_written_once() -> None:
    body = b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"a","arguments":"{}"}}],"tool_calls":null}}]}'
    passed, uses = of_answer(body)
    assert uses == [] and json.loads(passed)["choices"][0]["message"] == {"tool_calls": None} and passed.count(b"tool_calls") == 1


def test_a_key_in_escapes_is_found() -> None:
    body = rb'{"choices":[{"message":{"\u0074ool\u005fcalls":[{"function":{"name":"a","arguments":"{}"}}]}}]}'
    assert suspicious(body) and of_answer(body)[1][0].names == ("a",)


@pytest.mark.parametrize(
    "call",
    [
        "text",
        5,
        {"function": {"name": ["a"], "arguments": "{}"}},
        {"function": {"name": "a", "arguments": '{"x":1}'}, "arguments": '{"x":2}'},
    ],
)
def test_what_can_be_read_in_two_ways_says_so(call: Any) -> None:
    assert whole(tool_calls=[call])[0].unreadable


def test_too_many_calls_and_too_deep_ones_are_refused() -> None:
    with pytest.raises(EngineError):
        whole(tool_calls=[function()] * (MAX_CALLS + 1))
    with pytest.raises(EngineError):
        whole(tool_calls=[function(arguments="x" * 200_000)] * 6)
    deep: Any = {"tool_calls": [function()]}
    for _ in range(40):
        deep = {"x": deep}
    with pytest.raises(EngineError):
        whole(**deep)
    for body in (b'{"tool_calls', b'["_call"]', b'{"choices": "_call'):
        with pytest.raises(EngineError):
            of_answer(body)


# --- streams


@given(st.data())
def test_a_call_in_pieces_is_the_call(data: st.DataObject) -> None:
    arguments = '{"path":"/x \\u00e9","n":[1,2]}'
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=5)))
    pieces = [arguments[a:b] for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    events = [event(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": "delete_file", "arguments": ""}}])]
    events += [event(tool_calls=[{"index": 0, "function": {"arguments": piece}}]) for piece in pieces]
    events += [event(1, tool_calls=[{"index": 0, "function": {"name": "other", "arguments": "{}"}}])]
    one, other = streamed(*events)
    assert (one.names, one.arguments, one.unreadable) == (("delete_file",), arguments, "")
    assert (other.names, other.place) == (("other",), "choices[1].delta.tool_calls[0]")


def test_of_a_name_in_pieces_each_counts_and_all_together() -> None:
    (use,) = streamed(*(event(tool_calls=[{"index": 0, "function": {"name": piece}}]) for piece in ("delete_", "file")))
    assert use.names == ("delete_file", "delete_", "file")
    (use,) = streamed(event(function_call={"name": "del"}), event(function_call={"name": "ete", "arguments": "{}"}))
    assert use.names == ("delete", "del", "ete")


def test_pieces_that_clients_put_together_differently_are_unreadable() -> None:
    assert streamed(event(tool_calls=[{"function": {"name": "a", "arguments": "{}"}}]))[0].unreadable, "no index"
    pieces = [event(tool_calls=[{"index": 0, "id": id, "function": {"name": "a", "arguments": "{}"}}]) for id in ("c1", "c2")]
    assert streamed(*pieces)[0].unreadable, "two calls with one index"


def test_other_events_pass_as_they_are() -> None:
    reader = OpenAiCalls()
    for one in (event(content="hi"), b": comment", b"data: [DONE]", event(content="")):
        assert reader.feed(one) == (one + b"\n\n", False)
    escaped = event(content="\u00e9")
    assert b"\\u" in escaped
    passed, found = reader.feed(escaped)
    assert not found and json.loads(passed[6:]) == json.loads(escaped[6:])
    assert reader.uses() == []


def test_a_stream_of_too_many_or_too_long_calls_is_refused() -> None:
    reader = OpenAiCalls()
    with pytest.raises(EngineError):
        for number in range(MAX_CALLS + 1):
            reader.feed(event(tool_calls=[{"index": number, "function": {"name": "a"}}]))
    reader = OpenAiCalls()
    with pytest.raises(EngineError):
        for _ in range(20):
            reader.feed(event(tool_calls=[{"index": 0, "function": {"arguments": "x" * 100_000}}]))
    with pytest.raises(EngineError):
        OpenAiCalls().feed(b'data: {"tool_calls')


# --- requests


def fields(**given: Any) -> dict[str, Raw]:
    return {name: Raw(json.dumps(value).encode()) for name, value in {"messages": [], **given}.items()}


def test_a_request_offers_tools_and_brings_results() -> None:
    messages = [
        {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "read_file", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "the text"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "function", "name": "old", "content": "x"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "y"}]},
        {"role": "Tool", "tool_call_id": "c1", "name": "another", "content": {"z": 1}},
    ]
    tools = [{"type": "function", "function": {"name": "read_file"}}, {"type": "custom", "custom": {"name": "shell"}}]
    found = in_request(fields(messages=messages, tools=tools, functions=[{"name": "old"}]))
    assert [(use.kind, use.names) for use in found[:3]] == [
        ("definition", ("read_file",)),
        ("definition", ("shell",)),
        ("definition", ("old",)),
    ]
    assert [(use.names, use.arguments) for use in found[3:]] == [
        (("read_file",), "the text"),
        (("",), "a\nb"),
        (("old",), "x"),
        (("read_file",), "y"),
        (("read_file", "another"), '{"z":1}'),
    ]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"messages": [{"role": "developer", "tools": [{"type": "function", "function": {"name": "shell"}}]}]}, [("shell",)]),
        ({"messages": [{"role": "user", "tools": None}, {"role": "user", "content": '"tools"'}]}, []),
        ({"chat_template_kwargs": {"tools": [{"name": "shell"}, {"function": {"name": "mail"}}]}}, [("shell",), ("mail",)]),
        ({"chat_template_kwargs": {"builtin_Tools": ["shell"], "functions": {"name": "mail"}}}, [("shell",), ("mail",)]),
        ({"chat_template_kwargs": {"enable_tools": True, "tools_in_user_message": False, "thinking": ["x"], "xml_tools": []}}, []),
        ({"chat_template_kwargs": ["tools"]}, []),
    ],
)
def test_tools_count_wherever_an_engine_is_offered_them(given: dict[str, Any], names: list[tuple[str, ...]]) -> None:
    assert [use.names for use in offered(fields(**given)) if use.kind == "definition"] == names
    escaped = {name: Raw(bytes(value).replace(b"tools", b"t\\u006fols")) for name, value in fields(**given).items()}
    assert [use.names for use in offered(escaped)] == names


def test_tools_that_only_a_template_can_read_have_no_name() -> None:
    (use,) = offered(fields(chat_template_kwargs={"python_tools": "def shell(command):\n    ..."}))
    assert use.unreadable
    with pytest.raises(RequestError) as refused:
        offered(fields(chat_template_kwargs={"tools": [{"function": "shell"}]}))
    assert refused.value.param == "chat_template_kwargs.tools[0]"


def test_a_request_whose_tools_cannot_be_read_or_are_too_many_is_refused() -> None:
    with pytest.raises(RequestError) as refused:
        in_request(fields(tools=5))
    assert refused.value.param == "tools"
    with pytest.raises(RequestError):
        in_request(fields(tools=[{"name": "a"}] * (MAX_CALLS + 1)))
