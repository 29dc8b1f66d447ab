"""Names of models and operations that mean nothing: each place that has them is told of, and nothing else."""

from __future__ import annotations

import pytest

from gateway.config.convert import PluginSchemas
from gateway.config.load import parse
from gateway.config.unmatched import unmatched
from gateway.core.specs import Spec

KEY = "k" * 32
SCHEMAS = PluginSchemas(guardrails={"any": Spec})
BASE = f"""
version: 1
engines: [{{name: e, runtime: external, url: "http://127.0.0.1:1"}}]
models: [{{name: chat, aliases: [talk], pool: [e]}}]
identity: {{api_keys: {{static: [{{id: a, key: {KEY}, tenant: t, models: [MODEL]}}]}}}}
"""


def found(text: str) -> dict[str, str]:
    return dict(unmatched(parse(text, file="f", environ={}, schemas=SCHEMAS), ("chat", "embeddings")))


@pytest.mark.parametrize("name", ["chat", "talk", '"chat@2"', '"chat:german"', '"*"', '"chatt-*"'])
def test_a_model_an_alias_a_version_an_adapter_and_a_pattern_are_known(name: str) -> None:
    assert found(BASE.replace("MODEL", name)) == {}


def test_a_key_for_no_model() -> None:
    assert found(BASE.replace("MODEL", "chatt")) == {
        "identity.api_keys.static[0].models[0]": "no model of this configuration is called 'chatt'; did you mean 'chat'?"
    }


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ("guardrails: [{name: g, type: any, models: [chat, chatt]}]", "guardrails[0].models[1]"),
        ("limits: [{name: l, per: key, match: {model: chatt}, concurrent: 1}]", "limits[0].match.model"),
        ("limits: [{name: l, per: key, match: {operation: chatt}, concurrent: 1}]", "limits[0].match.operation"),
        ("prices: [{model: chatt, prompt: 1, completion: 1}]", "prices[0].model"),
        ("audit: {encryption: {master: {file: k}}, text: {record: both, when: [{models: [chatt]}]}}", "audit.text.when[0].models[0]"),
    ],
)
def test_a_policy_for_nothing(more: str, path: str) -> None:
    told = found(BASE.replace("MODEL", "chat") + more)
    assert list(told) == [path] and told[path].endswith("did you mean 'chat'?")


LIMIT = "limits: [{name: l, per: key, match: {tenant: acmee}, concurrent: 1}]"
CHAT = BASE.replace("MODEL", "chat").replace("tenant: t,", "tenant: acme,")


def test_a_limit_for_a_tenant_that_nobody_is_of() -> None:
    assert found(CHAT + LIMIT) == {
        "limits[0].match.tenant": "no key or login of this configuration is of the tenant 'acmee'; did you mean 'acme'?"
    }
    parsed = parse(CHAT + LIMIT, file="f", environ={}, schemas=SCHEMAS)
    assert not list(unmatched(parsed, ("chat",), (), ["acmee"])), "the store has it"


@pytest.mark.parametrize(
    "more",
    [
        LIMIT.replace("acmee", "acme"),
        LIMIT.replace("acmee", '"acm*"'),
        LIMIT + "\nnetwork: {tenants: {acmee: [10.0.0.0/8]}}",
    ],
)
def test_a_limit_for_a_tenant_that_is_known(more: str) -> None:
    assert found(CHAT + more) == {}


@pytest.mark.parametrize(("tenant", "told"), [("org", 0), ("{path: org}", 0), ("{value: home}", 1)])
def test_where_tokens_name_their_tenants_any_may_be_right(tenant: str, told: int) -> None:
    oidc = f"oidc: [{{name: o, issuer: 'https://issuer.example', audiences: [a], claims: {{tenant: {tenant}}}}}]"
    identity = CHAT.replace("identity: {", "identity: {" + oidc + ", ")
    assert len(found(identity + LIMIT)) == told
