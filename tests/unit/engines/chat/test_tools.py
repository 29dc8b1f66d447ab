"""Tools are declared, chosen and turned into grammars."""

from typing import Any, get_args

import pytest

from engines.chat.defaults import Format
from engines.chat.formats.base import Choice, Tool
from engines.chat.formats.table import BY_NAME, FORMATS, format_of
from engines.chat.tools import call_grammar, choose, declared, generic_system, short_ids
from engines.sidecar.shell import ApiError

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "time"}}


def refused(action: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        action()
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("... <tool_call> ...", "hermes"), ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"), ("<|python_tag|>", "llama3"), ("plain", "generic"),  # noqa: E501
        ("<tool_call> <function= <parameter=", "qwen_coder"), ("<tool_call> <arg_key>", "glm"), ("<|start|> <|channel|> <|message|>", "harmony"),  # noqa: E501
        ("<|tool_call>call: <tool_call|>", "gemma"), ("<|tool_calls_section_begin|>", "kimi"), ("<minimax:tool_call>", "minimax"),
        ("<|START_ACTION|>", "command_r"), ("'｜DSML｜'", "deepseek_v4"), ("'｜DSML｜' function_calls", "deepseek_v3_2"),
    ],
)  # fmt: skip
def test_the_format_is_told_by_the_template(template: str, name: str) -> None:
    assert format_of(template).name == name


def test_the_option_names_the_formats_of_the_table() -> None:
    assert sorted(get_args(Format)) == sorted(BY_NAME) and len(BY_NAME) == len(FORMATS)


def test_ids_that_a_template_refuses_are_replaced_alike() -> None:
    call = {"id": "call_1", "function": {"name": "f"}}
    made = short_ids(
        [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1"}, {"tool_call_id": "abcdefgh9"}]
    )
    assert made[0]["tool_calls"][0]["id"] == made[1]["tool_call_id"] != "call_1" and len(made[1]["tool_call_id"]) == 9
    assert made[2]["tool_call_id"] == "abcdefgh9"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{**TIME, "cache": 1}], "tools[0].cache"), ([{"type": "function", "function": {"name": "a", "x": 1}}], "tools[0].function.x"),
        ([{"type": "retrieval"}], "tools[0].type"), ([{"type": "function"}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name"), ([TIME, TIME], "tools[1].function.name"),
        ([{"type": "function", "function": {"name": "a", "parameters": []}}], None),
        ([{"type": "function", "function": {"name": "a", "parameters": "x"}}], "tools[0].function.parameters"),
    ],
)  # fmt: skip
def test_declarations_are_checked(tools: Any, param: str | None) -> None:
    if param is None:
        assert declared(tools)[0].parameters == {"type": "object", "properties": {}}
    else:
        assert refused(lambda: declared(tools)).param == param


def test_choices() -> None:
    tools = declared([WEATHER, TIME])
    assert choose(tools, None) == choose(tools, "auto") == Choice(tools, False)
    assert choose(tools, "none") == Choice((), False)
    assert choose(tools, "required") == Choice(tools, True)
    assert choose(tools, {"type": "function", "function": {"name": "time"}}) == Choice(tools[1:], True)
    for choice in ("any", {"type": "function", "function": {"name": "rm"}}, {"type": "custom"}):
        assert refused(lambda choice=choice: choose(tools, choice)).param == "tool_choice"
    assert refused(lambda: choose((), "required")).param == "tool_choice"


@pytest.mark.parametrize("name", sorted(BY_NAME))
@pytest.mark.parametrize("parallel", [False, True])
def test_each_format_has_a_grammar(name: str, parallel: bool) -> None:
    text = call_grammar(BY_NAME[name], Choice(declared([WEATHER, TIME]), True), parallel=parallel)
    assert text.startswith("root ::= ") and "weather" in text
    marks = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama3": "parameters", "generic": "tool_calls", "gemma": "call:weather"}
    assert marks.get(name, "") in text


def test_parameters_that_a_grammar_cannot_express_are_an_error() -> None:
    tool = Tool("f", "", {"properties": {"x": {"type": "string", "pattern": "a"}}})
    assert refused(lambda: call_grammar(BY_NAME["hermes"], Choice((tool,), True), parallel=False)).code == "unsupported_schema"


def test_the_generic_way_describes_tools_and_flattens_earlier_calls() -> None:
    choice = Choice(declared([WEATHER]), False)
    messages = [
        {"role": "system", "content": "be kind"}, {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]},
        {"role": "tool", "content": "rain"},
    ]  # fmt: skip
    result = generic_system(messages, choice)
    assert result[0]["content"].startswith("be kind\n\n") and '"name": "weather"' in result[0]["content"]
    assert result[2] == {"role": "assistant", "content": '{"tool_calls": [{"name": "weather", "arguments": {}}]}'}
    assert result[3] == {"role": "user", "content": "Result of the function call: rain"}
    assert generic_system([{"role": "user", "content": "x"}], choice)[0]["role"] == "system"
