"""A grammar that would cost llama.cpp more than a request may is refused before it sees it; ordinary ones are not."""

import pytest

from engines.chat import gbnf
from engines.chat.gbnf import MAX_CHARACTERS, MAX_WAYS, Refusals, refusal
from engines.chat.schema import SchemaError, json_object, json_schema
from tests.steady import at_most, spent

ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+   # from llama.cpp's own examples
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""

ORDINARY = {
    "words": 'root ::= "yes" | "no" | "yesterday"',
    "arithmetic": ARITHMETIC,
    "brackets and a class that negates": 'root ::= (\n "a" |\n [^"\\\\\\x7F\\x00-\\x1F]+\n)? "\\"" .{2,3} "é" [\\]a-]',
    "a recursion that is told apart by its first character": 'root ::= "[" (root ("," root)*)? "]" | "x"',
    "words that begin alike, again and again": 'root ::= ("ab" | "ac" | "a")*',
    "a hundred texts of up to a thousand characters": "root ::= " + ' ","'.join(["[a-z]{0,1000}"] * 100),
    "an empty alternative": 'root ::= "a" |',
    "rules in a chain": "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(400)) + '\nr400 ::= "a"',
    "a comment with brackets": '# ((((\nroot ::= "((((" [(((] # ((((',
    "JSON": json_object(),
}

COSTLY = {
    "alternatives that double": ("root ::= a0\n" + "\n".join(f"a{n} ::= a{n + 1} | a{n + 1}" for n in range(30)) + '\na30 ::= "x"', "ways"),
    "repetitions in repetitions": ("root ::= (([a-z]{0,30}){0,30}){0,30}", "ways"),
    "a star of a star": ("root ::= ([a-z]*)*", "may be empty"),
    "left recursion": ('root ::= root "a" | "b"', "left-recursive"),
    "left recursion behind an empty rule": ('root ::= e root "a" | "b"\ne ::= "x"?', "left-recursive"),
    "very many optional parts": ("root ::= " + "[a-z]? " * 3000, "ways"),
    "recursion with two readings": ('root ::= "a" root "b" | "a" root "c" | "x"', "ambiguous"),
    "the same behind a long text": (f'root ::= "{"x" * 90}" q\nq ::= "aaaa" q "b" | "aaaa" q "c" | "x"', "ambiguous"),
    "the same in spaces": ('root ::= " " root "b" | " " root "c" | "x"', "ambiguous"),
    "stars in a row": ("root ::= " + "[^x]* " * 500, "ambiguous"),
    "a long repetition": ('root ::= "a"{1,5000}', "repetition"),
    "deep brackets": ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "nested deeper"),
    "a repetition of a repetition, and so on": ('root ::= "a"' + "?" * 60_000, "nested deeper"),
    "a long text, repeated": (f'root ::= "{"a" * 60_000}"{{1000}}', "elements"),
    "a long set, repeated": (f"root ::= [{'a' * 60_000}]{{1000}}", "elements"),
    "very many optional characters": ("root ::= " + ' "b" '.join(['"a"{0,1000}'] * 400), "elements"),
    "the same with numbers": ('root ::= ("a")' + "{1,2}" * 10_000, "nested deeper"),
    "deep brackets behind a comment": ('# "\nroot ::= ["] ' + "(" * 100 + '"a"' + ")" * 100, "nested deeper"),
}

BROKEN = {
    "nothing": ("", "root"), "no root": ('a ::= "b"', "root"), "an unknown rule": ("root ::= b", "no rule b"),
    "an open text": ('root ::= "a', "parse"), "an open bracket": ('root ::= ("a"', "not closed"),
    "a lone star": ('root ::= * "a"', "parse"),
    "NUL": ('root ::= "a"\x00 | "b"', "NUL"), "bounds the wrong way round": ('root ::= "a"{3,2}', "before its beginning"),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_grammars_pass(name: str) -> None:
    assert refusal(ORDINARY[name]) is None


@pytest.mark.parametrize("name", COSTLY)
def test_costly_ones_are_refused(name: str) -> None:
    grammar, word = COSTLY[name]
    assert word in (refusal(grammar) or "")


@pytest.mark.parametrize("name", BROKEN)
def test_broken_ones_are_refused(name: str) -> None:
    grammar, word = BROKEN[name]
    assert word in (refusal(grammar) or "")


def test_an_enum_may_have_a_thousand_values() -> None:
    assert json_schema({"enum": [str(n) for n in range(MAX_WAYS)]})
    with pytest.raises(SchemaError, match="more than 1000 ways"):
        json_schema({"enum": [str(n) for n in range(MAX_WAYS + 1)]})


def test_schemas_that_are_recursive_and_ambiguous_are_refused() -> None:
    nested = {"type": "array", "items": {"$ref": "#/$defs/n"}}
    schema = {"$defs": {"n": {"anyOf": [{**nested, "minItems": 1}, {**nested, "maxItems": 5}]}}, "$ref": "#/$defs/n"}
    with pytest.raises(SchemaError, match="ambiguous"):
        json_schema(schema)
    told_apart = {"anyOf": [nested, {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}}, {"type": "null"}]}
    assert json_schema({"$defs": {"n": told_apart}, "$ref": "#/$defs/n"})


def test_references_that_double_are_refused() -> None:
    rules = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(20)}
    with pytest.raises(SchemaError, match="ways"):
        json_schema({"$defs": {**rules, "a20": {"type": "string"}}, "$ref": "#/$defs/a0"})


def test_long_ones_are_refused_before_they_are_read() -> None:
    long = {"const": "a" * MAX_CHARACTERS}

    def refuse() -> None:
        with pytest.raises(SchemaError, match="longer than"):
            json_schema(long)

    at_most(0.5, lambda: spent(refuse))  # a second for each 128 KiB if it is read


def test_verdicts_are_remembered_for_each_domain_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def counted(text: str) -> str | None:
        asked.append(text)
        return "no" if text == "bad" else None

    monkeypatch.setattr(gbnf, "refusal", counted)
    memory = Refusals()
    assert [memory.of(b"a")("bad"), memory.of(b"a")("bad"), memory.of(b"a")("good")] == ["no", "no", None]
    assert asked == ["bad", "good"]
    assert memory.of(b"b")("bad") == "no" and asked == ["bad", "good", "bad"]  # as slow as if nobody had asked before
    for number in range(10 * Refusals.EACH):
        memory.of(b"b")(str(number))
    asked.clear()
    memory.of(b"a")("bad")
    assert asked == []  # another domain cannot crowd it out
    memory.of(b"b")("bad")
    assert asked == ["bad"]


def test_what_is_remembered_is_bounded() -> None:
    memory = Refusals()
    for domain in range(2 * Refusals.DOMAINS):
        memory.of(b"%d" % domain)('root ::= "a"')
    for number in range(2 * Refusals.EACH):
        memory.of(b"a")(f'root ::= "{number}"')
    assert len(memory._domains) == Refusals.DOMAINS
    assert max(map(len, memory._domains.values())) == Refusals.EACH
    assert memory.of(b"a")("root ::= \ud800") is not None  # a surrogate is no reason to fail
