"""Overrides by GATEHOUSE__... variables and references to variables and files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.config.load import parse
from gateway.core.errors import ConfigError
from gateway.core.specs import ConfigSpec

KEY = "k" * 40
BASE = f"""\
version: 1
identity: {{api_keys: {{static: [{{id: ci, key: {KEY}, tenant: ci, models: ["*"]}}]}}}}
engines:
  - {{name: a, runtime: onnx, model: m}}
  - {{name: b, runtime: external, url: "http://h", headers: {{X-Team: one}}}}
models: [{{name: m, pool: [a]}}]
"""


def read(environ: dict[str, str], text: str = BASE, file: str = "gate.yaml") -> ConfigSpec:
    return parse(text, file=file, environ=environ)


def error(environ: dict[str, str], text: str = BASE, file: str = "gate.yaml") -> str:
    with pytest.raises(ConfigError) as caught:
        read(environ, text, file)
    return str(caught.value)


def test_a_variable_overrides_a_setting() -> None:
    spec = read(
        {
            "GATEHOUSE__LISTEN__DATA": "0.0.0.0:8080",
            "GATEHOUSE__ENGINES__0__SLOTS": "4",
            "GATEHOUSE__STREAM__KEEP_ALIVE": "50ms",
            "GATEHOUSE__MODELS__0__POOL": "[b]",
            "GATEHOUSE__MODELS__0__ROUTING__KEY": "session",
            "GATEHOUSE__ENGINES__1__HEADERS__X-TEAM": "two",
            "GATEHOUSE__WATCH": "true",
            "GATEHOUSE_PORT": "9",
            "OTHER": "x",
        }
    )
    assert spec.listen.data == "0.0.0.0:8080"
    assert spec.engines[0].slots == 4
    assert spec.stream.keep_alive == 0.05
    assert spec.models[0].pool == ("b",)
    assert spec.models[0].routing.key == "session"
    assert spec.engines[1].headers == {"X-Team": "two"}
    assert spec.watch is True


@pytest.mark.parametrize("address", ["[::]:8080", "[::1]:0", "[fe80::1%eth0]:8080"])
def test_an_ipv6_address_with_a_port_is_no_list(address: str) -> None:
    assert read({"GATEHOUSE__LISTEN__DATA": address}).listen.data == address


def test_a_longer_path_wins_over_a_shorter_one() -> None:
    spec = read({"GATEHOUSE__LISTEN__DATA": "127.0.0.1:1", "GATEHOUSE__LISTEN": "{data: '127.0.0.1:2', max_headers: 5}"})
    assert (spec.listen.data, spec.listen.max_headers) == ("127.0.0.1:1", 5)


def test_null_and_secrets_by_variable() -> None:
    spec = read({"GATEHOUSE__ENGINES__1__TLS": "null", "GATEHOUSE__ENGINES__1__API_KEY": "s3cret"})
    assert spec.engines[1].tls is None
    assert spec.engines[1].api_key is not None and spec.engines[1].api_key.reveal() == "s3cret"


def test_an_override_changes_one_use_of_an_anchor_only() -> None:
    text = BASE.replace("model: m}", "model: m, health: &h {interval: 1s}}").replace("headers: {X-Team: one}", "health: *h")
    spec = read({"GATEHOUSE__ENGINES__1__HEALTH__INTERVAL": "9s"}, text)
    assert (spec.engines[0].health.interval, spec.engines[1].health.interval) == (1.0, 9.0)


def test_an_empty_file_is_not_the_variables_mistake() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("null", file="gate.yaml", environ={"GATEHOUSE__STATE_DIR": "x"})
    assert str(caught.value) == "gate.yaml:1: 'version' is missing; it must be 1"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GATEHOUSE__LISTN__DATA", "x", "environment variable GATEHOUSE__LISTN__DATA: listn: unknown key 'listn'; did you mean 'listen'?"),
        ("GATEHOUSE__LISTEN__DTA", "x", "environment variable GATEHOUSE__LISTEN__DTA: listen.dta: unknown key"),
        (
            "GATEHOUSE__ENGINES__0__SLOTS",
            "none-of-these",
            "environment variable GATEHOUSE__ENGINES__0__SLOTS: engines[0].slots: the value (not shown)",
        ),
        (
            "GATEHOUSE__ENGINES__2__SLOTS",
            "1",
            "GATEHOUSE__ENGINES__2__SLOTS: engines: '2' is not a member of this list; it must be a number from 0 to 1",
        ),
        ("GATEHOUSE__ENGINES__A__SLOTS", "1", "engines: 'a' is not a member of this list"),
        (f"GATEHOUSE__ENGINES__{'9' * 5000}__SLOTS", "1", "is not a member of this list; it must be a number from 0 to 1"),
        ("GATEHOUSE__VERSION__X", "1", "version: is a plain value; there is no setting 'x' in it"),
        ("GATEHOUSE__", "1", "names no setting"),
        ("GATEHOUSE__LISTEN____DATA", "1", "names no setting"),
        ("GATEHOUSE__MODELS__0__POOL", "[b", "environment variable GATEHOUSE__MODELS__0__POOL: malformed YAML"),
        ("GATEHOUSE__MODELS__0__POOL", "[c]", "environment variable GATEHOUSE__MODELS__0__POOL: models[0].pool[0]: there is no engine 'c'"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, expected: str) -> None:
    message = error({name: value})
    assert expected in message
    assert "none-of-these" not in message


def test_references_inside_a_value(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from-file\n")
    text = BASE.replace("http://h", "http://${env:HOST}:${env:PORT}").replace("X-Team: one", "A: '${file:secret}', B: '$${env:HOST}'")
    spec = read({"HOST": "example", "PORT": "81"}, text, str(tmp_path / "gate.yaml"))
    assert spec.engines[1].url == "http://example:81"
    assert spec.engines[1].headers == {"A": "from-file", "B": "${env:HOST}"}


def test_a_reference_in_place_of_a_number() -> None:
    assert read({"SLOTS": "3"}, BASE.replace("model: m}", "model: m, slots: '${env:SLOTS}'}")).engines[0].slots == 3


def test_what_a_reference_brings_in_is_not_read_again() -> None:
    spec = read({"A": "${env:B}", "B": "x"}, BASE.replace("X-Team: one", "A: '${env:A}'"))
    assert spec.engines[1].headers == {"A": "${env:B}"}


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("${env:NOPE}", "engines[1].headers.X-Team: the environment variable NOPE is not set"),
        ("${env:EMPTY}", "the environment variable EMPTY is empty"),
        ("${NOPE}", "a reference must be ${env:NAME} or ${file:PATH}"),
        ("${env:NOPE", "a reference must be"),
        ("${env:}", "a reference must be"),
        ("${vault:x}", "a reference must be"),
        ("${file:missing}", "missing: No such file or directory"),
        ("${file:.}", "is not a file"),
        ("${file:big}", "is larger than 65536 bytes"),
        ("${file:binary}", "is not UTF-8 text"),
        ("${file:empty}", "is empty"),
        ("${file:pipe}", "is not a file"),
    ],
)
def test_a_reference_that_leads_nowhere(tmp_path: Path, reference: str, expected: str) -> None:
    (tmp_path / "big").write_text("x" * 65537)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").write_text("\n")
    os.mkfifo(tmp_path / "pipe")
    text = BASE.replace("X-Team: one", f"X-Team: '{reference}'")
    message = error({"EMPTY": ""}, text, str(tmp_path / "gate.yaml"))
    assert "gate.yaml:5: engines[1].headers.X-Team" in message
    assert expected in message
