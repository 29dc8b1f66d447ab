"""GLM 4.5 to 4.7, Ling, Spark, Laguna: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

Read from the published templates of Z.ai GLM 4.6 and 4.7, inclusionAI Ling 3, Poolside Laguna.
"""

from __future__ import annotations

from collections.abc import Generator

from engines.chat.formats import markup
from engines.chat.formats.base import Choice, Format, several, tagged
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.markup import Key, Markup
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar, literal

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _key(source: Source) -> Generator[None, None, Key]:
    key, _end = yield from source.header("</arg_key>")
    yield from source.skip()
    yield from source.expect("<arg_value>")
    return key.strip(), None


_MARKUP = Markup("<arg_key>", _key, "</arg_value>", _CLOSE, "</arg_key>\n<arg_value>")


def _one(source: Source, tools: Tools, _tag: str) -> Reading:
    yield from source.skip()
    name, end = yield from source.header("\n", "<arg_key>", _CLOSE)
    if name.strip() not in tools:
        raise Malformed("no such function")
    source.at -= 0 if end == "\n" else len(end)
    yield from markup.arguments(source, name.strip(), tools[name.strip()], _MARKUP)


def _write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
    calls = []
    for tool in choice.tools:
        rule = markup.arguments_rule(grammar, tool, _MARKUP, "\n")
        before = literal(f"{_OPEN}{tool.name}\n")
        calls.append(f"{before} {rule} {literal(_CLOSE)}")
    return several(grammar.add(" | ".join(calls)), parallel, '"\\n"')


FORMAT = Format(
    "glm", lambda template: "<arg_key>" in template and _OPEN in template, tagged((_OPEN,), _one), _write,
    (_OPEN, _CLOSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)  # fmt: skip
