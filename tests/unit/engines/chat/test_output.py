"""What a model said, taken apart, whatever the chunks were. The cases are written from each family's published chat template."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.chat.formats.source import Part
from engines.chat.formats.table import BY_NAME, FORMATS
from engines.chat.output import Dialect, OutputParser

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}}}
TOOLS = {"weather": WEATHER, "time": {}}
THINK = ("<think>", "</think>")


def dialect(name: str, reasoning: tuple[str, str] | None = None, inside: bool = False) -> Dialect:
    return Dialect(BY_NAME[name], TOOLS, reasoning, inside)


HERMES = dialect("hermes", THINK)


def parts(text: str, how: Dialect, cuts: list[int] | None = None) -> list[Part]:
    parser = OutputParser(how)
    at = sorted({cut % (len(text) + 1) for cut in cuts or []} | {0, len(text)})
    out: list[Part] = []
    for start, end in itertools.pairwise(at):
        out += parser.feed(text[start:end])
    return merged(out + parser.finish())


def merged(items: list[Part]) -> list[Part]:
    out: list[Part] = []
    for item in items:
        if out and item.kind == out[-1].kind and item.kind != "call":
            out[-1] = Part(item.kind, out[-1].text + item.text)
        else:
            out.append(item)
    return out


def call(name: str, ident: str = "", **arguments: object) -> tuple[Part, Part]:
    return Part("call", name=name, ident=ident), Part("arguments", json.dumps(arguments))


CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
OSLO = call("weather", city="Oslo")
ARGS = {"city": 'a "b"\n<c> é', "days": 3, "tags": [1, True, "x"]}
FULL = (Part("call", name="weather"), Part("arguments", json.dumps(ARGS, ensure_ascii=False)))
JSON_ARGS = json.dumps(ARGS, ensure_ascii=False)


def marked(opening: str, middle: str, end: str, pad: str = "") -> str:
    values = {"city": ARGS["city"], "days": "3", "tags": '[1, true, "x"]'}
    return "\n".join(f"{opening}{key}{middle}{pad}{value}{pad}{end}" for key, value in values.items())


QWEN = f"<tool_call>\n<function=weather>\n{marked('<parameter=', '>', '</parameter>', chr(10))}\n</function>\n</tool_call>"
GLM = f"<tool_call>weather\n{marked('<arg_key>', '</arg_key>' + chr(10) + '<arg_value>', '</arg_value>')}\n</tool_call>"
MINIMAX = (
    '<minimax:tool_call>\n<invoke name="weather">\n'
    + marked('<parameter name="', '">', "</parameter>")
    + "\n</invoke>\n</minimax:tool_call>"
)
D = "｜DSML｜"
DSML = (
    f'<{D}tool_calls>\n<{D}invoke name="weather">\n<{D}parameter name="city" string="true">5</{D}parameter>\n'
    f'<{D}parameter name="days" string="false">3</{D}parameter>\n</{D}invoke>\n</{D}tool_calls>'
)
DS = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>")
KIMI = "<|tool_call_begin|>functions.{}:{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
GEMMA = '<|tool_call>call:weather{city:<|"|>a "b"\n<c> é<|"|>,days:3,tags:[1,true,<|"|>x<|"|>]}<tool_call|>'
ACTION = '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}}\n]<|END_ACTION|>'
HARMONY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"

CASES = [
    ("plain text", HERMES, [Part("content", "plain text")]),
    ("", HERMES, []),
    ("<think>hm\n</think>\n\nyes", HERMES, [Part("reasoning", "hm"), Part("content", "yes")]),
    (f"<tool_call>\n{CALL}\n</tool_call>", HERMES, [*OSLO]),
    (f"<tool_call>{{\"name\": \"weather\", \"arguments\": {JSON_ARGS}}}</tool_call>", HERMES, [*FULL]),
    (f"let me see\n<tool_call>{CALL}</tool_call>\n<tool_call>{{\"name\": \"time\", \"arguments\": {{}}}}</tool_call>", HERMES,
     [Part("content", "let me see"), *OSLO, *call("time")]),
    (f"<think>a</think><tool_call>{CALL}</tool_call> done", HERMES, [Part("reasoning", "a"), *OSLO, Part("content", "done")]),
    ("<tool_call>{broken</tool_call> after", HERMES, [Part("content", "<tool_call>{broken</tool_call> after")]),
    ('<tool_call>{"name": "rm", "arguments": {}}</tool_call>', HERMES,
     [Part("content", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>')]),
    ('<tool_call>{"name": ["weather"], "arguments": {}}</tool_call>', HERMES,
     [Part("content", '<tool_call>{"name": ["weather"], "arguments": {}}</tool_call>')]),
    ('<tool_call>{"arguments": {"city": "Oslo"}, "name": "weather"}</tool_call>', HERMES, [*OSLO]),
    ('<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>', HERMES, [*OSLO]),
    ('<tool_call>{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}</tool_call>', HERMES, [*OSLO]),
    ('<tool_call>{"name": "time"}</tool_call>', HERMES, [*call("time")]),
    ('<tool_call>{"name": "weather", "arguments": {"city": "Os', HERMES, [Part("call", name="weather"), Part("arguments", '{"city": "Os')]),
    ('<tool_call>{"name": "weather", "arguments": {"city": oops}}', HERMES,
     [Part("call", name="weather"), Part("arguments", '{"city": oops'), Part("content", "}}")]),
    (f"<tool_call>{CALL}", HERMES, [*OSLO]),  # the end tag was a control token that ended the answer
    ('<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\ud83d\\ude00 \\ud800}"}</tool_call>', HERMES,
     [Part("call", name="weather"), Part("arguments", '{"city": 😀 \ufffd}')]),
    ('<tool_call>{"name": "weather", "arguments": {"days": ' + "1" * 64 + "}}</tool_call>", HERMES, [*call("weather", days=int("1" * 64))]),
    ('<tool_call>{"name": "weather", "arguments": {"days": ' + "1" * 65 + "}}", HERMES,
     [Part("call", name="weather"), Part("arguments", '{"days": ' + "1" * 64), Part("content", "1}}")]),
    ('<tool_call>{"arguments": {"days": ' + "1" * 5000 + '}, "name": "weather"}</tool_call>', HERMES,
     [Part("content", '<tool_call>{"arguments": {"days": ' + "1" * 5000 + '}, "name": "weather"}</tool_call>')]),
    ("<tool_call>" + '{"function": ' * 2000, HERMES, [Part("content", "<tool_call>" + '{"function": ' * 2000)]),
    ("a < b and <too", HERMES, [Part("content", "a < b and <too")]),
    ("still thinking", Dialect(None, {}, THINK, inside=True), [Part("reasoning", "still thinking")]),
    ("x</think>y", Dialect(None, {}, THINK, inside=True), [Part("reasoning", "x"), Part("content", "y")]),
    (f"<tool_calls>[{CALL}, {CALL}]</tool_calls>", dialect("tool_calls"), [*OSLO, *OSLO]),
    (f"<TOOLCALL>[{CALL}]</TOOLCALL>", dialect("nemotron"), [*OSLO]),
    (f"<|tool_call|>[{CALL}]", dialect("granite"), [*OSLO]),
    (f"<|function_call|>{CALL}", dialect("gigachat"), [*OSLO]),
    (f"[TOOL_CALLS][{CALL}, {CALL}]", dialect("mistral"), [*OSLO, *OSLO]),
    ('[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]time[CALL_ID]abcdefghi[ARGS]{}', dialect("mistral"), [*OSLO, *call("time")]),
    ("[THINK]hm[/THINK]yes", dialect("mistral", ("[THINK]", "[/THINK]")), [Part("reasoning", "hm"), Part("content", "yes")]),
    ('{"name": "weather", "parameters": {"city": "Oslo"}}', dialect("llama3"), [*OSLO]),
    ('<|python_tag|>{"name": "time", "parameters": {}}; {"name": "time", "parameters": {}}', dialect("llama3"),
     [*call("time"), *call("time")]),
    ('{"just": "json"}', dialect("llama3"), [Part("content", '{"just": "json"}')]),
    ("no json at all", dialect("llama3"), [Part("content", "no json at all")]),
    (f'{{"tool_calls": [{CALL}]}}', dialect("generic"), [*OSLO]),
    ('{"response": "it r\\u00e4ins \\ud83d\\ude00"}', dialect("generic"), [Part("content", "it räins 😀")]),
    (QWEN, dialect("qwen_coder"), [*FULL]),
    (f"so\n{QWEN}\n{QWEN}", dialect("qwen_coder"), [Part("content", "so"), *FULL, *FULL]),
    ("<function=time>\n</function>", dialect("qwen_coder"), [*call("time")]),
    ("<tool_call>\n<function=rm>\n</function></tool_call>", dialect("qwen_coder"),
     [Part("content", "<tool_call>\n<function=rm>\n</function></tool_call>")]),
    ("<tool_call>\n<function=weather>\n<parameter=city>\nOs", dialect("qwen_coder"), [Part("call", name="weather"), Part("arguments", '{"city": "Os')]),  # noqa: E501
    ("<tool_call>\n<function=weather>\n<parameter=days>\nthree\n</parameter>\n</function>\n</tool_call>", dialect("qwen_coder"),
     [*call("weather", days="three")]),
    ("<seed:tool_call>\n<function=weather>\n<parameter=tags>[1, True]</parameter>\n</function>\n</seed:tool_call>", dialect("seed_oss"),
     [*call("weather", tags=[1, True])]),
    ("<function=weather>\n<parameter=tags>['\\d', '\\ud800']</parameter>\n</function>", dialect("qwen_coder"),
     [Part("call", name="weather"), Part("arguments", '{"tags": ["\\\\d", "\ufffd"]}')]),
    (GLM, dialect("glm"), [*FULL]),
    ("<tool_call>time</tool_call>", dialect("glm"), [*call("time")]),
    ("<tool_call>rm</tool_call>", dialect("glm"), [Part("content", "<tool_call>rm</tool_call>")]),
    (MINIMAX, dialect("minimax"), [*FULL]),
    (DSML, dialect("deepseek_v4"), [*call("weather", city="5", days=3)]),
    (DSML.replace("tool_calls", "function_calls"), dialect("deepseek_v3_2"), [*call("weather", city="5", days=3)]),
    (f"{DS[0]}{DS[1]}weather{DS[2]}{JSON_ARGS}{DS[3]}{DS[1]}time{DS[2]}{{}}{DS[3]}{DS[4]}", dialect("deepseek_v3_1"), [*FULL, *call("time")]),  # noqa: E501
    (f"ok{DS[0]}{DS[1]}function{DS[2]}weather\n```json\n{JSON_ARGS}\n```{DS[3]}{DS[4]}", dialect("deepseek"), [Part("content", "ok"), *FULL]),  # noqa: E501
    (f"<|tool_calls_section_begin|>{KIMI.format('weather', 0, JSON_ARGS)}{KIMI.format('time', 1, '{}')}<|tool_calls_section_end|>",
     dialect("kimi", THINK), [Part("call", name="weather", ident="functions.weather:0"), FULL[1], *call("time", "functions.time:1")]),
    (GEMMA, dialect("gemma"), [*FULL]),
    ("<|channel>thought\nhm\n<channel|>yes", dialect("gemma", ("<|channel>thought\n", "<channel|>")), [Part("reasoning", "hm"), Part("content", "yes")]),  # noqa: E501
    ("<|tool_call>call:time{}<tool_call|>", dialect("gemma"), [*call("time")]),
    ("<|tool_call>call:rm{}<tool_call|>", dialect("gemma"), [Part("content", "<|tool_call>call:rm{}<tool_call|>")]),
    (f"<|START_THINKING|>hm<|END_THINKING|>{ACTION}", dialect("command_r", ("<|START_THINKING|>", "<|END_THINKING|>")), [Part("reasoning", "hm"), *OSLO]),  # noqa: E501
    ("<|START_RESPONSE|>yes<|END_RESPONSE|>", Dialect(BY_NAME["command_r"]), [Part("content", "yes")]),
    (HARMONY + "<|channel|>final<|message|>yes", Dialect(BY_NAME["harmony"]), [Part("reasoning", "hm"), Part("content", "yes")]),
    (HARMONY + f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{JSON_ARGS}<|call|>", dialect("harmony"),
     [Part("reasoning", "hm"), *FULL]),
    (f"{HARMONY} to=functions.weather<|channel|>commentary json<|message|>{JSON_ARGS}", dialect("harmony"), [Part("reasoning", "hm"), *FULL]),  # noqa: E501
    ("<|channel|>commentary to=functions.rm<|message|>{}", dialect("harmony"), [Part("content", "<|channel|>commentary to=functions.rm<|message|>{}")]),  # noqa: E501
    ("just text", dialect("harmony"), [Part("content", "just text")]),
    ("<tool_call>is only text without tools", Dialect(None), [Part("content", "<tool_call>is only text without tools")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "how", "expected"), CASES)
def test_whole(text: str, how: Dialect, expected: list[Part]) -> None:
    assert parts(text, how) == expected


@pytest.mark.parametrize(("text", "how", "expected"), CASES)
def test_one_character_at_a_time_gives_the_same(text: str, how: Dialect, expected: list[Part]) -> None:
    assert parts(text, how, list(range(len(text)))) == expected


@given(st.sampled_from(CASES), st.lists(st.integers(0, 400)))
def test_any_split_gives_the_same(case: tuple[str, Dialect, list[Part]], cuts: list[int]) -> None:
    text, how, expected = case
    assert parts(text, how, cuts) == expected


@given(
    st.sampled_from(CASES),
    st.integers(0, 400),
    st.integers(0, 30),
    st.text("<>|{}[]\"',:/\\ \n\x00tool", max_size=8),
    st.lists(st.integers(0, 400)),
)
def test_damaged_output_is_read_the_same_however_it_is_split(
    case: tuple[str, Dialect, list[Part]], at: int, gone: int, put: str, cuts: list[int]
) -> None:
    text, how, _expected = case
    damaged = text[:at] + put + text[at + gone :]
    assert parts(damaged, how, cuts) == parts(damaged, how)


@given(st.sampled_from(FORMATS), st.text("xyz12 ", max_size=40), st.sampled_from(CASES), st.integers(0, 400))
def test_no_word_is_lost(form: object, words: str, case: tuple[str, Dialect, list[Part]], at: int) -> None:
    """Words of the client's data inside whatever tags, cut off anywhere, are in some part."""
    text, how, _expected = case
    cut = text[:at] + "qqq" + words
    said = "".join(part.text + part.name + part.ident for part in parts(cut, how))
    assert "qqq" in said or "qqq" not in cut


@pytest.mark.parametrize("form", FORMATS)
@given(text=st.text('<>|{}[]":,/ \nacdehilnoprstuw_=', max_size=60), cuts=st.lists(st.integers(0, 60)))
def test_noise_never_fails(form: object, text: str, cuts: list[int]) -> None:
    how = dialect(form.name, THINK)  # type: ignore[attr-defined]
    assert parts(text, how, cuts) == parts(text, how)


FRAGMENTS = (
    CALL, '{"name": "weather", "arguments": ', '{"arguments": ', '"name": "weather"', '{"function": ', '{"tool_calls": [',
    '{"response": "', '"\\ud800', "\\ud83d", "\\ude00", "😀", "1" * 70, "-", "1e999", "NaN", "True", "null", "{", "}", "[", "]", '"', ",",
    ":", "\\", " ", "\n", "\x00", "weather", "time", "functions.weather:0", "['\\ud800']", "(((", '"string="true">',
    "to=functions.weather", *KIMI.split("{}"), *DS, *(tag for form in FORMATS for tag in form.markers), "<function=weather>",
    "<parameter=tags>", "<parameter=city>", "</parameter>", "</function>", "<arg_key>tags", '<invoke name="weather">',
    '<parameter name="tags">', f'<{D}invoke name="weather">', "call:weather{tags:",
)  # fmt: skip
"""What hostile and confused output is made of."""


@pytest.mark.parametrize("form", FORMATS)
@given(pieces=st.lists(st.sampled_from(FRAGMENTS), max_size=14), cuts=st.lists(st.integers(0, 900), max_size=12))
def test_hostile_output_is_read_the_same_however_it_is_split(form: object, pieces: list[str], cuts: list[int]) -> None:
    how, text = dialect(form.name, THINK), "".join(pieces)  # type: ignore[attr-defined]
    found = parts(text, how)
    assert parts(text, how, cuts) == found
    for part in found:
        part.text.encode()  # half a surrogate pair could not be sent
        assert part.kind != "call" or part.name in TOOLS


def test_arguments_come_as_they_are_written() -> None:
    parser = OutputParser(HERMES)
    assert parser.feed('<tool_call>{"name": "weather", "arguments": {"city": "Os') == [
        Part("call", name="weather"),
        Part("arguments", '{"city": "Os'),
    ]
    assert parser.feed("lo") == [Part("arguments", "lo")]
    parser = OutputParser(dialect("qwen_coder"))
    assert parser.feed("<tool_call>\n<function=weather>\n<parameter=city>\nOs")[-1] == Part("arguments", "Os")
    assert parser.feed("lo") == [Part("arguments", "lo")]


def test_content_is_not_held_longer_than_needed() -> None:
    parser = OutputParser(HERMES)
    assert parser.feed("Hello") == [Part("content", "Hello")]
    assert parser.feed(" <tool") == []
    assert parser.feed("box>") == [Part("content", " <toolbox>")]


def test_one_call_only() -> None:
    parser = OutputParser(HERMES, parallel=False)
    assert merged(parser.feed(f"x<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>y") + parser.finish()) == [
        Part("content", "x"),
        *OSLO,
    ]
