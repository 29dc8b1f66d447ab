"""What a model said, taken apart, whatever the chunks were."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llamacpp.output import Dialect, OutputParser, Part, single

TOOLS = frozenset({"weather", "time"})
THINK = ("<think>", "</think>")
HERMES = Dialect("hermes", TOOLS, THINK)


def parts(text: str, dialect: Dialect, cuts: list[int] | None = None) -> list[Part]:
    parser = OutputParser(dialect)
    at = sorted({cut % (len(text) + 1) for cut in cuts or []} | {0, len(text)})
    out: list[Part] = []
    for start, end in itertools.pairwise(at):
        out += parser.feed(text[start:end])
    return merged(out + parser.finish())


def merged(items: list[Part]) -> list[Part]:
    out: list[Part] = []
    for item in items:
        if out and item.kind == out[-1].kind != "call":
            out[-1] = Part(item.kind, out[-1].text + item.text)
        else:
            out.append(item)
    return out


def call(name: str, **arguments: object) -> Part:
    return Part("call", name=name, arguments=json.dumps(arguments))


CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
CASES = [
    ("plain text", HERMES, [Part("content", "plain text")]),
    ("", HERMES, []),
    ("<think>hm\n</think>\n\nyes", HERMES, [Part("reasoning", "hm"), Part("content", "yes")]),
    (f"<tool_call>\n{CALL}\n</tool_call>", HERMES, [call("weather", city="Oslo")]),
    (f"let me see\n<tool_call>{CALL}</tool_call>\n<tool_call>{{\"name\": \"time\", \"arguments\": {{}}}}</tool_call>", HERMES,
     [Part("content", "let me see"), call("weather", city="Oslo"), call("time")]),
    (f"<think>a</think><tool_call>{CALL}</tool_call>", HERMES, [Part("reasoning", "a"), call("weather", city="Oslo")]),
    ("<tool_call>{broken</tool_call> after", HERMES, [Part("content", "<tool_call>{broken</tool_call> after")]),
    ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', HERMES,
     [Part("content", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>')]),
    ('<tool_call>{"name": ["weather"], "arguments": {}}</tool_call>', HERMES,
     [Part("content", '<tool_call>{"name": ["weather"], "arguments": {}}</tool_call>')]),
    (f"<tool_call>{CALL}", HERMES, [call("weather", city="Oslo")]),  # the end tag was a control token that ended the answer
    ("a < b and <too", HERMES, [Part("content", "a < b and <too")]),
    ("still thinking", Dialect(None, frozenset(), THINK, inside=True), [Part("reasoning", "still thinking")]),
    ("x</think>y", Dialect(None, frozenset(), THINK, inside=True), [Part("reasoning", "x"), Part("content", "y")]),
    (f"[TOOL_CALLS][{CALL}, {CALL}]", Dialect("mistral", TOOLS), [call("weather", city="Oslo"), call("weather", city="Oslo")]),
    ('[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]time[ARGS]{}', Dialect("mistral", TOOLS),
     [call("weather", city="Oslo"), call("time")]),
    ('{"name": "weather", "parameters": {"city": "Oslo"}}', Dialect("llama3", TOOLS), [call("weather", city="Oslo")]),
    ('<|python_tag|>{"name": "time", "parameters": {}}; {"name": "time", "parameters": {}}', Dialect("llama3", TOOLS),
     [call("time"), call("time")]),
    ('{"just": "json"}', Dialect("llama3", TOOLS), [Part("content", '{"just": "json"}')]),
    ("no json at all", Dialect("llama3", TOOLS), [Part("content", "no json at all")]),
    (f'{{"tool_calls": [{CALL}]}}', Dialect("generic", TOOLS), [call("weather", city="Oslo")]),
    ('{"response": "it rains"}', Dialect("generic", TOOLS), [Part("content", "it rains")]),
    ("<tool_call>is only text without tools", Dialect(None), [Part("content", "<tool_call>is only text without tools")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "dialect", "expected"), CASES)
def test_whole(text: str, dialect: Dialect, expected: list[Part]) -> None:
    assert parts(text, dialect) == expected


@given(st.sampled_from(CASES), st.lists(st.integers(0, 200)))
def test_any_split_gives_the_same(case: tuple[str, Dialect, list[Part]], cuts: list[int]) -> None:
    text, dialect, expected = case
    assert parts(text, dialect, cuts) == expected


@given(st.text('<think>/ol_ca{}"\n ', max_size=60), st.lists(st.integers(0, 100)))
def test_nothing_is_lost_and_no_split_matters(text: str, cuts: list[int]) -> None:
    whole = parts(text, HERMES)
    assert parts(text, HERMES, cuts) == whole
    if "<think>" not in text and "<tool_call>" not in text:
        assert "".join(item.text for item in whole).strip() == text.strip()


def test_content_is_not_held_longer_than_needed() -> None:
    parser = OutputParser(HERMES)
    assert parser.feed("Hello") == [Part("content", "Hello")]
    assert parser.feed(" <tool") == []
    assert parser.feed("box>") == [Part("content", " <toolbox>")]


def test_one_call_only() -> None:
    one, two, text = call("time"), call("weather"), Part("content", "x")
    assert single([text, one, two], 0) == [text, one]
    assert single([one], 1) == []
