"""What settings from far away may say: names of models and no paths, no address of this machine, secrets sealed or named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app.remote import check_address, check_upstream, engine_of, find_model
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
    return engine_of("e", {"runtime": "external", "url": URL, **body}, ENVIRON, SEALER.unseal)


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
    with pytest.raises(ConfigError, match="belong into the configuration file"):
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


# --- models


@pytest.fixture
def shelves(tmp_path: Path) -> list[Path]:
    places = [tmp_path / "state" / "models", tmp_path / "bundled"]
    for place in places:
        place.mkdir(parents=True)
    (places[0] / "a.gguf").touch()
    (places[1] / "folder").mkdir()
    (places[1] / "folder" / "model.onnx").touch()
    (tmp_path / "secret.gguf").touch()
    (places[0] / "link.gguf").symlink_to(tmp_path / "secret.gguf")
    return places


def test_models_are_found_by_name(shelves: list[Path]) -> None:
    assert find_model("a.gguf", shelves) == shelves[0] / "a.gguf"
    assert find_model("folder", shelves) == find_model("folder/", shelves) == shelves[1] / "folder"
    assert find_model("folder/model.onnx", shelves) == shelves[1] / "folder" / "model.onnx"


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../../secret.gguf",
        "folder/../../../secret.gguf",
        "./a.gguf",
        "..",
        ".",
        "",
        "/",
        "a//b",
        "~/x",
        "..\\x",
        "x\0y",
        "link.gguf",
    ],
)
def test_nothing_else_is_found(shelves: list[Path], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_model(name, shelves)
    assert caught.value.path == "model"


# --- addresses


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.8.9.1",
        "[::1]",
        "0.0.0.0",
        "[::]",
        "169.254.169.254",
        "[fe80::1]",
        "224.0.0.1",
        "[::ffff:127.0.0.1]",
        "[::ffff:a9fe:a9fe]",
    ],
)
def test_addresses_of_this_machine_and_link_are_refused(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_address(f"http://{host}:8000/v1", ())
    assert caught.value.path == "url"


def test_other_addresses_are_taken_and_names_are_asked_for() -> None:
    assert check_address("http://10.0.0.5:8000", ()) is None
    assert check_address("https://[2001:db8::1]", ()) is None
    assert check_address("https://vllm.example:8000", ()) == "vllm.example"


def test_what_the_configuration_allows_is_all_there_is() -> None:
    allowed = ("10.1.0.0/16", "127.0.0.1", "*.models.example")
    assert check_address("http://10.1.2.3", allowed) is None
    assert check_address("http://127.0.0.1:9", allowed) is None
    assert check_address("http://a.models.example", allowed) is None
    assert check_address("http://models.example", allowed) == "models.example"
    for host in ("10.2.0.1", "127.0.0.2", "[::1]"):
        with pytest.raises(ConfigError, match="is not within store"):
            check_address(f"http://{host}", allowed)


@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f000001", "127.1"])
async def test_names_are_judged_by_what_they_stand_for(host: str) -> None:
    with pytest.raises(ConfigError, match=r"is an address of this machine|cannot be resolved"):
        await check_upstream(f"http://{host}:8000", ())


async def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be resolved"):
        await check_upstream("http://no-such-host.invalid", ())
    await check_upstream("http://localhost:1", ("127.0.0.0/8", "::1/128"))
