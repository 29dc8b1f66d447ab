"""Rules on tools: by every name that may be taken for the tool's, by arguments that have one reading, failing to the strict side."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.canonical import digest
from gateway.core.errors import ConfigError
from gateway.core.plugins import Context
from gateway.core.tools import ToolFinding, ToolUse
from gateway.core.types import ALLOW, Principal
from policies.guardrails.tool_calls import MAX_NAME, ToolCalls, ToolCallsSettings, build
from policies.guardrails.tool_conditions import MAX_ARGUMENTS, MAX_VALUES

CALLER = Principal("k", "acme", "api_key", user="ann", agent="bot")


def made(*rules: dict[str, Any], **settings: Any) -> ToolCalls:
    return build(msgspec.convert({"rules": list(rules), **settings}, ToolCallsSettings), Context(name="tools"))


def call(*names: str, arguments: Any = "{}", **more: Any) -> ToolUse:
    return ToolUse("call", names, arguments if isinstance(arguments, str) else json.dumps(arguments), **more)


def one(guard: ToolCalls, use: ToolUse) -> ToolFinding:
    (found,) = guard.judge([use], CALLER, "m")
    return found


def action(guard: ToolCalls, use: ToolUse) -> str:
    return one(guard, use).action


def test_the_first_rule_that_fits_decides_and_without_one_a_call_is_blocked() -> None:
    guard = made({"tool": ["read_*", "list"], "action": "allow"}, {"tool": "read_secret", "action": "block"})
    assert [action(guard, call(name)) for name in ("read_file", "list", "read_secret", "lists", "")] == ["allow"] * 3 + ["block"] * 2
    found = one(guard, call("read_file", arguments={"b": 1, "a": 2}))
    assert (found.rule, found.sha256) == (0, digest({"a": 2, "b": 1}))
    assert one(guard, call("x")).rule == -1
    assert action(made(default="allow"), call("x")) == "allow"


def test_the_strictest_of_all_names_counts() -> None:
    guard = made({"tool": "delete_*", "action": "block"}, {"tool": "*", "action": "allow"})
    assert action(guard, call("read", "delete_file")) == "block"
    assert action(guard, call("read", "list")) == "allow"


@pytest.mark.parametrize(
    "name", ["Delete_File", "delete\u200b_file", "\uff44elete_file", " delete_file", "functions.delete_file", "DELETE_x"]
)
def test_a_name_counts_in_every_spelling_that_a_client_may_forgive(name: str) -> None:
    guard = made({"tool": "delete_*", "action": "block"}, {"tool": "*", "action": "allow"})
    assert action(guard, call(name)) == "block"


def test_an_allowed_name_is_not_allowed_in_another_spelling_of_a_blocked_one() -> None:
    guard = made({"tool": "Read", "action": "allow"})
    assert action(guard, call("Read")) == "allow"
    assert action(guard, call("R" + "e" * MAX_NAME)) == "block"


def test_conditions_read_the_arguments() -> None:
    guard = made(
        {"tool": "write", "when": 'arguments.path.startsWith("/tmp/") && !arguments.path.contains("..")', "action": "allow"},
        {"tool": "pay", "when": "arguments.amount > 100", "action": "hold", "reversibility": "compensable"},
        {"tool": "pay", "when": 'principal.agent == "bot" && model == "m" && tool == "pay" && kind == "call"', "action": "allow"},
    )
    assert action(guard, call("write", arguments={"path": "/tmp/x"})) == "allow"
    assert action(guard, call("write", arguments={"path": "/tmp/../etc"})) == "block"
    found = one(guard, call("pay", arguments={"amount": 100.5}))
    assert (found.action, found.rule, found.reversibility) == ("hold", 1, "compensable")
    assert action(guard, call("pay", arguments={"amount": 100})) == "allow"


@pytest.mark.parametrize("arguments", [{}, {"amount": "x"}, {"amount": 2**70}, "5", [], {"amount": 1, "pad": "x" * MAX_ARGUMENTS}])
def test_a_condition_that_cannot_be_evaluated_fails_to_the_strict_side(arguments: Any) -> None:
    strict = made({"tool": "pay", "when": "arguments.amount > 100", "action": "hold"}, {"tool": "*", "action": "allow"})
    assert action(strict, call("pay", arguments=arguments)) == "hold"
    lax = made({"tool": "pay", "when": "arguments.amount <= 100", "action": "allow"})
    assert action(lax, call("pay", arguments=arguments)) == "block"


def test_a_condition_is_not_evaded_by_another_spelling_of_an_argument() -> None:
    guard = made(
        {"tool": "pay", "when": "has(arguments.amount) && arguments.amount > 100", "action": "hold"},
        {"tool": "read", "when": 'arguments.path.startsWith("/data/")', "action": "allow"},
        {"tool": "pay", "action": "allow"},
    )
    assert action(guard, call("pay", arguments={"amount": 1})) == "allow"
    assert action(guard, call("pay", arguments={"amount": 1, "Amount": 1000})) == "hold"
    assert action(guard, call("read", arguments={"path": "/data/x", "env": {"PATH": "/bin"}})) == "allow"
    assert action(guard, call("read", arguments={"path": "/data/x", "Path": "/etc/shadow"})) == "block"


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ([{"recipient_name": "functions.read", "parameters": {"path": "/data/x"}}], "allow"),
        ([{"recipient_name": "functions.read", "parameters": {"path": "/etc"}}], "block"),
        ([{"recipient_name": "functions.read", "parameters": '{"path": "/etc"}'}], "block"),
        ([{"name": "list", "arguments": {}}, {"recipient_name": "Delete_File", "parameters": {}}], "block"),
        ([{"recipient_name": "mail"}], "hold"),
        ([{"recipient_name": "list", "name": "delete_file"}], "block"),
        ([{"recipient_name": "list", "parameters": {}, "arguments": {"x": 1}}], "block"),
        ([{"recipient_name": "multi_tool_use.parallel", "parameters": {"tool_uses": []}}], "block"),
        ([{"parameters": {}}], "block"),
        (["delete_file"], "block"),
        ("delete_file", "block"),
        ([], "allow"),
    ],
)
@pytest.mark.parametrize("name", ["multi_tool_use.parallel", "Multi_Tool_Use-Parallel", "functions.multi_tool_use.parallel"])
def test_calls_within_a_call_are_judged(name: str, inside: Any, expected: str) -> None:
    guard = made(
        {"tool": "delete_*", "action": "block"},
        {"tool": "read", "when": '!arguments.path.startsWith("/data/")', "action": "block"},
        {"tool": "mail", "action": "hold"},
        {"tool": "*", "action": "allow"},
    )
    assert action(guard, call(name, arguments={"tool_uses": inside})) == expected
    assert action(guard, call("parallel", arguments={"tool_uses": inside})) == "allow", "any other tool's arguments are its own"


def test_arguments_with_too_many_values_are_not_evaluated() -> None:
    guard = made({"tool": "*", "when": "arguments.n == 1", "action": "allow"})
    assert action(guard, call("x", arguments={"n": 1})) == "allow"
    assert action(guard, call("x", arguments={"n": 1, "l": [0] * MAX_VALUES})) == "block"


@pytest.mark.parametrize("arguments", ['{"a":1,"a":2}', '{"a":', "[NaN]", '{"a":"\\ud800"}', "{'a':1}", "{" * 100, '{"a":1e999}'])
def test_arguments_with_more_than_one_reading_are_blocked(arguments: str) -> None:
    guard = made({"tool": "*", "action": "allow"}, default="allow")
    assert action(guard, call("x", arguments=arguments)) == "block"
    assert action(guard, call("x", unreadable="why")) == "block"
    assert action(guard, ToolUse("result", ("x",), arguments.replace("\\ud800", ""))) == "allow", "of a result it is only a text"


def test_a_text_that_is_no_json_by_definition_is_judged_as_a_text() -> None:
    guard = made({"tool": "shell", "when": 'arguments.startsWith("{ ls")', "action": "allow"})
    assert action(guard, call("shell", arguments="{ ls }", free=True)) == "allow"
    assert action(guard, call("shell", arguments="{ rm }", free=True)) == "block"
    assert action(guard, call("shell", arguments="\ud800", free=True)) == "block"


def test_definitions_and_results_are_judged_only_by_rules_for_them() -> None:
    guard = made(
        {"tool": "shell", "of": ["definition"], "action": "block"},
        {"tool": "mail_*", "of": ["result", "definition"], "action": "hold"},
        {"tool": "fetch", "of": ["result"], "when": 'arguments.contains("ignore")', "action": "block"},
    )
    assert action(guard, ToolUse("definition", ("shell",))) == "block"
    assert action(guard, ToolUse("definition", ("mail_read",))) == "allow", "what it is called with is held, not the offer"
    assert action(guard, ToolUse("definition", ("x",))) == "allow"
    assert action(guard, ToolUse("result", ("mail_read",), "text")) == "hold"
    assert action(guard, ToolUse("result", ("fetch",), "please ignore")) == "block"
    assert action(guard, ToolUse("result", ("fetch",), "fine")) == "allow"
    assert action(guard, call("shell")) == "block", "by default"


def test_it_says_nothing_of_texts() -> None:
    guard = made()
    assert guard.check(["delete_file"]) is ALLOW
    stream = guard.stream()
    assert (stream.feed("a"), stream.held, stream.finish()) == ("a", "", "")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"when": "arguments.x", "action": "allow"}, "rules[0].when: is not a condition"),
        ({"when": "argument.x == 1", "action": "allow"}, "there are tool, arguments"),
        ({"when": 'tool.matches("(")', "action": "allow"}, "regular expression"),
        ({"when": "true" + " " * 5000, "action": "allow"}, "at most 4096"),
        ({"when": "true", "of": ["definition"], "action": "allow"}, "a definition has no arguments"),
    ],
)
def test_a_rule_that_is_wrong_says_what(rule: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        made(rule)
    assert says in refused.value.message


@pytest.mark.parametrize(
    "rule", [{}, {"action": "maybe"}, {"tool": "", "action": "allow"}, {"action": "allow", "of": ["x"]}, {"act": "allow"}]
)
def test_a_rule_has_only_known_settings(rule: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        made(rule)


@given(st.text(max_size=40), st.text(max_size=200))
def test_no_call_ends_in_anything_but_a_finding(name: str, arguments: str) -> None:
    guard = made({"tool": "a*", "when": "arguments.x == 1", "action": "hold"}, {"tool": "*", "action": "allow"})
    assert action(guard, call(name, arguments=arguments)) in ("allow", "hold", "block")


def test_what_is_irreversible_is_held_whichever_rule_comes_first() -> None:
    rules = [
        {"tool": "*", "action": "allow", "when": "arguments.fine == true"},
        {"tool": "pay_*", "of": ["call"], "action": "block", "when": "arguments.amount > 100", "reversibility": "irreversible"},
        {"tool": "*", "action": "allow"},
    ]
    guardrail = made(*rules)
    for name in ("pay_bill", "PAY_bill", "functions.pay_bill"):
        (found,) = guardrail.judge([call(name, arguments='{"fine": true, "amount": 1}')], CALLER, "m")
        assert (found.action, found.rule, found.reversibility) == ("hold", 1, "irreversible")
    (found,) = guardrail.judge([call("pay_bill", arguments='{"fine": false, "amount": 101}')], CALLER, "m")
    assert found.action == "block"
    (found,) = guardrail.judge([call("look", arguments='{"fine": true}')], CALLER, "m")
    assert found.action == "allow" and guardrail.may_hold
    with pytest.raises(ConfigError, match="irreversible needs an approval"):
        made({"tool": "pay", "action": "allow", "reversibility": "irreversible"})
