"""Every text of a message's request is read by guardrails, and may be rewritten; what is in base64 is not."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from gateway.core.errors import GuardrailViolation
from gateway.core.types import InferenceRequest
from gateway.wire import table
from policies.loops import measured

SECRET = "vermilion"
PNG = "iVBORw0KGgo="


def parsed(**body: Any) -> InferenceRequest:
    whole = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **body}
    return table.parse(b"/v1/messages", json.dumps(whole).encode(), {})


def block(**more: Any) -> dict[str, Any]:
    role = "assistant" if more["type"] in ("tool_use", "thinking") else "user"
    return {"messages": [{"role": role, "content": [{"type": "text", "text": "a"}, more]}, {"role": "user", "content": "b"}]}


TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
PLACES: dict[str, dict[str, Any]] = {
    "a string": {"messages": [{"role": "user", "content": SECRET}]},
    "a block": {"messages": [{"role": "user", "content": [{"type": "text", "text": SECRET}]}]},
    "system": {"system": SECRET},
    "a block of system": {"system": [{"type": "text", "text": SECRET}]},
    "an input": block(type="tool_use", id="t", name="f", input={"deep": [{"data": SECRET}]}),
    "a result": block(type="tool_result", tool_use_id="t", content=SECRET),
    "a block of a result": block(type="tool_result", tool_use_id="t", content=[{"type": "text", "text": SECRET}]),
    "a thought": block(type="thinking", thinking=SECRET, signature="c2ln"),
    "a signature that is none": block(type="thinking", thinking="x", signature=f"not base64: {SECRET}"),
    "a document": block(type="document", source={"type": "text", "media_type": "text/plain", "data": SECRET + "abc"}),
    "a title": block(type="document", title=SECRET, source={"type": "base64", "media_type": "application/pdf", "data": PNG}),
    "content of a document": block(type="document", source={"type": "content", "content": [{"type": "text", "text": SECRET}]}),
    "a result of a search": block(type="search_result", title="t", source="s", content=[{"type": "text", "text": SECRET}]),
    "a server's result": block(type="web_search_tool_result", tool_use_id="t", content=[{"type": "web_search_result", "title": SECRET}]),
    "a description": {"tools": [{**TOOL, "description": SECRET}]},
    "a schema": {"tools": [{**TOOL, "input_schema": {"type": "object", "properties": {"x": {"enum": [SECRET]}}}}]},
    "a stop sequence": {"stop_sequences": [SECRET]},
    "metadata": {"metadata": {"user_id": SECRET}},
    "a compaction": {"context_management": {"edits": [{"type": "compact_20260112", "instructions": SECRET}]}},
    "a cache": {"cache_control": {"type": "ephemeral", "ttl": SECRET}},
    "a service": {"service_tier": SECRET},
}


def test_a_number_that_a_model_wrote_is_read_and_rewritten() -> None:
    given = {"card": 4111111111111111, "deep": [{"amount": 2.5}], "yes": True}
    request = parsed(**block(type="tool_use", id="t", name="f", input=given))
    found = request.api.texts(request)
    assert "4111111111111111" in found.texts and "2.5" in found.texts and len(found.sources()) == len(found.texts)
    found.replace(["[CARD]" if text == "4111111111111111" else text for text in found.texts])
    found.write()
    assert json.loads(bytes(request.fields["messages"]))[0]["content"][1]["input"] == {**given, "card": "[CARD]"}


@pytest.mark.parametrize("place", PLACES)
def test_a_text_is_read_and_rewritten_at(place: str) -> None:
    request = parsed(**PLACES[place])
    found = request.api.texts(request)
    assert any(SECRET in text for text in found.texts) and len(found.sources()) == len(found.texts)
    found.replace([text.replace(SECRET, "***") for text in found.texts])
    found.write()
    for foreign in (False, True):
        request.foreign = foreign and "server" not in place
        assert SECRET.encode() not in request.api.target(request, None)[1]


@pytest.mark.parametrize("place", ["a name of an input", "a name of a property"])
def test_a_name_cannot_be_rewritten(place: str) -> None:
    named = {SECRET: 1} if place == "a name of an input" else {"type": "object", "properties": {SECRET: {}}}
    request = parsed(
        **(block(type="tool_use", id="t", name="f", input=named) if "input" in place else {"tools": [{**TOOL, "input_schema": named}]})
    )
    found = request.api.texts(request)
    with pytest.raises(GuardrailViolation):
        found.replace([text.replace(SECRET, "***") for text in found.texts])


def test_what_is_in_base64_is_not_read() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "AKIAZ7Q3XW5T2VN4RKPM"}
    request = parsed(
        messages=[{"role": "user", "content": [image]}, {"role": "assistant", "content": [thought]}, {"role": "user", "content": "x"}]
    )
    assert request.api.texts(request).texts == ["hm", "x"]


def test_a_document_of_text_in_base64_is_read_and_cannot_be_rewritten() -> None:
    document = {"type": "document", "source": {"type": "base64", "media_type": "text/plain", "data": b64encode(SECRET.encode()).decode()}}
    request = parsed(messages=[{"role": "user", "content": [document]}])
    found = request.api.texts(request)
    assert found.texts == [SECRET]
    with pytest.raises(GuardrailViolation):
        found.replace(["***"])


def test_who_said_it() -> None:
    request = parsed(system="s", **block(type="tool_result", tool_use_id="t", content="r"))
    found = request.api.texts(request)
    assert dict(zip(found.texts, found.sources(), strict=True)) == {"s": "system", "a": "user", "r": "tool", "t": "tool", "b": "user"}


def thought(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "c2ln"}


def written(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


SOURCE = {"type": "text", "media_type": "text/plain", "data": "falcon"}


@pytest.mark.parametrize(
    "blocks",
    [
        [thought("a red"), thought("falcon")],
        [thought("a red"), written("XXX"), thought("falcon")],
        [written("a red"), thought("XXX"), written("falcon")],
        [written("a red"), {"type": "document", "source": SOURCE}],
        [{"type": "document", "title": "a red", "source": SOURCE}],
        [written("a red"), {"type": "document", "source": {"type": "content", "content": [written("falcon")]}}],
        [{"type": "search_result", "title": "a red", "source": "falcon", "content": [written("x")]}],
        [written("a red"), {"type": "tool_result", "tool_use_id": "t", "content": [written("XXX")]}, written("falcon")],
    ],
)
def test_blocks_are_read_as_the_translation_puts_them_together(blocks: list[dict[str, Any]]) -> None:
    request = parsed(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": blocks}])
    found = request.api.texts(request)
    assert any("a redfalcon" in text for text in found.texts) and any("a red\nfalcon" in text for text in found.texts)
    assert len(found.sources()) == len(found.texts)
    found.replace([text.replace("red", "[X]") for text in found.texts])
    found.write()
    assert json.loads(bytes(request.fields["messages"]))[1]["content"] == json.loads(json.dumps(blocks).replace("red", "[X]"))
    with pytest.raises(GuardrailViolation, match="split over content parts"):
        found.replace([text.replace("redfalcon", "[X]") for text in found.texts])


def test_nesting_multiplies_nothing() -> None:
    inner: list[dict[str, Any]] = [written("x" * 1000), written("y")]
    for _ in range(20):
        inner = [{"type": "search_result", "title": "t", "source": "s", "content": inner}]
    request = parsed(messages=[{"role": "user", "content": inner}])
    assert sum(map(len, request.api.texts(request).texts)) < 10_000


def test_reasoning_in_a_row_is_read_as_one_text() -> None:
    items = [{"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": text}]} for text in ("a red", " falcon", "x")]
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "a red"}, {"type": "refusal", "refusal": " falcon"}]}
    for given in (items[:2], [said]):
        body = {"model": "m", "input": [*given, {"role": "user", "content": "b"}, items[2]]}
        request = table.parse(b"/v1/responses", json.dumps(body).encode(), {})
        found = request.api.texts(request)
        assert "a red falcon" in found.texts and len(found.sources()) == len(found.texts)
        found.replace([text.replace("red", "[X]") for text in found.texts])
        with pytest.raises(GuardrailViolation):
            found.replace([text.replace("red falcon", "[X]") for text in found.texts])


def test_blocks_of_one_message_are_one_text() -> None:
    request = parsed(messages=[{"role": "user", "content": [{"type": "text", "text": "verm"}, {"type": "text", "text": "ilion"}]}])
    assert request.api.texts(request).texts == ["verm\nilion", "vermilion"]


def test_tools_and_results_for_policies() -> None:
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read_file", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "r"}]}]}
    tools = [TOOL, {"type": "bash_20250124", "name": "bash"}]
    request = parsed(messages=[{"role": "user", "content": "x"}, called, result], tools=tools)
    assert request.api.tools(request) == ["f", "bash"]
    uses = [(use.kind, use.name, use.arguments, use.place) for use in request.api.tool_uses(request)]
    assert uses == [
        ("definition", "f", "", "tools[0]"),
        ("definition", "bash", "", "tools[1]"),
        ("result", "read_file", "r", "messages[2].content[0]"),
    ]


def test_limits_on_loops_see_the_calls_of_every_turn() -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "ok"}
    turns: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    for _ in range(3):
        turns += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result, {"type": "text", "text": "go on"}]}]
    request = table.parse(b"/v1/messages", json.dumps({"model": "m", "max_tokens": 1, "messages": turns}).encode(), {})
    assert measured(request.api.turns(request)) == (3, 3)
    items = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]
    items += [{"type": "function_call_output", "call_id": "c", "output": ""}]
    body = {"model": "m", "input": [{"role": "user", "content": "hi"}, *items * 3]}
    request = table.parse(b"/v1/responses", json.dumps(body).encode(), {})
    assert measured(request.api.turns(request)) == (3, 3)
