"""Harmony, the format of gpt-oss: an answer is messages with headers, each on a channel.

`<|channel|>analysis<|message|>...<|end|>` is reasoning, `final` the answer, `commentary` either a preamble or, with `to=functions.name` in
the header, a call. Read from OpenAI's published template of gpt-oss and its description of the format.
"""

from __future__ import annotations

import re

from engines.chat.formats import jsontext
from engines.chat.formats.base import Choice, Format, named_rule
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar

_CHANNEL, _START, _MESSAGE = "<|channel|>", "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_NAMED = re.compile(r"<\|channel\|>\s*(\w+)")
_TO = re.compile(r"to=functions\.([^\s<]+)")


def _read(source: Source, tools: Tools) -> Reading:
    while True:
        yield from source.skip()
        if not (yield from source.ahead()):
            source.settle()
            return
        if (yield from source.taken(_CHANNEL, _START, "to=")) is None:
            source.rewind()
            yield from _body(source, "content")
            continue
        try:
            yield from source.header(_MESSAGE)
        except Malformed:
            source.give_back()
            continue
        yield from _message(source, tools, source.consumed())


def _message(source: Source, tools: Tools, head: str) -> Reading:
    named, to = _NAMED.search(head), _TO.search(head)
    if "to=" in head:
        if to is None or to[1] not in tools:
            source.give_back()
            yield from _body(source, "content")
            return
        yield from source.skip()
        if (yield from source.ahead()) in ("<", ""):
            source.call(to[1])
            source.say("arguments", "{}")
        else:
            try:
                yield from jsontext.arguments(source, to[1])
            except Malformed:
                source.give_back()
        yield from source.skip()
        source.settle()
        yield from _body(source, "content")
        return
    source.settle()
    yield from _body(source, "reasoning" if named is not None and named[1] == "analysis" else "content")


def _body(source: Source, kind: jsontext.Said) -> Reading:
    """Say a message up to its end; the start of another one ends it too."""
    tag = yield from source.text_until(kind, (*_ENDS, _START, _CHANNEL), "")
    if tag in (_START, _CHANNEL):
        source.rewind()
    source.settle()


def _write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
    return named_rule(grammar, choice, "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "")


FORMAT = Format(
    "harmony", lambda template: all(tag in template for tag in (_CHANNEL, _START, _MESSAGE)), _read, _write,
    (_CHANNEL, _START, _MESSAGE, "<|constrain|>", *_ENDS), always=True,
)  # fmt: skip
