"""Mistral: `[TOOL_CALLS][{...}]` up to Nemo and Small 3.1, then `[TOOL_CALLS]name[ARGS]{...}`, once with `[CALL_ID]...` between.

Read from the published templates of Mistral Nemo, Small 3.2, Devstral, Ministral 3.
"""

from __future__ import annotations

from engines.chat.formats import jsontext
from engines.chat.formats.base import Choice, Format, object_rule, several, tagged
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar


def _one(source: Source, tools: Tools, _tag: str) -> Reading:
    yield from source.skip()
    if (yield from source.ahead()) in ("[", "{"):
        yield from jsontext.calls(source, tools)
        return
    name, end = yield from source.header("[CALL_ID]", "[ARGS]")
    if end == "[CALL_ID]":
        yield from source.header("[ARGS]")
    if name.strip() not in tools:
        raise Malformed("no such function")
    yield from source.skip()
    yield from jsontext.arguments(source, name.strip())


def _write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
    calls = several(object_rule(grammar, choice), parallel, '"," space')
    return f'"[TOOL_CALLS]" space "[" space {calls} "]"'


FORMAT = Format(
    "mistral", lambda template: "[TOOL_CALLS]" in template, tagged(("[TOOL_CALLS]",), _one), _write,
    ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"), ids="short",
)  # fmt: skip
