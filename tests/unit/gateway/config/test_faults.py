"""Several faults of one configuration are told at once, unless one follows from another."""

from __future__ import annotations

import pytest

from gateway.config.convert import PluginSchemas
from gateway.config.faults import MOST, each
from gateway.config.load import parse
from gateway.core.errors import ConfigError
from gateway.core.specs import Spec

KEY = "k" * 32
BASE = f"""
version: 1
engines: [{{name: e, runtime: external, url: "http://127.0.0.1:1"}}]
models: [{{name: chat, pool: [e]}}]
identity: {{api_keys: {{static: [{{id: a, key: {KEY}, tenant: t, models: ["*"]}}]}}}}
"""


class Settings(Spec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    words: tuple[str, ...] = ()
    most: int = 1


SCHEMAS = PluginSchemas(guardrails={"any": Settings})


def faults(text: str) -> list[tuple[int | None, str | None, str]]:
    with pytest.raises(ConfigError) as caught:
        parse(text, file="f", environ={}, schemas=SCHEMAS)
    return [(one.line, one.path, one.message) for one in (caught.value, *caught.value.others)]


def test_every_setting_that_cannot_be_read_is_told_with_its_line() -> None:
    found = faults(
        BASE
        + """
colour: blue
listen: {max_connections: many, drain_timeout: soon}
guardrails:
  - {name: a, type: any, settings: {words: [x], mots: 1, most: few}}
  - {name: b, type: none}
  - {type: any}
limits:
  - {name: l, per: nobody, requests: {rate: -1}}
"""
    )
    assert [(line, path) for line, path, _ in found] == [
        (7, "colour"),
        (8, "listen.max_connections"),
        (8, "listen.drain_timeout"),
        (10, "guardrails[0].settings.mots"),
        (10, "guardrails[0].settings.most"),
        (11, "guardrails[1].type"),
        (12, "guardrails[2]"),
        (14, "limits[0].per"),
        (14, "limits[0].requests.rate"),
    ]


def test_every_rule_that_is_broken_is_told() -> None:
    engines = """
  - {name: f, runtime: external}
  - {name: g, runtime: external, url: "ftp://x"}
"""
    text = BASE.replace("engines: [{", "engines:\n  - {").replace(':1"}]', ':1"}' + engines)
    text += "limits: [{name: l, per: key, requests: {rate: 0.5, burst: 0.5}}, {name: l, per: key, concurrent: 1}]\n"
    text = text.replace(
        "models: [{name: chat, pool: [e]}]", "models: [{name: chat, pool: [e]}, {name: talk, pool: [x]}, {name: say, pool: [y]}]"
    )
    found = {path: message for _, path, message in faults(text)}
    assert {"engines[1]", "engines[2].url", "models[1].pool[0]", "models[2].pool[0]", "limits[0].requests", "limits[1].name"} == set(found)
    assert "there is no engine 'x'" in found["models[1].pool[0]"]


def test_what_is_misspelt_is_not_missing_too() -> None:
    found = faults(BASE.replace("{name: chat", "{nmae: chat"))
    assert [path for _, path, _ in found] == ["models[0].nmae"]


def test_there_is_an_end() -> None:
    found = faults(BASE + "limits:\n" + "".join(f"  - {{name: l{number}, per: nobody}}\n" for number in range(3 * MOST)))
    assert len(found) == MOST and found[0][1] == "limits[0].per"


def test_a_rule_may_count_on_what_another_one_has_refused() -> None:
    def refuses() -> None:
        raise ConfigError("no", path="a")

    def counts_on_it() -> None:
        raise ZeroDivisionError

    with pytest.raises(ConfigError) as caught:
        each((refuses, counts_on_it, refuses))
    assert [one.path for one in (caught.value, *caught.value.others)] == ["a", "a"]
    with pytest.raises(ZeroDivisionError):
        each((counts_on_it, refuses))
