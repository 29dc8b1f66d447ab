"""Models whose template knows no functions: the system message describes them, and a grammar holds the answer to a JSON object, either
`{"tool_calls": [...]}` or `{"response": "..."}`."""

from __future__ import annotations

from engines.chat.formats import jsontext
from engines.chat.formats.base import Choice, Format, object_rule, several
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.formats.strings import said
from engines.chat.schema import Grammar


def _read(source: Source, tools: Tools) -> Reading:
    try:
        yield from source.skip()
        yield from source.expect("{")
        yield from source.skip()
        key = yield from jsontext.string(source)
        yield from source.skip()
        yield from source.expect(":")
        yield from source.skip()
        if key == "response":
            source.settle()
            yield from said(source)
        elif key == "tool_calls":
            yield from jsontext.calls(source, tools)
        else:
            raise Malformed("neither calls nor an answer")
        yield from source.skip()
        yield from source.taken("}")
        yield from source.skip()
        source.settle()
    except Malformed:
        source.give_back()
    yield from source.rest("content")


def _write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
    call = object_rule(grammar, choice)
    listed = several(call, parallel, '"," space')
    calls = grammar.add(f'"{{" space "\\"tool_calls\\"" space ":" space "[" space {listed} "]" space "}}" space')
    if choice.required:
        return calls
    answer = grammar.add(f'"{{" space "\\"response\\"" space ":" space {grammar.primitive("string")} "}}" space')
    return f"{calls} | {answer}"


FORMAT = Format("generic", lambda _template: True, _read, _write)
