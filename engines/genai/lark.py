"""llama.cpp's grammars (GBNF) as llguidance reads grammars: in its dialect of Lark.

So a client's `grammar` and the calls of every format (:mod:`engines.chat.formats`) are followed by this runtime as by llama.cpp.
Source: llguidance's documentation of its syntax; llama.cpp's grammars/README.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from engines.chat.gbnf import Group, Item, Repeat, Terminal, rules_of


def lark(grammar: str) -> str:
    """The grammar in Lark. Raises GrammarRefused where it is not well-formed."""
    rules = rules_of(grammar)
    names = {name: "start" if name == "root" else f"r{number}" for number, name in enumerate(rules)}
    return "".join(f"{names[name]}: {_alternatives(body, names)}\n" for name, body in rules.items())


def _alternatives(group: Group, names: Mapping[str, str]) -> str:
    return " | ".join(" ".join(_sequence(sequence, names)) or '""' for sequence in group.alternatives)


def _sequence(items: Sequence[Item], names: Mapping[str, str]) -> Iterator[str]:
    for single, run in groupby(items, _single):
        if single:
            yield '"' + "".join(_escaped(item.ranges[0][0]) for item in run if isinstance(item, Terminal)) + '"'
        else:
            yield from (_item(item, names) for item in run)


def _single(item: Item) -> bool:
    """Whether it is one certain character."""
    return isinstance(item, Terminal) and not item.negated and len(item.ranges) == 1 and item.ranges[0][0] == item.ranges[0][1]


def _item(item: Item, names: Mapping[str, str]) -> str:
    if isinstance(item, str):
        return names[item]
    if isinstance(item, Group):
        return f"({_alternatives(item, names)})"
    if isinstance(item, Terminal):
        if not item.ranges:
            return "/(?s:.)/"
        return f"/[{'^' * item.negated}{''.join(f'{_code(low)}-{_code(high)}' for low, high in item.ranges)}]/"
    return _repeated(item, names)


def _repeated(item: Repeat, names: Mapping[str, str]) -> str:
    inner = " ".join(_sequence([item.item], names))
    if item.high is None:
        return f"({inner}){'*' if item.low == 0 else '+' if item.low == 1 else f'{{{item.low},}}'}"
    return f"({inner}){{{item.low},{item.high}}}" if item.high else '""'


def _code(character: int) -> str:
    return f"\\u{{{character:X}}}"


def _escaped(character: int) -> str:
    """A character inside a Lark string, whose escapes are those of JSON. Beyond ASCII as it is: so a caller sees which are demanded."""
    text = chr(character)
    return text if character > 0x7F or (text.isprintable() and text not in '"\\') else f"\\u{character:04X}"
