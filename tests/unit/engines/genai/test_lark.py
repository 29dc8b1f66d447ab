"""Grammars of llama.cpp in Lark. That llguidance follows them as llama.cpp does: tests/integration/test_genai.py."""

import pytest

from engines.chat.formats.base import Choice, Tool
from engines.chat.formats.table import FORMATS
from engines.chat.gbnf import GrammarRefused
from engines.chat.tools import call_grammar
from engines.genai.lark import lark


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ('root ::= "a"', 'start: "a"\n'),
        ('root ::= x-1 | "b" | ""\nx-1 ::= root? "c" "d"', 'start: r1 | "b" | ("")\nr1: (start){0,1} "cd"\n'),
        ("root ::= [a-cx] [^\\n\"] .", "start: /[\\u{61}-\\u{63}\\u{78}-\\u{78}]/ /[^\\u{A}-\\u{A}\\u{22}-\\u{22}]/ /(?s:.)/\n"),
        ("root ::= [a]* [b]+ [cd]{2,} [e]{1,3} [f]{0}", 'start: ("a")* ("b")+ (/[\\u{63}-\\u{63}\\u{64}-\\u{64}]/){2,} ("e"){1,3} ""\n'),
        ('root ::= "\\"\\\\é/\\n😀"', 'start: ("\\u0022\\u005Cé/\\u000A😀")\n'),
    ],
)  # fmt: skip
def test_a_grammar(grammar: str, expected: str) -> None:
    assert lark(grammar) == expected


def test_what_is_no_grammar_is_refused() -> None:
    with pytest.raises(GrammarRefused, match="no rule root"):
        lark('other ::= "a"')


@pytest.mark.parametrize("form", FORMATS)
def test_every_formats_calls(form: object) -> None:
    tool = Tool("weather", "", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
    text = lark(call_grammar(form, Choice((tool,), True), parallel=True))  # type: ignore[arg-type]
    assert text.startswith("start: ") and "weather" in text
