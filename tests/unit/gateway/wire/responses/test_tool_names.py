"""Tools of namespaces: one function each in a chat, and back, in whole answers and in streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.core.errors import RequestError
from gateway.core.types import InferenceRequest
from gateway.wire.responses import chat
from gateway.wire.responses.api import APIS
from gateway.wire.responses.calls import in_request
from gateway.wire.responses.chat_stream import ChatReader
from gateway.wire.responses.structure import settle_unknown
from gateway.wire.responses.tool_names import MAX_NAME, OfferedTool, ToolNames
from gateway.wire.responses.views import Tool
from gateway.wire.table import parse

PATH = b"/v1/responses"
API = APIS[0]
NAME = st.text("ab_", min_size=1, max_size=40)


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {"type": "object", "properties": {"file_url": {"type": "string"}}}, **more}


def space(name: str, *tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "namespace", "name": name, "tools": list(tools), **more}


def request_of(**more: Any) -> InferenceRequest:
    return parse(PATH, json.dumps({"model": "m", "input": "hi", **more}).encode(), {})


def chat_of(**more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(chat.request_fields(request_of(**more).fields, False)))
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in found["tools"]]


@given(st.lists(NAME, max_size=4), st.lists(st.tuples(NAME, st.lists(NAME, max_size=4)), max_size=4), st.lists(st.tuples(NAME, NAME)))
def test_no_two_tools_have_one_name_and_each_is_found_by_its_own(
    bare: list[str], spaces: list[tuple[str, list[str]]], mentioned: list[tuple[str, str]]
) -> None:
    inner = {(name, one): "custom" if len(one) % 2 else "function" for name, tools in spaces for one in tools}
    tools = [Tool("function", name) for name in bare]
    tools += [Tool("namespace", name, tools=[Tool(inner[name, one], one) for one in found]) for name, found in spaces]
    known = ToolNames(tools)
    said = {("", name): known.in_chat("", name) for name in bare} | {tool: known.in_chat(*tool) for tool in [*inner, *mentioned]}
    assert len(set(said.values())) == len(said)
    for (name, one), made in said.items():
        assert known.of(made) == OfferedTool(name, one, inner.get((name, one)) == "custom")
        assert not name or len(made) <= MAX_NAME
    assert said == {tool: known.in_chat(*tool) for tool in said}


def test_the_tools_of_a_namespace_are_functions_named_after_both() -> None:
    tools = [
        function("read"),
        space("files", function("read", description="Reads."), {"type": "custom", "name": "patch"}, description="Files."),
        space("mcp__a_long_name_of_a_server_that_somebody_gave_it", function("and_a_tool_with_a_long_name")),
    ]
    found = chat_of(tools=tools)
    first, second, third, fourth = names(found)
    assert (first, second, third) == ("read", "files__read", "files__patch")
    assert len(fourth) == MAX_NAME and fourth.startswith("mcp__a_long_name_of_a_server_")
    described = [tool["function"].get("description") for tool in found["tools"]]
    assert described == [None, "Files.\n\nReads.", None, None]
    assert found["tools"][1]["function"]["parameters"] == tools[0]["parameters"]
    calls = [
        {"type": "function_call", "call_id": "a", "namespace": "files", "name": "read", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "read", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c", "namespace": "files", "name": "patch", "input": "x"},
        {"type": "function_call", "call_id": "d", "namespace": "gone", "name": "tool", "arguments": "{}"},
    ]
    (spoken,) = chat_of(tools=tools, input=calls)["messages"]
    assert [call["function"]["name"] for call in spoken["tool_calls"]] == ["files__read", "read", "files__patch", "gone__tool"]


def test_a_choice_can_name_a_tool_of_a_namespace_or_all_of_it() -> None:
    tools = [function("read"), space("files", function("read"), function("list"), description="Files."), space("other", function("read"))]
    one = {"type": "function", "name": "read", "namespace": "files"}
    assert chat_of(tools=tools, tool_choice=one)["tool_choice"] == {"type": "function", "function": {"name": "files__read"}}

    def allowed(*named: dict[str, Any]) -> dict[str, Any]:
        return chat_of(tools=tools, tool_choice={"type": "allowed_tools", "mode": "auto", "tools": list(named)})

    assert names(allowed(one)) == ["files__read"]
    assert names(allowed({"type": "namespace", "name": "files"})) == ["files__read", "files__list"]
    assert names(allowed({"type": "function", "name": "read"})) == ["read"]
    found = allowed({**one, "name": "list"})
    assert names(found) == ["files__list"] and found["tools"][0]["function"]["description"] == "Files."


def answered(request: InferenceRequest, *calls: tuple[str, str]) -> list[dict[str, Any]]:
    """The items of an answer with these calls; whole and in a stream they are the same."""
    called = [{"index": at, "id": f"c{at}", "function": {"name": name, "arguments": given}} for at, (name, given) in enumerate(calls)]
    choice = {"index": 0, "finish_reason": "tool_calls", "message": {"content": None, "tool_calls": called}}
    whole = json.loads(chat.response_of(request, json.dumps({"id": "chatcmpl-1", "choices": [choice]}).encode()))["output"]
    reader = ChatReader(request)
    events = b""
    for call in called:
        chunk = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
        events += reader.read(b"data: %b\n\n" % json.dumps(chunk).encode())
    events += reader.read(b'data: {"choices":[{"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n')
    documents = [json.loads(event.partition(b"data: ")[2]) for event in events.split(b"\n\n")[:-1]]
    streamed = documents[-1]["response"]["output"]
    begun = [one["item"] for one in documents if one["type"] == "response.output_item.added"]
    found: list[dict[str, Any]] = [{key: value for key, value in item.items() if key != "id"} for item in whole]
    assert [{key: value for key, value in item.items() if key != "id"} for item in streamed] == found
    assert [(one.get("namespace"), one["name"]) for one in begun] == [(one.get("namespace"), one["name"]) for one in found]
    done = [one["name"] for one in documents if one["type"] == "response.function_call_arguments.done"]
    assert done == [one["name"] for one in found if one["type"] == "function_call"]
    return found


def test_calls_go_back_to_their_namespaces() -> None:
    tools = [function("files__read"), space("files", function("read"), {"type": "custom", "name": "patch"})]
    request = request_of(tools=tools, stream=True)
    _, clash, _ = names(chat_of(tools=tools))
    assert clash.startswith("files__read_") and clash != "files__read"
    items = answered(request, ("files__read", "{}"), (clash, '{"a":1}'), ("files__patch", '{"input":"x"}'), ("made_up", "{}"))
    assert [(item["type"], item.get("namespace"), item["name"]) for item in items] == [
        ("function_call", None, "files__read"),
        ("function_call", "files", "read"),
        ("custom_tool_call", "files", "patch"),
        ("function_call", None, "made_up"),
    ]
    assert items[1]["arguments"] == '{"a":1}' and items[2]["input"] == "x"


def test_a_tool_that_is_known_by_its_type_hides_behind_no_name() -> None:
    fields = {"input": Raw(b'"x"'), "tools": Raw(b'[{"type":"shell","name":"weather"},{"type":"custom","name":"a"},{"type":"shell"},{}]')}
    assert [use.names for use in in_request(fields)] == [("weather", "shell"), ("a",), ("shell",), ("",)]


def test_policies_see_them_under_both_names() -> None:
    called = {"type": "function_call", "call_id": "a", "namespace": "files", "name": "drop", "arguments": "{}"}
    told = {"type": "function_call_output", "call_id": "a", "output": "gone"}
    request = request_of(tools=[space("files", function("read"))], input=[called, told])
    assert API.tools(request) == ["read", "files.read"]
    assert [(use.kind, use.names) for use in API.tool_uses(request)] == [
        ("definition", ("read", "files.read")),
        ("result", ("drop", "files.drop")),
    ]
    texts = API.texts(request_of(tools=[space("one two", function("read", description="of my bank"), description="of my home")]))
    assert {"one two", "of my bank", "of my home"} <= set(texts.texts)


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        (space(""), "tools[0].name"),
        ({"type": "namespace", "name": "n"}, "tools[0].tools"),
        (space("n", space("m")), "tools[0].tools[0].type"),
        (space("n", {"type": "web_search"}), "tools[0].tools[0].type"),
        (space("n", {"type": "mcp", "server_url": "http://10.0.0.1"}), "tools[0].tools[0].type"),
    ],
)
def test_a_namespace_that_cannot_be_one_is_refused(tool: dict[str, Any], place: str) -> None:
    with pytest.raises(RequestError) as refused:
        request_of(tools=[tool])
    assert refused.value.param == place


def test_unknown_fields_are_found_inside() -> None:
    tools = [space("n", function("f", novel=1), {"type": "custom", "name": "g"}, also=2)]
    request = request_of(tools=tools)
    assert set(request.unknown) == {"tools[0].also", "tools[0].tools[0].novel"}
    with pytest.raises(RequestError):
        settle_unknown(request.fields, request.unknown, "refuse")
    settle_unknown(request.fields, request.unknown, "drop")
    (kept,) = json.loads(bytes(request.fields["tools"]))
    assert sorted(kept) == ["name", "tools", "type"] and "novel" not in kept["tools"][0]


def test_what_a_client_says_of_itself_reaches_no_engine() -> None:
    request = request_of(client_metadata={"x-codex-installation-id": "1"})
    assert not request.unknown and "client_metadata" not in request.fields


CODEX: dict[str, Any] = json.loads((Path(__file__).parent / "codex.json").read_text(encoding="utf-8"))
"""A request of Codex 0.169, with its texts cut short."""


def test_what_codex_sends_is_taken_translated_and_passed() -> None:
    called = {
        "type": "function_call",
        "id": "fc_1",
        "name": "close_agent",
        "namespace": "multi_agent_v1",
        "arguments": "{}",
        "call_id": "c",
    }
    told = {"type": "function_call_output", "call_id": "c", "output": "closed"}
    request = request_of(**{**CODEX, "input": [*CODEX["input"], called, told]})
    assert not request.unknown
    passed = json.loads(API.target(request, None)[1])
    assert passed["tools"] == CODEX["tools"] and passed["input"][-2:] == [called, told]
    assert set(CODEX) - set(passed) == {"client_metadata"}
    request.foreign = True
    asked = json.loads(API.target(request, None)[1])
    assert names(asked) == ["exec_command", "multi_agent_v1__close_agent", "multi_agent_v1__resume_agent"]
    assert [message["role"] for message in asked["messages"]] == ["system", "system", "user", "user", "assistant", "tool"]
    items = answered(request, ("multi_agent_v1__close_agent", '{"target":"a"}'))
    assert [(item["namespace"], item["name"]) for item in items] == [("multi_agent_v1", "close_agent")]
