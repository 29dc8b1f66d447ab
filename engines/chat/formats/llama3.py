"""Llama 3.1 to 3.3: the whole answer is a JSON object with `name` and `parameters`, or several with semicolons between.

Read from Meta's published templates of Llama 3.1, 3.2 and 3.3.
"""

from __future__ import annotations

from engines.chat.formats import jsontext
from engines.chat.formats.base import Choice, Format, object_rule, several
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar

_TAG = "<|python_tag|>"


def _tells(template: str) -> bool:
    return _TAG in template or ("ipython" in template and "parameters" in template)


def _read(source: Source, tools: Tools) -> Reading:
    yield from source.skip()
    tag = yield from source.taken(_TAG)
    if tag is None and (yield from source.ahead()) not in ("{", "["):
        source.rewind()
        yield from source.rest("content")
        return
    try:
        yield from jsontext.calls(source, tools)
    except Malformed:
        source.give_back()
    yield from source.rest("content")


def _write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
    return several(object_rule(grammar, choice, arguments="parameters"), parallel, '";" space')


FORMAT = Format("llama3", _tells, _read, _write, (_TAG,))
