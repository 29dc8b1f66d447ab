"""Engines of the store: secrets are sealed or named by a variable, no setting names a file."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.app.engines.stored import engine_of
from gateway.config.convert import with_plain_settings
from gateway.core.clock import SystemEntropy
from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs import EngineSpec
from gateway.core.storage import engine_secret
from gateway.store.seal import Sealer

SEALER = Sealer(b"p" * 32, SystemEntropy())
URL = "http://10.0.0.1"
ENVIRON = {"GATEHOUSE_SECRET_VLLM": "sk-from-the-environment", "GATEHOUSE_PEPPER": "never to be read", "GATEHOUSE_SECRET_EMPTY": ""}


def sealed(text: str, field: str, url: str = URL) -> str:
    return SEALER.seal(Secret(text), engine_secret("e", url, field))


def read(**body: Any) -> EngineSpec:
    found = with_plain_settings(engine_of("e", {"runtime": "external", "url": URL, **body}, ENVIRON, SEALER.unseal), OURS.schemas())
    assert isinstance(found, EngineSpec)
    return found


def test_secrets_are_opened_where_they_are_used() -> None:
    found = read(api_key=sealed("sk-1", "api_key"), headers={"x-a": sealed("v", "headers.x-a"), "x-b": "${env:GATEHOUSE_SECRET_VLLM}"})
    assert found.api_key == Secret("sk-1")
    assert found.headers == {"x-a": "v", "x-b": "sk-from-the-environment"}
    assert read(api_key="${env:GATEHOUSE_SECRET_VLLM}").api_key == Secret("sk-from-the-environment")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sk-in-plain-text", "cannot be opened"),
        ("${env:GATEHOUSE_PEPPER}", "GATEHOUSE_SECRET_"),
        ("${env:HOME}", "GATEHOUSE_SECRET_"),
        ("${file:/etc/shadow}", "GATEHOUSE_SECRET_"),
        ("Bearer ${env:GATEHOUSE_SECRET_VLLM}", "GATEHOUSE_SECRET_"),
        ("${env:GATEHOUSE_SECRET_NONE}", "is not set here"),
        ("${env:GATEHOUSE_SECRET_EMPTY}", "is empty here"),
    ],
)
def test_a_secret_that_cannot_be_had_is_an_error_that_does_not_show_it(text: str, words: str) -> None:
    for settings, path in (({"api_key": text}, "api_key"), ({"headers": {"x-a": text}}, "headers.x-a")):
        with pytest.raises(ConfigError) as caught:
            read(**settings)
        assert words in caught.value.message and caught.value.path == path
        assert "sk-in" not in str(caught.value) and "never" not in str(caught.value)


def test_a_sealed_secret_opens_for_its_address_only() -> None:
    secret = sealed("sk-1", "api_key")
    with pytest.raises(ConfigError, match="cannot be opened"):
        read(api_key=secret, url="http://10.6.6.6")
    with pytest.raises(ConfigError, match="cannot be opened"):
        read(headers={"x-a": secret})


@pytest.mark.parametrize("settings", [{"tls": {"ca": "/etc/ssl/ca.pem"}}, {"tls": {"key": "k"}}, {"options": {"provider": {"x": "y"}}}])
def test_settings_that_name_files_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="belong in the configuration file"):
        read(**settings)


def test_options_are_those_of_the_runtime() -> None:
    sidecar: dict[str, Any] = {"runtime": "llama.cpp", "url": None, "model": "m.gguf"}
    assert read(**sidecar, options={"stall": 3, "max_body_bytes": "1MiB"}).options == {"stall": 3.0, "max_body_bytes": 1 << 20}
    with pytest.raises(ConfigError, match="did you mean 'stall'") as caught:
        read(**sidecar, options={"stal": 3})
    assert caught.value.path == "options.stal"


def test_settings_of_another_version_are_an_error_without_values() -> None:
    with pytest.raises(ConfigError, match="this version cannot use it") as caught:
        read(later="sk-9")
    assert "sk-9" not in str(caught.value)
