"""Tool calling: what the client declared, what of it may be called, and the grammar that makes a model call.

How a model writes calls is its format's business (:mod:`engines.chat.formats`). For a template without tools, the system message
describes them and a grammar holds the model to a JSON object, either `tool_calls` or `response`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engines.chat.formats.base import Choice, Format, Tool
from engines.chat.gbnf import Check, refusal
from engines.chat.schema import Grammar, SchemaError, check_grammar
from engines.sidecar.shell import ApiError

_FUNCTION = frozenset({"name", "description", "parameters", "strict"})
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHORT = re.compile(r"[A-Za-z0-9]{9}")


def declared(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """The `tools` of a request. Raises ApiError 400."""
    result: list[Tool] = []
    for at, tool in enumerate(tools or ()):
        where = f"tools[{at}]"
        if tool.get("type") != "function":
            raise ApiError(400, f"{where}.type must be function", param=f"{where}.type", code="unsupported_parameter")
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ApiError(400, f"{where}.function.name must be 1 to 64 of A-Z a-z 0-9 _ . -", param=f"{where}.function.name")
        for key in (*(k for k in tool if k not in ("type", "function")), *(f"function.{k}" for k in function if k not in _FUNCTION)):
            raise ApiError(400, f"{where}.{key[:64]} is not supported", param=f"{where}.{key[:64]}", code="unsupported_parameter")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, dict):
            raise ApiError(400, f"{where}.function.parameters must be a JSON Schema", param=f"{where}.function.parameters")
        if any(other.name == name for other in result):
            raise ApiError(400, f"{where}: the function {name} is declared twice", param=f"{where}.function.name")
        result.append(Tool(name, str(function.get("description") or ""), parameters))
    return tuple(result)


def choose(tools: tuple[Tool, ...], choice: str | Mapping[str, Any] | None) -> Choice:
    """What `tool_choice` allows. Raises ApiError 400."""
    if choice is None or choice == "auto":
        return Choice(tools, False)
    if choice == "none":
        return Choice((), False)
    if choice == "required":
        if not tools:
            raise ApiError(400, "tool_choice required needs tools", param="tool_choice")
        return Choice(tools, True)
    function = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, Mapping) else None
    chosen = tuple(tool for tool in tools if tool.name == name)
    if not chosen:
        raise ApiError(400, "tool_choice must be none, auto, required or name a declared function", param="tool_choice")
    return Choice(chosen, True)


def call_grammar(form: Format, choice: Choice, *, parallel: bool, check: Check = refusal) -> str:
    """The grammar of a message that consists of calls. Raises ApiError 400 for parameters that it cannot express."""
    grammar = Grammar()
    try:
        text = grammar.text(form.write(grammar, choice, parallel))
    except SchemaError as exc:
        raise ApiError(400, str(exc), param="tools", code="unsupported_schema") from None
    try:
        check_grammar(text, check)
    except SchemaError as exc:
        raise ApiError(400, f"the parameters of the tools make a bad grammar: {exc}", param="tools", code="unsupported_schema") from None
    return text


def short_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with call ids of nine letters and digits: others are replaced, each always by the same one."""
    result = []
    for message in messages:
        changed = dict(message)
        if isinstance(message.get("tool_call_id"), str):
            changed["tool_call_id"] = short_id(message["tool_call_id"])
        if message.get("tool_calls"):
            changed["tool_calls"] = [{**call, "id": short_id(str(call.get("id") or at))} for at, call in enumerate(message["tool_calls"])]
        result.append(changed)
    return result


def short_id(ident: str) -> str:
    """An id of nine letters and digits: itself if it is one."""
    return ident if _SHORT.fullmatch(ident) else hashlib.sha256(ident.encode("utf-8", "replace")).hexdigest()[:9]


def generic_system(messages: Sequence[Mapping[str, Any]], choice: Choice) -> list[dict[str, Any]]:
    """The messages with the tools described in the system message, and earlier calls and results as plain text."""
    lines = ["You can call these functions. Each line is a function with a JSON Schema of its arguments:"]
    for tool in choice.tools:
        lines.append(json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.parameters}, ensure_ascii=False))
    lines.append('Answer with a JSON object: {"tool_calls": [{"name": ..., "arguments": {...}}]} to call, {"response": "..."} to answer.')
    described = "\n".join(lines)
    result: list[dict[str, Any]] = []
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            told = f"Result of the function call: {message['content']}"
            if at and messages[at - 1]["role"] == "tool":
                result[-1]["content"] += f"\n{told}"  # some templates want user and assistant in turn
            else:
                result.append({"role": "user", "content": told})
        elif message.get("tool_calls"):
            calls = [call["function"] for call in message["tool_calls"]]
            result.append({"role": "assistant", "content": json.dumps({"tool_calls": calls}, ensure_ascii=False)})
        else:
            result.append(dict(message))
    if result and result[0]["role"] == "system":
        result[0]["content"] = f"{result[0]['content']}\n\n{described}"
    else:
        result.insert(0, {"role": "system", "content": described})
    return result
