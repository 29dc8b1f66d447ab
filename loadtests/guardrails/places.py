"""Where a text can stand in the requests and the answers of every API, and the ways to write it. For loadtests.guardrails.bypass.

In a template "@T" is the text, and "@J" is JSON that has the text in it, as the arguments of a tool's call are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Document = dict[str, Any]
USER = {"role": "user", "content": "hi"}
CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def escaped(text: str) -> str:
    """Every character as an escape of JSON."""
    return "".join(f"\\u{unit:04x}" for unit in units(text))


def units(text: str) -> list[int]:
    data = text.encode("utf-16-be", "surrogatepass")
    return [data[at] * 256 + data[at + 1] for at in range(0, len(data), 2)]


def first_escaped(text: str) -> str:
    return escaped(text[0]) + json.dumps(text[1:], ensure_ascii=False)[1:-1]


def last_escaped(text: str) -> str:
    return json.dumps(text[:-1], ensure_ascii=False)[1:-1] + escaped(text[-1])


def plainly(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


INNER: dict[str, Callable[[str], str]] = {
    "JSON": lambda text: f'{{"a": "{plainly(text)}"}}',
    "JSON, escaped": lambda text: f'{{"a": "{escaped(text)}"}}',
    "JSON, first sign escaped": lambda text: f'{{"a": 1, "b": ["x\\ny", "{first_escaped(text)}"]}}',
    "JSON, last sign escaped": lambda text: f'{{"a": "{last_escaped(text)}"}}',
    "JSON, name": lambda text: f'{{"{first_escaped(text)}": 1}}',
    "JSON in JSON": lambda text: json.dumps({"a": json.dumps({"b": text}, ensure_ascii=False)}, ensure_ascii=False),
    "JSON in JSON, escaped": lambda text: json.dumps({"a": f'{{"b": "{escaped(text)}"}}'}),
    "JSON in JSON in JSON, escaped": lambda text: json.dumps([json.dumps({"a": f'["{first_escaped(text)}"]'})]),
    "a list": lambda text: f' \n["{first_escaped(text)}"]',
}
"""The ways to write JSON with a text in it."""


def wide(text: str) -> str:
    return "".join(chr(ord(sign) + 0xFEE0) if "!" <= sign <= "~" else sign for sign in text)


FLAG = "\U0001f3f4"


def tagged(text: str) -> str:
    """In letters of the tag block."""
    return "".join(chr(0xE0000 + ord(sign)) for sign in text)


def joined(text: str, sign: str) -> str:
    return text[:3] + sign + text[3:]


PHRASE, MAIL, CARD, SECRET = "project aurora", "bob.quux@example.com", "4111 1111 1111 1111", "AKIAZ7Q3XW5T2VN4RKPM"
SPELLINGS: dict[str, tuple[str, str]] = {
    "phrase": (PHRASE, PHRASE),
    "capitals": (PHRASE.upper(), PHRASE),
    "full width": (wide(PHRASE), PHRASE),
    "zero width": (joined(PHRASE, "\u200b"), PHRASE),
    "soft hyphen": (joined(PHRASE, "\u00ad"), PHRASE),
    "control": (joined(PHRASE, "\x01"), PHRASE),
    "null": (joined(PHRASE, "\x00"), PHRASE),
    "tab": (PHRASE.replace(" ", "\t"), PHRASE),
    "line": (PHRASE.replace(" ", "\n"), PHRASE),
    "spaces": (PHRASE.replace(" ", "\u00a0 "), PHRASE),
    "tags": (tagged(PHRASE), PHRASE),
    "tags behind flags": ("".join(f"{FLAG}{tagged(PHRASE[at : at + 3])}" for at in range(0, len(PHRASE), 3)), PHRASE),
    "letters of mathematics": ("\U0001d429" + PHRASE[1:], PHRASE),
    "address": (MAIL, MAIL),
    "address, full width": (wide(MAIL), MAIL),
    "address, zero width": (joined(MAIL, "\u200b"), MAIL),
    "address, delete": (joined(MAIL, "\x7f"), MAIL),
    "card": (CARD, CARD),
    "card, full width": (wide(CARD), CARD),
    "key": (SECRET, SECRET),
}
"""Name -> how it is written, what it says."""
FEW = ("phrase", "line", "address", "key")
"""Spellings for what is tried in many other ways."""


def call(name: str = "f", arguments: str = "{}") -> Document:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(*messages: Document, **more: Any) -> tuple[str, Document]:
    return CHAT, {"messages": list(messages) or [USER], **more}


def asked(content: Any, **more: Any) -> tuple[str, Document]:
    return chat({"role": "user", "content": content, **more})


def called(**function: Any) -> tuple[str, Document]:
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    return chat(USER, {"role": "assistant", "tool_calls": [call(**function)]}, result)


def tool(**function: Any) -> list[Document]:
    return [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, **function}}]


def message(*messages: Document, **more: Any) -> tuple[str, Document]:
    return MESSAGES, {"messages": list(messages) or [USER], "max_tokens": 9, **more}


def block(**one: Any) -> tuple[str, Document]:
    return message(USER, {"role": "assistant" if one["type"] in ("tool_use", "thinking") else "user", "content": [one]}, USER)


def response(*items: Any, **more: Any) -> tuple[str, Document]:
    return RESPONSES, {"input": list(items) or "hi", **more}


def output(text: str) -> Document:
    return {"type": "function_call_output", "call_id": "c", "output": text}


FUNCTION_CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
REQUESTS: dict[str, tuple[str, Document]] = {
    "chat, content": asked("@T"),
    "chat, JSON as content": asked("@J"),
    "chat, part": asked([{"type": "text", "text": "@T"}]),
    "chat, two parts": asked([{"type": "text", "text": "@T"}, {"type": "text", "text": "@T"}]),
    "chat, name of a file": asked([{"type": "text", "text": "hi"}, {"type": "file", "file": {"filename": "@T", "file_data": "aGk="}}]),
    **{f"chat, {role}": chat({"role": role, "content": "@T"}, USER) for role in ("system", "developer", "assistant")},
    "chat, role": chat({"role": "@T", "content": "x"}, USER),
    "chat, kind of a part": asked([{"type": "@T", "text": "x"}]),
    "chat, name": asked("hi", name="@T"),
    "chat, refusal": chat(USER, {"role": "assistant", "content": "", "refusal": "@T"}, USER),
    "chat, reasoning": chat(USER, {"role": "assistant", "content": "x", "reasoning_content": "@T"}, USER),
    "chat, arguments": called(arguments="@J"),
    "chat, name of a call": called(name="@T"),
    "chat, old call": chat(USER, {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "@J"}}, USER),
    "chat, input of a custom tool": chat(
        USER, {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "@T"}}]}, USER
    ),
    "chat, result": chat(USER, {"role": "assistant", "tool_calls": [call()]}, {"role": "tool", "tool_call_id": "c", "content": "@T"}),
    "chat, JSON as result": chat(
        USER, {"role": "assistant", "tool_calls": [call()]}, {"role": "tool", "tool_call_id": "c", "content": "@J"}
    ),
    "chat, tool's name": chat(tools=tool(name="@T")),
    "chat, tool's description": chat(tools=tool(description="@T")),
    "chat, parameter's description": chat(tools=tool(parameters={"type": "object", "properties": {"a": {"description": "@T"}}})),
    "chat, parameter's name": chat(tools=tool(parameters={"type": "object", "properties": {"@T": {"type": "string"}}})),
    "chat, parameter's values": chat(tools=tool(parameters={"type": "object", "properties": {"a": {"enum": ["@T"]}}})),
    "chat, functions": chat(functions=[{"name": "f", "description": "@T", "parameters": SCHEMA}]),
    "chat, chosen tool": chat(tools=tool(), tool_choice={"type": "function", "function": {"name": "@T"}}),
    "chat, schema": chat(response_format={"type": "json_schema", "json_schema": {"name": "f", "schema": {"description": "@T", **SCHEMA}}}),
    "chat, schema's name": chat(response_format={"type": "json_schema", "json_schema": {"name": "@T", "schema": SCHEMA}}),
    "chat, prediction": chat(prediction={"type": "content", "content": "@T"}),
    "chat, template's arguments": chat(chat_template_kwargs={"tone": "@T"}),
    "chat, template's argument's name": chat(chat_template_kwargs={"@T": 1}),
    "chat, documents": chat(documents=[{"title": "@T", "text": "x"}]),
    "chat, stop": chat(stop=["@T"]),
    "chat, grammar": chat(guided_grammar="@T"),
    "chat, choices": chat(guided_choice=["@T"]),
    "chat, metadata": chat(metadata={"a": "@T"}),
    "chat, unknown field": chat(novel={"deep": ["@T"]}),
    "chat, unknown field's name": chat(novel={"@T": 1}),
    "chat, name of a field": chat(**{"@T": 1}),
    "chat, unknown field of a message": asked("hi", novel="@T"),
    "chat, count": (f"{CHAT}/input_tokens", {"messages": [{"role": "user", "content": "@T"}]}),
    "completions, prompt": (COMPLETIONS, {"prompt": "@T"}),
    "completions, JSON": (COMPLETIONS, {"prompt": "@J"}),
    "completions, list": (COMPLETIONS, {"prompt": ["x", "@T"]}),
    "completions, suffix": (COMPLETIONS, {"prompt": "x", "suffix": "@T"}),
    "engines, prompt": ("/v1/engines/MODEL/completions", {"prompt": "@T"}),
    "embeddings, input": ("/v1/embeddings", {"input": "@T"}),
    "embeddings, list": ("/v1/embeddings", {"input": ["x", "@T"]}),
    "classify, input": ("/v1/classify", {"input": ["@T"]}),
    "rerank, query": ("/v1/rerank", {"query": "@T", "documents": ["a"]}),
    "rerank, document": ("/v2/rerank", {"query": "q", "documents": ["a", "@T"]}),
    "rerank, text of a document": ("/rerank", {"query": "q", "documents": [{"text": "@T", "title": "x"}]}),
    "score, first": ("/v1/score", {"text_1": "@T", "text_2": ["a"]}),
    "score, second": ("/v1/score", {"text_1": "a", "text_2": ["a", "@T"]}),
    "images, prompt": ("/v1/images/generations", {"prompt": "@T"}),
    "images, negative prompt": ("/v1/images/generations", {"prompt": "x", "negative_prompt": "@T"}),
    "speech, input": ("/v1/audio/speech", {"input": "@T", "voice": "alloy"}),
    "speech, instructions": ("/v1/audio/speech", {"input": "x", "voice": "alloy", "instructions": "@T"}),
    "messages, content": message({"role": "user", "content": "@T"}),
    "messages, system": message(system="@T"),
    "messages, blocks of system": message(system=[{"type": "text", "text": "@T"}]),
    "messages, text": block(type="text", text="@T"),
    "messages, input": block(type="tool_use", id="t", name="f", input={"a": "@T", "b": "@J"}),
    "messages, name of an input": block(type="tool_use", id="t", name="f", input={"@T": 1}),
    "messages, thought": block(type="thinking", thinking="@T", signature="c2ln"),
    "messages, document": block(type="document", source={"type": "text", "media_type": "text/plain", "data": "@T"}),
    "messages, title": block(type="document", title="@T", source={"type": "text", "media_type": "text/plain", "data": "x"}),
    "messages, result": message(
        USER,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "@J"}]},
    ),
    "messages, object as result": block(type="tool_result", tool_use_id="t", content={"a": "@T"}),
    "messages, tool's description": message(tools=[{"name": "f", "description": "@T", "input_schema": SCHEMA}]),
    "messages, stop": message(stop_sequences=["@T"]),
    "messages, count": ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "@T"}]}),
    "responses, input": (RESPONSES, {"input": "@T"}),
    "responses, instructions": response(instructions="@T"),
    "responses, message": response({"role": "user", "content": "@T"}),
    "responses, part": response({"role": "user", "content": [{"type": "input_text", "text": "@T"}]}),
    "responses, arguments": response({**FUNCTION_CALL, "arguments": "@J"}, output("x")),
    "responses, name of a call": response({**FUNCTION_CALL, "name": "@T"}, output("x")),
    "responses, output": response(FUNCTION_CALL, output("@J")),
    "responses, parts of an output": response(FUNCTION_CALL, {**output("x"), "output": [{"type": "input_text", "text": "@T"}]}),
    "responses, custom call": response(
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "@T"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
    ),
    "responses, reasoning": response({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "@T"}]}, USER),
    "responses, tool's description": response(tools=[{"type": "function", "name": "f", "description": "@T", "parameters": SCHEMA}]),
    "responses, schema": response(text={"format": {"type": "json_schema", "name": "f", "schema": {"description": "@T", **SCHEMA}}}),
    "responses, metadata": response(metadata={"a": "@T"}),
    "OIP, element": ("/v2/models/MODEL/infer", {"inputs": [{"name": "x", "shape": [2], "datatype": "BYTES", "data": ["a", "@T"]}]}),
    "OIP, JSON": ("/v2/models/MODEL/infer", {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["@J"]}]}),
    "OIP, identifier": (
        "/v2/models/MODEL/infer",
        {"id": "@T", "inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
    ),
    "OIP, parameter": (
        "/v2/models/MODEL/infer",
        {"parameters": {"a": "@T"}, "inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
    ),
}
"""Where -> path, body without its model."""


def answered(one: Document, **choice: Any) -> Document:
    return {
        "id": "i",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x ", **one}, "finish_reason": "stop", **choice}],
    }


def said(*blocks: Document, **more: Any) -> Document:
    return {"id": "i", "type": "message", "role": "assistant", "model": "m", "content": list(blocks), "stop_reason": "end_turn", **more}


def ended(*items: Document, **more: Any) -> Document:
    return {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": list(items), **more}


def worded(kind: str = "output_text", field: str = "text") -> Document:
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": kind, field: "@T"}]}


CHATS: dict[str, Document] = {
    "content": answered({"content": "@T"}),
    "JSON as content": answered({"content": "@J"}),
    "parts": answered({"content": [{"type": "text", "text": "@T"}]}),
    "reasoning": answered({"reasoning_content": "@T"}),
    "refusal": answered({"refusal": "@T"}),
    "arguments": answered({"tool_calls": [call(arguments="@J")]}),
    "name of a call": answered({"tool_calls": [call(name="@T")]}),
    "input of a custom tool": answered({"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f", "input": "@T"}}]}),
    "old call": answered({"function_call": {"name": "f", "arguments": "@J"}}),
    "transcript": answered({"audio": {"id": "a", "data": "", "expires_at": 1, "transcript": "@T"}}),
    "unknown field": answered({"thoughts": {"deep": ["@T", "@J"]}}),
    "name of a field": answered({"thoughts": {"@T": 1}}),
    "name of a field of the message": answered({"@T": 1}),
    "log probabilities": answered({}, logprobs={"content": [{"token": "@T", "logprob": -1, "bytes": None, "top_logprobs": []}]}),
    "beside the choices": {**answered({}), "metadata": {"a": "@T"}, "output_text": "@T"},
}
_DROPPED = ("input of a custom tool", "name of a field", "name of a field of the message", "old call", "transcript", "unknown field")
CLOSED = frozenset(
    {
        *(f"{api}, {name}" for api in ("messages", "responses") for name in _DROPPED),
        *(f"{api}, {name}" for api in ("chat", "messages", "responses") for name in ("beside the choices", "log probabilities")),
        *(f"messages, object as result ({engine})" for engine in ("in-chats", "in-speaks")),
        *("messages passed, around", "responses passed, around", "responses, metadata (in-chats)", "responses, reasoning (in-chats)"),
    }
)
"""Where nothing passes, not even a harmless text: what other APIs have no place for, and what guardrails remove unread."""
ANSWERS: dict[str, tuple[str, str, Document, Document]] = {
    **{f"chat, {name}": ("chats", *chat(), one) for name, one in CHATS.items()},
    **{f"messages, {name}": ("chats", *message(), one) for name, one in CHATS.items()},
    **{f"responses, {name}": ("chats", *response(), one) for name, one in CHATS.items()},
    "completions, text": ("chats", COMPLETIONS, {"prompt": "x"}, {"choices": [{"index": 0, "text": "@T"}]}),
    "completions, JSON": ("chats", COMPLETIONS, {"prompt": "x"}, {"choices": [{"index": 0, "text": "@J"}]}),
    "rerank, document": (
        "chats",
        "/v1/rerank",
        {"query": "q", "documents": ["a"]},
        {"results": [{"index": 0, "relevance_score": 0.5, "document": {"text": "@T"}}]},
    ),
    "images, prompt": (
        "chats",
        "/v1/images/generations",
        {"prompt": "x"},
        {"created": 1, "data": [{"b64_json": "aGk=", "revised_prompt": "@T"}]},
    ),
    "messages passed, text": ("speaks", *message(), said({"type": "text", "text": "@T"})),
    "messages passed, JSON": ("speaks", *message(), said({"type": "text", "text": "@J"})),
    "messages passed, thought": ("speaks", *message(), said({"type": "thinking", "thinking": "@T", "signature": "c2ln"})),
    "messages passed, input": ("speaks", *message(), said({"type": "tool_use", "id": "t", "name": "f", "input": {"a": "@T", "b": "@J"}})),
    "messages passed, identifier in an input": (
        "speaks",
        *message(),
        said({"type": "tool_use", "id": "t", "name": "f", "input": {"id": "@T"}}),
    ),
    "messages passed, name of an input": ("speaks", *message(), said({"type": "tool_use", "id": "t", "name": "f", "input": {"@T": 1}})),
    "messages passed, stop sequence": ("speaks", *message(), said({"type": "text", "text": "x"}, stop_sequence="@T")),
    "messages passed, unknown block": ("speaks", *message(), said({"type": "novel", "deep": [{"x": "@T"}]})),
    "messages passed, around": ("speaks", *message(), said({"type": "text", "text": "x"}, container={"id": "@T"})),
    "responses passed, text": ("speaks", *response(), ended(worded())),
    "responses passed, refusal": ("speaks", *response(), ended(worded("refusal", "refusal"))),
    "responses passed, arguments": (
        "speaks",
        *response(),
        ended({**FUNCTION_CALL, "id": "fc_1", "status": "completed", "arguments": "@J"}),
    ),
    "responses passed, custom call": (
        "speaks",
        *response(),
        ended({"type": "custom_tool_call", "id": "ct_1", "call_id": "c", "name": "f", "input": "@T", "status": "completed"}),
    ),
    "responses passed, reasoning": (
        "speaks",
        *response(),
        ended({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "@T"}]}),
    ),
    "responses passed, around": ("speaks", *response(), ended(metadata={"a": "@T"}, instructions="@T")),
}
"""Where -> engine, path and body of the request, the engine's answer."""
