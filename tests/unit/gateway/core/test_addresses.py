"""No credential in an address is shown, however wrong the address is."""

from __future__ import annotations

import pytest

from gateway.core.addresses import holds_mask, quotable, without_login, without_logins
from gateway.core.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("postgresql://gate:hunter2@db/gate", "postgresql://gate:********@db/gate"),
        ("postgresql://gate@db/gate", "postgresql://gate@db/gate"),
        ("postgresql://gate:hun@ter2@db/gate", "postgresql://********@db/gate"),
        ("postgresql://gate:hun/ter2@db/gate", "postgresql://********@db/gate"),
        ("postgresql://gate:hun?ter#2@db/gate", "postgresql://********@db/gate"),
        ("postgresql://gate:hun ter2@[db", "postgresql://********@[db"),
        ("redis://:hunter2@cache:6379", "redis://:********@cache:6379"),
        ("https://hunter2@hooks.example/x", "https://********@hooks.example/x"),
        ("https://hooks.example/x?a=1&token=hunter2&b=2", "https://hooks.example/x?a=1&token=********&b=2"),
        ("https://bucket.example/x?X-Amz-Signature=hunter2", "https://bucket.example/x?X-Amz-Signature=********"),
        ("http://engine:8000/models/a@b", "http://engine:8000/models/a@b"),
        ("http://engine/models/a@b", "http://engine/models/a@b"),
        ("http://[::1]:8000/a@b", "http://[::1]:8000/a@b"),
        ("llama:7b", "llama:7b"),
    ],
)
def test_an_address_is_shown_without_its_credentials(value: str, shown: str) -> None:
    assert without_login(value) == quotable(value) == shown
    assert holds_mask(shown) == ("***" in shown)
    for said in (
        without_logins(f"there is '{value}' (write http://HOST)"),
        str(ConfigError(f"{value!r} cannot be used", path=f"a.{value}")),
    ):
        assert "hunter2" not in said


def test_a_login_without_a_scheme_is_not_quoted() -> None:
    assert quotable("gate:hunter2@cache:26379") == "gate:********@cache:26379"
    assert quotable("alice@example.com") == "alice@example.com"


def test_sentences_keep_the_rest() -> None:
    text = "'http://u:p@one' and ftp://h/x; tell me@x.example: http://two?token=abc https://three:443/a"
    assert without_logins(text) == ("'http://********@one' and ftp://h/x; tell me@x.example: http://two?token=******** https://three:443/a")
