"""What a condition says of arguments that a tool may read otherwise: names in other spellings, texts in place of numbers."""

from __future__ import annotations

from typing import Any

import pytest

from policies.guardrails.tool_arguments import loose
from policies.guardrails.tool_conditions import ToolCondition, ToolLanguage

LANGUAGE = ToolLanguage()


def doubtful(text: str, arguments: Any) -> bool:
    """Whether the condition cannot be evaluated, so that each side's strict answer is given."""
    condition: ToolCondition = LANGUAGE.compile(text)
    facts = {"tool": "t", "kind": "call", "model": "m", "principal": {"user": "ann"}, "arguments": arguments}
    answers = {condition.holds(facts, True), condition.holds(facts, False)}
    return len(answers) == 2


@pytest.mark.parametrize(
    "name", ["Force", "FORCE", "for\u200bce", "\uff46orce", "f\u00f6rce", " force", "for_ce", "for-ce", "\U0001d41force", "for\x01ce"]
)
@pytest.mark.parametrize("beside", [{}, {"force": False}])
def test_another_spelling_of_a_name_is_not_evaluated(name: str, beside: dict[str, Any]) -> None:
    text = "has(arguments.force) && arguments.force == true"
    assert doubtful(text, {**beside, name: True})
    assert not doubtful(text, {"force": True, "path": name})
    assert not doubtful(text, {"enforce": True, "inner": {name: True}}), "names count where the condition reads them"


@pytest.mark.parametrize(
    ("text", "caught", "clear"),
    [
        ('arguments["max amount"] > 1', {"max amount": 1, "maxAmount": 9}, {"max amount": 1, "max": 9}),
        ("has(arguments.a.b)", {"A": {"b": 1}}, {"a": {"c": {"B": 1}}}),
        ("has(arguments.a.b)", {"a": {"B": 1}}, {"a": {"c": 1}, "B": 1}),
        ("arguments.l[0].path != ''", {"l": [{"path": "x"}, {"Path": ""}]}, {"l": [{"path": "x"}], "Path": ""}),
        ("arguments.l.exists(i, has(i.path))", {"l": [{"Path": 1}]}, {"l": [{"x": {"Path": 1}}]}),
        ('"force" in arguments', {"Force": 1}, {"x": {"Force": 1}}),
        ('"force" in arguments.o', {"o": {"Force": 1}}, {"Force": 1, "o": {}}),
        ('arguments.all(k, k != "force")', {"Force": 1}, {"x": {"Force": 1}}),
        ('["force", "all"].exists(k, k in arguments)', {"All": 1}, {"other": 1}),
        ('["x"].all(k, !has(arguments.o) || arguments.o[k] == 1)', {"o": {"X": 1, "x": 1}}, {"X": 1, "o": {"x": 1}}),
        ('(has(arguments.a) ? arguments.a : arguments.b).c == "x"', {"a": {"c": "y", "C": "x"}}, {"a": {"c": "y", "d": "x"}}),
        ("arguments.l.filter(i, i.on).exists(i, has(i.path))", {"l": [{"on": True, "Path": 1}]}, {"l": [{"on": True, "x": 1}]}),
        ("dyn(arguments).force == true", {"force": True, "Force": False}, {"force": True, "x": False}),
        ('arguments == {"force": true}', {"Force": True}, {"x": True}),
        ('principal.user == "ann"', None, {"User": 1, "ann": 1}),
    ],
)
def test_names_count_at_the_places_where_a_condition_reads_them(text: str, caught: Any, clear: Any) -> None:
    if caught is not None:
        assert doubtful(text, caught)
    assert not doubtful(text, clear)


@pytest.mark.parametrize(
    ("text", "caught", "clear"),
    [
        ("arguments.v == true", ["true", "yes", 1, 1.0], [True, False, None, [True], {}]),
        ("true != arguments.v", ["false", 0], [True]),
        ("arguments.v == 5", ["5", " +5", "\uff15", "0x5", "5.0", True], [5, 5.0, 6, "all", "", None]),
        ("arguments.v in [1, 2]", ["1"], [1, 3, "x"]),
        ('arguments.v == "7"', [7, 7.0], ["7", "07", 8, True, None]),
        ('arguments.v in ["true", "7"]', [True, 7], [False, "x"]),
        ('arguments == {"v": 5}', ["5"], [5, 6]),
        ("arguments.v == null", [], [None, 1, "x"]),
    ],
)
def test_a_value_that_a_tool_may_turn_into_the_constant_is_not_evaluated(text: str, caught: list[Any], clear: list[Any]) -> None:
    assert [value for value in caught if not doubtful(text, {"v": value})] == []
    assert [value for value in clear if doubtful(text, {"v": value})] == []


def test_names_without_letters_and_digits_are_compared_as_they_are() -> None:
    assert (loose("$_-"), loose("Max_Amount"), loose("$ref")) == ("", "maxamount", "ref")
    assert not doubtful('"*" in arguments', {"-": 1})
    assert not doubtful("arguments.size() > 0", ["x"])
