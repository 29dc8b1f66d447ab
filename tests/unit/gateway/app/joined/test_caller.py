"""Where a machine may join. What it says there is in tests/e2e/test_joined_machines.py."""

from __future__ import annotations

import pytest

from gateway.app.joined.caller import checked_url
from gateway.core.errors import ConfigError


def test_admin_listeners() -> None:
    assert checked_url("https://gateway.example:8081/") == "https://gateway.example:8081"
    for text in ("http://127.0.0.1:8081", "http://[::1]:8081", "http://localhost:8081"):
        assert checked_url(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "http://10.1.2.3:8081",
        "http://127.0.0.1.example:8081",
        "gateway:8081",
        "https://u@h:1",
        "https://h/x",
        "https://h?x=1",
        "ftp://h",
        "",
    ],
)
def test_a_token_goes_to_no_other(text: str) -> None:
    with pytest.raises(ConfigError):
        checked_url(text)
