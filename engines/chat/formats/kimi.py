"""Kimi K2: `<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>...`.

The id is the model's own (`functions.name:0`) and goes to the client, because the template shows it to the model again with the result.
Read from Moonshot AI's published templates of Kimi K2 (Instruct and Thinking).
"""

from __future__ import annotations

from engines.chat.formats import jsontext
from engines.chat.formats.base import Choice, Format, named_rule, tagged
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar, literal

_ALL, _ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_ONE, _ARGUMENTS, _ONE_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def _one(source: Source, tools: Tools, _tag: str) -> Reading:
    some = False
    while True:
        yield from source.skip()
        found = yield from source.taken(_ONE, _ALL_END)
        if found == _ALL_END and some:
            return
        if found != _ONE:
            raise Malformed("no call")
        ident, _end = yield from source.header(_ARGUMENTS)
        name = ident.strip().removeprefix("functions.").rpartition(":")[0]
        if name not in tools:
            raise Malformed("no such function")
        yield from source.skip()
        yield from jsontext.arguments(source, name, ident.strip())
        yield from source.skip()
        yield from source.taken(_ONE_END)
        source.settle()
        some = True


def _write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
    first, later = (named_rule(grammar, choice, f"{_ONE}functions.", f":{number}{_ARGUMENTS}", _ONE_END) for number in (0, 1))
    return f"{literal(_ALL)} {first} {f'({later})?' if parallel else ''} {literal(_ALL_END)}"  # two at most: ids count


FORMAT = Format(
    "kimi", lambda template: _ALL in template, tagged((_ALL,), _one), _write, (_ALL, _ALL_END, _ONE, _ONE_END, _ARGUMENTS)
)  # fmt: skip
