"""What a chat template needs to be told otherwise than most: found out by rendering small conversations when it is compiled.

Some want no tools as an empty list, some arguments as text, some know no system message, some one call a message, some `content: null`
beside calls. Requests are adapted to that, so that a client need not know which model answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], str]
"""Renders messages and tools; raises any exception if the template refuses them."""

_ARGUMENT = "gatehouseprobe"
_USER = {"role": "user", "content": "x"}
_TOOL = {"type": "function", "function": {"name": "probe", "description": "x", "parameters": {
    "type": "object", "properties": {"a": {"type": "string", "description": "x"}}, "required": ["a"],
}}}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Needs:
    """How messages must be changed for a template."""

    no_tools: bool = False
    """An empty list stands for no tools."""
    no_system: bool = False
    text_arguments: bool = False
    one_call: bool = False
    null_content: bool = False


def find(render: Render) -> Needs:
    """What a template needs."""

    def works(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> bool:
        return _text(render, messages, tools) is not None

    no_tools = not works([_USER]) and works([_USER], [])
    none: list[dict[str, Any]] | None = [] if no_tools else None
    no_system = works([_USER], none) and not works([{"role": "system", "content": "x"}, _USER], none)
    shows = {
        (text, null): _ARGUMENT in (_text(render, [_USER, *_round(1, text, null)], [_TOOL]) or "")
        for text in (False, True) for null in (False, True)
    }  # fmt: skip
    text, null = next((way for way, good in shows.items() if good), (False, False))
    one = shows[text, null] and not works([_USER, *_round(2, text, null)], [_TOOL])
    return Needs(no_tools, no_system, text, one, null)


def _text(render: Render, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str | None:
    try:
        return render(messages, tools)
    except Exception:  # noqa: BLE001 - boundary: a template is a program of the model's author; here it only tells what it refuses
        return None


def _round(calls: int, text: bool, null: bool) -> list[dict[str, Any]]:
    arguments: Any = json.dumps({"a": _ARGUMENT}) if text else {"a": _ARGUMENT}
    made = [
        {"id": f"abcdefgh{number}", "type": "function", "function": {"name": "probe", "arguments": arguments}}
        for number in range(calls)
    ]  # fmt: skip
    results = [{"role": "tool", "tool_call_id": call["id"], "name": "probe", "content": "x"} for call in made]
    return [{"role": "assistant", "content": None if null else "", "tool_calls": made}, *results]


def adapted(messages: Sequence[Mapping[str, Any]], needs: Needs) -> list[dict[str, Any]]:
    """The messages as the template needs them."""
    result = [dict(message) for message in messages]
    if needs.no_system:
        result = _system_in_user(result)
    if needs.one_call:
        result = _split(result)
    for message in result:
        if calls := message.get("tool_calls"):
            if needs.null_content and not message.get("content"):
                message["content"] = None
            if needs.text_arguments:
                message["tool_calls"] = [_as_text(call) for call in calls]
    return result


def _as_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def _system_in_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """System messages go in front of the next user message."""
    result: list[dict[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(str(message.get("content") or ""))
        elif message["role"] == "user" and waiting:
            result.append({**message, "content": "\n\n".join([*waiting, str(message.get("content") or "")])})
            waiting = []
        else:
            result.append(message)
    return [*result, {"role": "user", "content": "\n\n".join(waiting)}] if waiting else result


def _split(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several calls of one message as messages of their own, each followed by its result."""
    result: list[dict[str, Any]] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            result.append(message)
            continue
        answers: list[dict[str, Any]] = []
        while at < len(messages) and messages[at]["role"] == "tool":
            answers.append(messages[at])
            at += 1
        for number, call in enumerate(calls):
            result.append({**message, "content": message.get("content") if number == 0 else "", "tool_calls": [call]})
            result += [answer for answer in answers if call.get("id") is not None and answer.get("tool_call_id") == call.get("id")]
        known = {call.get("id") for call in calls} - {None}
        result += [answer for answer in answers if answer.get("tool_call_id") not in known]
    return result
