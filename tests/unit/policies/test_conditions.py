"""Conditions of bindings, in CEL."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.core.types import Principal
from policies.conditions import NAMES, Language, Read, instant
from policies.facts import absent, of_caller
from tests.steady import at_most, spent

LANGUAGE = Language()
NOON = 1_790_000_000.0  # Monday, 2026-09-21 14:13:20 UTC


def facts(*, address: str = "10.1.2.3", groups: tuple[str, ...] = ("staff",), **request: Any) -> Read:
    known = {name: absent(name) for name in NAMES if name.startswith("request.")}
    asked = {"operation": "chat", "model": "demo-chat", "max_tokens": 100, "bytes": 2048, **request}
    known.update({f"request.{name}": value for name, value in asked.items()})
    caller = Principal("ci", "acme", "api_key", groups=groups)
    known.update({name: of_caller(caller, name) for name in NAMES if name.startswith("principal.")})
    known.update({"source.address": address, "source.country": "", "source.certificate": "ab12", "now": instant(NOON)})
    return known.__getitem__


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('request.max_tokens <= 1000 && cidr("10.0.0.0/8").containsIP(source.address)', True),
        ("request.max_tokens > 100", False),
        ("request.bytes == 2048 && !request.stream", True),
        ("!has(request.tools)", True),
        ('request.model.startsWith("demo-") && request.operation in ["chat", "embeddings"]', True),
        ('"staff" in principal.groups && principal.tenant == "acme"', True),
        ('principal.kind == "oidc"', False),
        ('now.getHours("Europe/Berlin") == 16 && now.getHours() == 14 && now.getDayOfWeek() == 1', True),
        ('now < timestamp("2026-01-01T00:00:00Z")', False),
        ('["10.0.0.0/8", "fd00::/8"].exists(net, cidr(net).containsIP(source.address))', True),
        ('source.certificate == "ab12"', True),
        ('source.certificate == ""', False),
        ('cidr("10.1.2.0/25").containsIP(source.address)', True),
        ('cidr("10.1.3.0/24").containsIP(source.address)', False),
        ('request.model.matches("^demo-[a-z]+$")', True),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    for otherwise in (True, False):
        assert LANGUAGE.compile(text).holds(facts(), otherwise) is holds


def test_tools_are_read_by_name() -> None:
    condition = LANGUAGE.compile('has(request.tools) && request.tools.all(t, t in ["search", "read_file"])')
    assert condition.holds(facts(tools=["search"]), False)
    assert not condition.holds(facts(tools=["search", "shell"]), True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("request.maxtokens > 1", "column 8: 'maxtokens' is not a field of 'Request'"),
        ("requests.model == 'x'", "column 9: undeclared reference to 'requests.model'; there are request, principal"),
        ("request.max_tokens > 'a'", "column 20: found no matching overload"),
        ("request.model", "must be true or false"),
        ("a &&", "column 5: ends too early"),
        ("", "column 1: ends too early"),
        ("true true", "column 6: Syntax error: extraneous input 'true'"),
        ('cidr("10.0.0.0/99").containsIP(source.address)', "is not a network"),
        ("false && cidr('ten').containsIP(source.address)", "is not a network"),
        ('now.getHours("Europe/Berlinn") > 3', "is not a time zone"),
        ('true || request.model.matches("(a")', "is not a regular expression"),
        ("true || " * 1000 + "true", "at most 4096"),
        ("request.model == 'x'\n&& request.nothing", "line 2, column 11"),
    ],
)
def test_a_wrong_condition_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LANGUAGE.compile(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["1 / (request.max_tokens - 100) == 1", 'cidr("10.0.0.0/8").containsIP(source.address)'])
def test_what_cannot_be_evaluated_counts_as_the_caller_says(text: str) -> None:
    condition = LANGUAGE.compile(text)
    unreadable = facts(address="a unix socket")
    for otherwise in (True, False):
        assert condition.holds(unreadable, otherwise) is otherwise


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('"request.model" == "x" || request.model == "demo-chat"', True),
        ('[1, 2].exists(source, source == 2) && source.address == "10.1.2.3"', True),
        ('["a"].exists(request, request == "a")', True),
        ("[source].all(principal, principal.certificate == 'ab12')", True),
        ("request . model == 'demo-chat'", True),
        (".request.model == 'demo-chat'", True),
        ("request // what\n.model == 'demo-chat'", True),
        ("request == request && principal != principal", False),
        ("has(request.stream) || has(principal.auth_time)", False),
        ('"has" == "has" && request.bytes == 2048', True),
        ("dyn(request).model == 'demo-chat'", True),
        ("now == now", True),
        ("true", True),
        ("1 == 2", False),
    ],
)
def test_however_facts_are_written_they_mean_the_same(text: str, holds: bool) -> None:
    """Conditions take facts one by one only where that cannot mean anything else."""
    for otherwise in (True, False):
        assert LANGUAGE.compile(text).holds(facts(), otherwise) is holds


@pytest.mark.parametrize("value", [2**70, "\ud800"])
def test_what_no_condition_can_hold_counts_as_not_evaluated(value: Any) -> None:
    for text in ("request.bytes == 0", "request.model == ''", "has(request.model) || has(request.bytes)"):

        def read(name: str) -> Any:
            return value

        for otherwise in (True, False):
            assert LANGUAGE.compile(text).holds(read, otherwise) is otherwise


@pytest.mark.parametrize(
    "text",
    [
        "request.tools.all(a, request.tools.all(b, request.tools.all(c, request.tools.all(d, a + b + c + d != 'x'))))",
        "request.tools.map(a, request.tools.map(b, a + b)).size() > 0",
        "request.tools.exists(a, a.matches('^(a+)+$'))",
        "request.model.matches('(a|a)*(a|aa)+$')",
    ],
)
def test_an_evaluation_is_bounded(text: str) -> None:
    condition = LANGUAGE.compile(text)
    read = facts(tools=["a" * 64] * 128, model="a" * 256)
    at_most(0.2, lambda: spent(lambda: condition.holds(read, False)))  # it takes 1 to 4 ms


def test_an_ipv4_address_in_ipv6_is_that_address() -> None:
    condition = LANGUAGE.compile('cidr("10.0.0.0/8").containsIP(source.address)')
    assert condition.holds(facts(address="::ffff:10.0.0.1"), False)
    assert not condition.holds(facts(address="fd00::1%eth0"), True)
