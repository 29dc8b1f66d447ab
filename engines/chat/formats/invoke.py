"""Calls in sections of `<invoke name="...">` with `<parameter name="...">`: MiniMax M2; DeepSeek from V3.2 on, with a prefix.

Read from the published templates of MiniMax M2, DeepSeek V3.2 and V4.
"""

from __future__ import annotations

from collections.abc import Callable

from engines.chat.formats import markup
from engines.chat.formats.base import Choice, Format, several, tagged
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.markup import Markup
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar, literal


def make(name: str, prefix: str, *sections: str, tells: Callable[[str], bool], typed: bool = False) -> Format:
    """The format whose tags start with `<prefix`. sections: tags around the calls. typed: parameters say whether they are strings."""
    openings = tuple(f"<{section}>" for section in sections)
    invoke, invoke_end = f'<{prefix}invoke name="', f"</{prefix}invoke>"
    marks = Markup(f'<{prefix}parameter name="', markup.attribute, f"</{prefix}parameter>", invoke_end, '">', typed=typed)

    def one(source: Source, tools: Tools, tag: str) -> Reading:
        some = False
        while True:
            yield from source.skip()
            found = yield from source.taken(invoke, tag.replace("<", "</", 1))
            if found is None or (found != invoke and not some):
                raise Malformed("no call")
            if found != invoke:
                return
            name, _end = yield from source.header(">")
            function = name.rstrip().removesuffix('"')
            if function not in tools:
                raise Malformed("no such function")
            yield from markup.arguments(source, function, tools[function], marks)
            some = True

    def write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
        calls = []
        for tool in choice.tools:
            before, after = literal(f'{invoke}{tool.name}">\n'), literal(f"{invoke_end}\n")
            rule = markup.arguments_rule(grammar, tool, marks, "\n")
            calls.append(f"{before} {rule} {after}")
        call = several(grammar.add(" | ".join(calls)), parallel)
        before, after = literal(openings[0] + "\n"), literal(openings[0].replace("<", "</", 1))
        return f"{before} {call} {after}"

    return Format(name, tells, tagged(openings, one), write, openings)


MINIMAX = make("minimax", "", "minimax:tool_call", tells=lambda template: "<minimax:tool_call>" in template)
DSML = make(
    "deepseek_v4", "｜DSML｜", "｜DSML｜tool_calls", "｜DSML｜function_calls", tells=lambda template: "｜DSML｜" in template, typed=True
)
DSML_3_2 = make(
    "deepseek_v3_2", "｜DSML｜", "｜DSML｜function_calls", "｜DSML｜tool_calls",
    tells=lambda template: "｜DSML｜" in template and "function_calls" in template, typed=True,
)  # fmt: skip
