"""What a format is: how a family of models marks reasoning and calls of functions.

No model of most families can run where Gatehouse is tested: each format is written from the chat template that its authors publish,
and so are the tests' cases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engines.chat.formats.jsontext import Tools
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar, SchemaError, literal

Tags = tuple[str, str]


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


@dataclass(frozen=True, slots=True)
class Format:
    """One row of the table.

    `tells`: whether a chat template is of this format. `read`: reads what follows the reasoning, with calls of these tools.
    `write`: the grammar's expression of a message that consists of calls. `markers`: texts of control tokens that carry structure.
    """

    name: str
    tells: Callable[[str], bool]
    read: Callable[[Source, Tools], Reading]
    write: Callable[[Grammar, Choice, bool], str]
    markers: tuple[str, ...] = ()
    always: bool = False
    """The answer is marked up even where no function may be called and nothing is thought."""
    ids: Literal["any", "short"] = "any"
    """short: the template accepts call ids of nine letters and digits only."""


def tagged(openers: tuple[str, ...], one: Callable[[Source, Tools, str], Reading]) -> Callable[[Source, Tools], Reading]:
    """A reader of content with calls in it, each after one of these tags; `one` reads what follows the tag and consumes its end."""

    def read(source: Source, tools: Tools) -> Reading:
        while (tag := (yield from source.text_until("content", openers))) is not None:
            try:
                yield from one(source, tools, tag)
            except Malformed:
                source.give_back()
            else:
                yield from source.skip()
                source.settle()

    return read


def arguments_rule(grammar: Grammar, tool: Tool) -> str:
    """The rule of a tool's arguments as a JSON object. Raises SchemaError that names the tool."""
    try:
        return grammar.schema({"type": "object", **tool.parameters})
    except SchemaError as exc:
        raise SchemaError(f"the parameters of {tool.name} cannot be expressed by a grammar: {exc}") from None


def object_rule(grammar: Grammar, choice: Choice, name: str = "name", arguments: str = "arguments") -> str:
    """The rule of a call as a JSON object with these two keys."""
    grammar.primitive("space")
    calls = []
    for tool in choice.tools:
        rule = arguments_rule(grammar, tool)
        calls.append(f'"{{" space "\\"{name}\\"" space ":" space {literal(json.dumps(tool.name))} space "," space '
                     f'"\\"{arguments}\\"" space ":" space {rule} "}}" space')  # fmt: skip
    return grammar.add(" | ".join(calls))


def named_rule(grammar: Grammar, choice: Choice, before: str, between: str, after: str) -> str:
    """The rule of a call as a function's name and a JSON object, between these texts."""
    grammar.primitive("space")
    return grammar.add(
        " | ".join(f"{literal(before + tool.name + between)} {arguments_rule(grammar, tool)} {literal(after)}" for tool in choice.tools)
    )


def several(rule: str, parallel: bool, separator: str = "") -> str:
    """One such rule, or several if calls may be parallel."""
    return f"{rule} ({separator} {rule})*" if parallel else rule
