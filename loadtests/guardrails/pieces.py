"""Streams of engines, cut into pieces, with a text at every place. For loadtests.guardrails.bypass."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from loadtests.guardrails.places import CHATS, COMPLETIONS, FUNCTION_CALL, Document, chat, message, response

Events = Callable[[Any, int], bytes]


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)] or [""]


def told(document: Document) -> bytes:
    return f"event: {document['type']}\ndata: {json.dumps(document)}\n\n".encode()


def chunk(**choice: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"id": "i", "choices": [{"index": 0, "finish_reason": None, **choice}]}).encode()


def chat_events(document: Document, size: int) -> bytes:
    """A whole answer as its stream: strings in pieces, of a call all but its name."""
    choice = document["choices"][0]
    found = [chunk(delta={"role": "assistant"}, **{key: choice[key] for key in ("logprobs",) if key in choice})]
    for field, value in choice["message"].items():
        if field == "role":
            continue
        if isinstance(value, str):
            found += [chunk(delta={field: piece}) for piece in cut(value, size)]
        elif field == "tool_calls":
            found += [chunk(delta={field: [one]}) for one in calls(value[0], size)]
        elif field == "function_call":
            found.append(chunk(delta={field: {"name": value["name"], "arguments": ""}}))
            found += [chunk(delta={field: {"arguments": piece}}) for piece in cut(value["arguments"], size)]
        else:
            found.append(chunk(delta={field: value}))
    rest = {key: value for key, value in document.items() if key not in ("id", "choices")}
    ends = {"id": "i", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **rest}
    return b"".join([*found, b"data: %b\n\n" % json.dumps(ends).encode(), b"data: [DONE]\n\n"])


def calls(call: Document, size: int) -> Iterator[Document]:
    kind, text = ("custom", "input") if "custom" in call else ("function", "arguments")
    yield {"index": 0, "id": "c", "type": kind, kind: {"name": call[kind]["name"], text: ""}}
    for piece in cut(call[kind][text], size):
        yield {"index": 0, kind: {text: piece}}


def completion_events(text: str, size: int) -> bytes:
    return b"".join([*(chunk(text=piece) for piece in cut(text, size)), chunk(text="", finish_reason="stop"), b"data: [DONE]\n\n"])


def message_events(block: Document, size: int) -> bytes:
    """One block. What it has in pieces stands under `pieces`: the type of a piece, its field, the text."""
    kind, field, text = block.pop("pieces")
    started: Document = {"id": "i", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    found: list[Document] = [
        {"type": "message_start", "message": {**started, "usage": {"input_tokens": 3, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": kind, field: piece}} for piece in cut(text, size)),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    return b"".join(map(told, found))


def response_events(item: Document, size: int) -> bytes:
    """One item, of which one text comes in pieces: that of its part, or that in its field."""
    whole: Document = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "m", "output": [item]}
    where = {"item_id": item["id"], "output_index": 0}
    found: list[Document] = [{"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}}]
    parts = "content" if "content" in item else "summary" if "summary" in item else ""
    if parts:
        part = item[parts][0]
        field = "refusal" if "refusal" in part else "text"
        name = {"summary_text": "reasoning_summary_text"}.get(part["type"], part["type"])
        index = {"content_index" if parts == "content" else "summary_index": 0}
        around = "response.content_part" if parts == "content" else "response.reasoning_summary_part"
        found.append({"type": "response.output_item.added", "output_index": 0, "item": {**item, parts: []}})
        found.append({"type": f"{around}.added", **where, **index, "part": {**part, field: ""}})
        found += [{"type": f"response.{name}.delta", **where, **index, "delta": piece} for piece in cut(part[field], size)]
        found.append({"type": f"response.{name}.done", **where, **index, field: part[field]})
        found.append({"type": f"{around}.done", **where, **index, "part": part})
    else:
        field, name = ("arguments", "function_call_arguments") if "arguments" in item else ("input", "custom_tool_call_input")
        found.append({"type": "response.output_item.added", "output_index": 0, "item": {**item, field: ""}})
        found += [{"type": f"response.{name}.delta", **where, "delta": piece} for piece in cut(item[field], size)]
        found.append({"type": f"response.{name}.done", **where, field: item[field]})
    found.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    found.append(
        {"type": "response.completed", "response": {**whole, "usage": {"input_tokens": 1, "output_tokens": 9, "total_tokens": 10}}}
    )
    return b"".join(told({**one, "sequence_number": number}) for number, one in enumerate(found))


TOOL_USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
ITEM = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
STREAMS: dict[str, tuple[str, str, Document, Any, Events]] = {
    **{f"chat, {name}": ("chats", *chat(), one, chat_events) for name, one in CHATS.items()},
    **{f"messages, {name}": ("chats", *message(), one, chat_events) for name, one in CHATS.items()},
    **{f"responses, {name}": ("chats", *response(), one, chat_events) for name, one in CHATS.items()},
    "completions, text": ("chats", COMPLETIONS, {"prompt": "x"}, "@T", completion_events),
    "completions, JSON": ("chats", COMPLETIONS, {"prompt": "x"}, "@J", completion_events),
    "messages passed, text": ("speaks", *message(), {"type": "text", "text": "", "pieces": ["text_delta", "text", "@T"]}, message_events),
    "messages passed, JSON": ("speaks", *message(), {"type": "text", "text": "", "pieces": ["text_delta", "text", "@J"]}, message_events),
    "messages passed, thought": (
        "speaks",
        *message(),
        {"type": "thinking", "thinking": "", "pieces": ["thinking_delta", "thinking", "@T"]},
        message_events,
    ),
    "messages passed, input": ("speaks", *message(), {**TOOL_USE, "pieces": ["input_json_delta", "partial_json", "@J"]}, message_events),
    "messages passed, whole input": (
        "speaks",
        *message(),
        {**TOOL_USE, "input": {"a": "@T", "b": "@J"}, "pieces": ["input_json_delta", "partial_json", ""]},
        message_events,
    ),
    "responses passed, text": ("speaks", *response(), {**ITEM, "content": [{"type": "output_text", "text": "@T"}]}, response_events),
    "responses passed, JSON": ("speaks", *response(), {**ITEM, "content": [{"type": "output_text", "text": "@J"}]}, response_events),
    "responses passed, refusal": ("speaks", *response(), {**ITEM, "content": [{"type": "refusal", "refusal": "@T"}]}, response_events),
    "responses passed, arguments": (
        "speaks",
        *response(),
        {**FUNCTION_CALL, "id": "fc_1", "status": "completed", "arguments": "@J"},
        response_events,
    ),
    "responses passed, custom call": (
        "speaks",
        *response(),
        {"type": "custom_tool_call", "id": "ct_1", "call_id": "c", "name": "f", "input": "@T", "status": "completed"},
        response_events,
    ),
    "responses passed, reasoning": (
        "speaks",
        *response(),
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "@T"}]},
        response_events,
    ),
}
"""Where -> engine, path and body of the request, the answer as a template, and what makes its events."""
