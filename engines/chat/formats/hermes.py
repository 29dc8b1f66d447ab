"""Calls as JSON objects between two tags: Hermes, Qwen 2.5 and 3, Granite 4 (`<tool_call>`), and those that put a list between the tags.

Read from the published templates of NousResearch Hermes 2 Pro and 3, Qwen 2.5 and 3, IBM Granite 3.3 and 4, ServiceNow Apriel, MiniMax M1,
NVIDIA Nemotron Nano v2, GigaChat 3.1.
"""

from __future__ import annotations

from engines.chat.formats import jsontext
from engines.chat.formats.base import Choice, Format, object_rule, several, tagged
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.source import Reading, Source
from engines.chat.schema import Grammar, literal


def make(name: str, opening: str, closing: str, *, listed: bool = False) -> Format:
    """The format with these tags. listed: the model writes a JSON list; it is read either way. No `closing`: the calls end the answer."""

    def one(source: Source, tools: Tools, _tag: str) -> Reading:
        yield from jsontext.calls(source, tools)
        if closing:
            yield from source.taken(closing)  # missing where it was a control token that ended the generation

    def write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
        call = object_rule(grammar, choice)
        end = literal(closing) if closing else ""
        if listed:
            calls = several(call, parallel, '"," space')
            return f'{literal(opening)} space "[" space {calls} "]" space {end}'
        rule = grammar.add(f"{literal(opening)} space {call} {end}")
        return several(rule, parallel, "space")

    markers = tuple(tag for tag in (opening, closing) if tag)
    return Format(name, lambda template: opening in template, tagged((opening,), one), write, markers)


FORMAT = make("hermes", "<tool_call>", "</tool_call>")
LISTS = (
    make("tool_calls", "<tool_calls>", "</tool_calls>", listed=True),
    make("nemotron", "<TOOLCALL>", "</TOOLCALL>", listed=True),
    make("granite", "<|tool_call|>", "", listed=True),
    make("gigachat", "<|function_call|>", ""),
)
