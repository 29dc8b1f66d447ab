"""Qwen3-Coder, Qwen 3.5, Nemotron 3, StepFun 3.5: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`;
ByteDance Seed-OSS with tags of its own around it.

Read from the published templates of these models.
"""

from __future__ import annotations

from engines.chat.formats import markup
from engines.chat.formats.base import Choice, Format, several, tagged
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.markup import Markup
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar, literal


def make(name: str, opening: str, closing: str, pad: str) -> Format:
    """The format with these tags around calls, which the model at times forgets, and `pad` around values."""
    marks = Markup("<parameter=", markup.attribute, "</parameter>", "</function>", ">", pad)

    def one(source: Source, tools: Tools, tag: str) -> Reading:
        yield from source.skip()
        if tag == opening:
            yield from source.expect("<function=")
        while True:
            name, _end = yield from source.header(">")
            if name.strip() not in tools:
                raise Malformed("no such function")
            yield from markup.arguments(source, name.strip(), tools[name.strip()], marks)
            yield from source.skip()
            if (yield from source.taken("<function=")) is None:
                break
        yield from source.taken(closing)

    def write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
        calls = []
        for tool in choice.tools:
            rule = markup.arguments_rule(grammar, tool, marks, "\n")
            before, after = literal(f"{opening}\n<function={tool.name}>\n"), literal(f"</function>\n{closing}")
            calls.append(f"{before} {rule} {after}")
        return several(grammar.add(" | ".join(calls)), parallel, '"\\n"')

    def tells(template: str) -> bool:
        return opening in template and "<function=" in template and "<parameter=" in template

    return Format(name, tells, tagged((opening, "<function="), one), write, (opening, closing))


FORMAT = make("qwen_coder", "<tool_call>", "</tool_call>", "\n")
SEED = make("seed_oss", "<seed:tool_call>", "</seed:tool_call>", "")
