"""Tool calling: what the client declared, how the model's family writes a call, and the grammar that makes it do so.

The chat template tells the family: Hermes and Qwen (`<tool_call>`), Mistral (`[TOOL_CALLS]`), Llama 3 (bare JSON with `parameters`). For a
template without tools, the system message describes them and a grammar holds the model to a JSON object, either `tool_calls` or
`response`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.llamacpp.gbnf import Check, refusal
from engines.llamacpp.output import Family
from engines.llamacpp.schema import Grammar, SchemaError, check_grammar, literal
from engines.sidecar.shell import ApiError

_FUNCTION = frozenset({"name", "description", "parameters", "strict"})
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """`tool_choice`: which tools may be called, and whether one must be."""

    tools: tuple[Tool, ...]
    required: bool


def family_of(template: str) -> Family:
    """The family of a chat template, by how it writes calls."""
    if "<tool_call>" in template:
        return "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<|python_tag|>" in template or ("ipython" in template and "parameters" in template):
        return "llama3"
    return "generic"


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


def call_grammar(family: Family, choice: Choice, *, parallel: bool, check: Check = refusal) -> str:
    """The grammar of a message that consists of calls. Raises ApiError 400 for parameters that it cannot express."""
    text = _call_grammar(family, choice, parallel)
    try:
        check_grammar(text, check)
    except SchemaError as exc:
        raise ApiError(400, f"the parameters of the tools make a bad grammar: {exc}", param="tools", code="unsupported_schema") from None
    return text


def _call_grammar(family: Family, choice: Choice, parallel: bool) -> str:
    grammar = Grammar()
    grammar.primitive("space")
    key = "parameters" if family == "llama3" else "arguments"
    calls = []
    for tool in choice.tools:
        arguments = _arguments(grammar, tool)
        calls.append(f'"{{" space "\\"name\\"" space ":" space {literal(json.dumps(tool.name))} space "," space '
                     f'"\\"{key}\\"" space ":" space {arguments} "}}" space')  # fmt: skip
    call = grammar.add(" | ".join(calls))
    if family == "hermes":
        one = grammar.add(f'"<tool_call>" space {call} "</tool_call>"')
        return grammar.text(f"{one} (space {one})*" if parallel else one)
    if family == "mistral":
        more = f' ("," space {call})*' if parallel else ""
        return grammar.text(f'"[TOOL_CALLS]" space "[" space {call}{more} "]"')
    if family == "llama3":
        return grammar.text(f'{call} (";" space {call})*' if parallel else call)
    return grammar.text(_generic(grammar, call, choice.required, parallel))


def _generic(grammar: Grammar, call: str, required: bool, parallel: bool) -> str:
    more = f' ("," space {call})*' if parallel else ""
    calls = grammar.add(f'"{{" space "\\"tool_calls\\"" space ":" space "[" space {call}{more} "]" space "}}" space')
    if required:
        return calls
    answer = grammar.add(f'"{{" space "\\"response\\"" space ":" space {grammar.primitive("string")} "}}" space')
    return f"{calls} | {answer}"


def _arguments(grammar: Grammar, tool: Tool) -> str:
    try:
        return grammar.schema({"type": "object", **tool.parameters})
    except SchemaError as exc:
        message = f"the parameters of {tool.name} cannot be expressed by a grammar: {exc}"
        raise ApiError(400, message, param="tools", code="unsupported_schema") from None


def generic_system(messages: Sequence[Mapping[str, Any]], choice: Choice) -> list[dict[str, Any]]:
    """The messages with the tools described in the system message, and earlier calls and results as plain text."""
    lines = ["You can call these functions. Each line is a function with a JSON Schema of its arguments:"]
    for tool in choice.tools:
        lines.append(json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.parameters}, ensure_ascii=False))
    lines.append('Answer with a JSON object: {"tool_calls": [{"name": ..., "arguments": {...}}]} to call, {"response": "..."} to answer.')
    described = "\n".join(lines)
    result = []
    for message in messages:
        if message["role"] == "tool":
            result.append({"role": "user", "content": f"Result of the function call: {message['content']}"})
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
