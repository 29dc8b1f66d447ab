"""DeepSeek R1, V3 and V3.1: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>...<｜tool▁sep｜>...<｜tool▁call▁end｜><｜tool▁calls▁end｜>`.

R1 and V3 write `function`, the name on the same line after the separator and the arguments in a fenced block; V3.1 the name before the
separator and the arguments after it. Read from DeepSeek's published templates of R1 (and its distillations) and V3.1.
V3.2 and V4: `invoke`.
"""

from __future__ import annotations

from engines.chat.formats import jsontext
from engines.chat.formats.base import Choice, Format, named_rule, several, tagged
from engines.chat.formats.jsontext import Tools
from engines.chat.formats.source import Malformed, Reading, Source
from engines.chat.schema import Grammar, literal

_ALL, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_ONE, _SEPARATOR, _ONE_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE, _FENCE_END = "```json\n", "\n```"


def _one(source: Source, tools: Tools, _tag: str) -> Reading:
    some = False
    while True:
        yield from source.skip()
        found = yield from source.taken(_ONE, _ALL_END)
        if found == _ALL_END and some:
            return
        if found != _ONE:
            raise Malformed("no call")
        name, _end = yield from source.header(_SEPARATOR)
        if name == "function":
            name, _end = yield from source.header("\n")
        if name.strip() not in tools:
            raise Malformed("no such function")
        yield from source.skip()
        yield from source.taken(_FENCE)
        yield from source.skip()
        yield from jsontext.arguments(source, name.strip())
        yield from source.skip()
        yield from source.taken("```")
        yield from source.skip()
        yield from source.taken(_ONE_END)
        source.settle()
        some = True


def make(name: str, fenced: bool) -> Format:
    """The format as R1 and V3 write it (fenced), or V3.1. Both are read alike."""

    def write(grammar: Grammar, choice: Choice, parallel: bool) -> str:
        if fenced:
            rule = named_rule(grammar, choice, f"{_ONE}function{_SEPARATOR}", f"\n{_FENCE}", f"{_FENCE_END}{_ONE_END}")
        else:
            rule = named_rule(grammar, choice, _ONE, _SEPARATOR, _ONE_END)
        return f"{literal(_ALL)} {several(rule, parallel, 'space')} {literal(_ALL_END)}"

    def tells(template: str) -> bool:
        return _ALL in template and (not fenced or _FENCE.strip() in template)

    return Format(name, tells, tagged((_ALL,), _one), write, (_ALL, _ALL_END, _ONE, _ONE_END, _SEPARATOR))


FORMAT = make("deepseek", True)
V3_1 = make("deepseek_v3_1", False)
