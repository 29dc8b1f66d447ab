"""Cohere Command R7B, A and later: `<|START_ACTION|>[{"tool_call_id": ..., "tool_name": ..., "parameters": {...}}]<|END_ACTION|>`,
and answers between tags of their own.

Read from Cohere's published templates of Command R7B and Command A.
"""

from __future__ import annotations

from engines.chat.formats import jsontext
from engines.chat.formats.base import Choice, Format, arguments_rule
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar, literal

_ACTION, _ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
_ANSWER = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")


def _read(source: Source, tools: Tools) -> Reading:
    while (tag := (yield from source.text_until("content", (_ACTION, *_ANSWER)))) is not None:
        if tag != _ACTION:
            source.settle()
            continue
        try:
            if not tools:
                raise Malformed("no functions")
            yield from jsontext.calls(source, tools)
            yield from source.taken(_ACTION_END)
        except Malformed:
            source.give_back()
        else:
            yield from source.skip()
            source.settle()


def _write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
    grammar.primitive("space")
    ident = grammar.add('"\\"" [0-9]{1,2} "\\""')
    calls = []
    for tool in choice.tools:
        name, rule = literal(f'"{tool.name}"'), arguments_rule(grammar, tool)
        calls.append(f'"{{" space "\\"tool_call_id\\"" space ":" space {ident} space "," space '
                     f'"\\"tool_name\\"" space ":" space {name} space "," space '
                     f'"\\"parameters\\"" space ":" space {rule} "}}" space')  # fmt: skip
    call = grammar.add(" | ".join(calls))
    more = f'("," space {call})*' if parallel else ""
    return f'{literal(_ACTION)} space "[" space {call} {more} "]" {literal(_ACTION_END)}'


FORMAT = Format("command_r", lambda template: _ACTION in template, _read, _write, (_ACTION, _ACTION_END, *_ANSWER), always=True)
