"""The tables of this process: ours, and what installed distributions add."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gateway.app.configuration.plugins import OURS, installed
from gateway.core.errors import ConfigError
from gateway.core.plugins import GROUP, AuthenticatorRow, GuardrailRow
from gateway.core.specs import ApiKeysSpec, IdentitySpec

DIST = SimpleNamespace(name="third-party", version="1.2")


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module that can be imported as `third_party`."""
    made = sys.modules["third_party"] = ModuleType("third_party")
    yield made
    del sys.modules["third_party"]


def entry(name: str, dist: Any = DIST) -> EntryPoint:
    point = EntryPoint(name, f"third_party:{name}", GROUP)
    vars(point)["dist"] = dist
    return point


def guardrail(name: str) -> GuardrailRow:
    return GuardrailRow(name=name, build=lambda settings, context: settings)


def login(name: str) -> AuthenticatorRow:
    return AuthenticatorRow(name=name, build=lambda settings, context: settings)


def test_rows_of_other_distributions_join_the_tables(module: ModuleType) -> None:
    vars(module).update(A=guardrail("profanity"), B=login("badge"))
    plugins = installed(OURS, [entry("A"), entry("B")])
    assert [row.name for row in plugins.guardrails] == [*(row.name for row in OURS.guardrails), "profanity"]
    assert "badge" in plugins.authenticators and "badge" not in OURS.authenticators
    assert "profanity" in plugins.schemas().guardrails and "badge" in plugins.schemas().authenticators


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (guardrail("denylist"), "is the guardrail 'denylist', and there is one of that name already; rename it"),
        (login("api_keys"), "is the authenticator 'api_keys', and there is one of that name already; rename it"),
        (print, "is builtin_function_or_method; it must be one of AuthenticatorRow, GuardrailRow"),
    ],
)
def test_what_cannot_join_names_its_distribution(module: ModuleType, given: object, message: str) -> None:
    vars(module)["A"] = given
    with pytest.raises(ConfigError) as caught:
        installed(OURS, [entry("A")])
    assert str(caught.value).startswith("the plug-in third_party:A of third-party 1.2 ") and message in str(caught.value)


def test_an_import_that_fails_names_its_distribution() -> None:
    with pytest.raises(ConfigError, match=r"the plug-in third_party:A of third-party 1\.2 cannot be imported: ModuleNotFoundError"):
        installed(OURS, [entry("A")])


def test_two_distributions_with_one_name_collide(module: ModuleType) -> None:
    vars(module).update(A=guardrail("profanity"), B=guardrail("profanity"))
    with pytest.raises(ConfigError, match="third_party:B"):
        installed(OURS, [entry("A"), entry("B")])


def test_those_who_reject_what_they_do_not_know_are_asked_last(module: ModuleType) -> None:
    vars(module)["B"] = login("badge")
    plugins = installed(OURS, [entry("B")])
    identity = IdentitySpec(plugins={"badge": {"issuer": "x"}})
    assert [(path, settings) for path, _, settings in plugins.logins(identity)] == [
        ("identity.plugins.badge", {"issuer": "x"}),
        ("identity.api_keys", ApiKeysSpec()),
    ]
    assert [path for path, _, _ in plugins.logins(IdentitySpec())] == ["identity.api_keys"]


def test_nothing_is_installed_beside_ours_here() -> None:
    assert installed() == OURS
