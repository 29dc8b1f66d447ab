"""What `redis` in the configuration may say."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.errors import ConfigError
from gateway.core.secret import Secret
from gateway.core.specs.base import ClientTlsSpec
from gateway.core.specs.redis import RedisSpec
from gateway.transport.redis.address import Address, target


def spec(url: str | None = None, **more: Any) -> RedisSpec:
    return RedisSpec(url=None if url is None else Secret(url), **more)


@pytest.mark.parametrize(
    ("url", "servers", "db", "user", "password", "tls"),
    [
        ("redis://h", "h:6379", 0, "", None, False),
        ("redis://h:6380/3", "h:6380", 3, "", None, False),
        ("rediss://u:p%40s@h", "h:6379", 0, "u", "p@s", True),
        ("redis://:p@h", "h:6379", 0, "", "p", False),
        ("unix:///run/redis.sock?db=2", "unix:/run/redis.sock", 2, "", None, False),
        ("redis://[::1]:1", "[::1]:1", 0, "", None, False),
        ("redis+sentinel://u:p@a,b:1,[::1]:2/main/4", "main of the Sentinels a:26379, b:1, [::1]:2", 4, "u", "p", False),
        ("rediss+sentinel://a/main", "main of the Sentinels a:26379", 0, "", None, True),
    ],
)
def test_addresses(url: str, servers: str, db: int, user: str, password: str | None, tls: bool) -> None:
    found = target(spec(url))
    shown = None if found.login.password is None else found.login.password.reveal()
    assert (str(found), found.db, found.login.user, shown, found.tls is not None) == (servers, db, user, password, tls)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "h:6379",
            "http://h",
            "redis://",
            "redis:///x",
            "unix://",
            "unix://h/x",
            "redis://h:0",
            "redis://u:hunter2@h:x",
            "redis://[::1",
        ),
        *("redis://u:hunter2@h#x", "redis+sentinel://u:hunter2@a", "redis+sentinel:///main"),
    ],
)
def test_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="redis://") as caught:
        target(spec(url))
    assert caught.value.path == "redis.url" and "hunter2" not in caught.value.message


def test_sentinels_and_a_master_instead_of_an_address() -> None:
    found = target(spec(sentinels=("a", "b:7"), master="main", username="u", password=Secret("p"), sentinel_password=Secret("q")))
    assert found.servers == (Address("a", 26379), Address("b", 7)) and found.master == "main" and found.tls is None
    assert found.login.user == "u" and found.sentinel_login.password == Secret("q")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({}, "redis"),
        ({"url": "redis://h", "sentinels": ("a",)}, "redis"),
        ({"url": "redis://h", "master": "m"}, "redis.master"),
        ({"sentinels": ("a",)}, "redis.master"),
        ({"sentinels": ("a/b",), "master": "m"}, "redis.sentinels[0]"),
        ({"sentinels": ("a", "b:x"), "master": "m"}, "redis.sentinels[1]"),
        ({"url": "redis://h", "username": "u"}, "redis.username"),
        ({"url": "redis://:p@h", "password": Secret("q")}, "redis.password"),
        ({"url": "redis://h", "sentinel_password": Secret("q")}, "redis.sentinel_password"),
        ({"url": "redis://h", "tls": ClientTlsSpec()}, "redis.tls"),
        ({"url": "redis://h/x"}, "redis.url"),
        ({"url": "redis://h", "timeout": 0.1, "timeout_ms": 50}, "redis.timeout_ms"),
    ],
)
def test_settings_that_do_not_fit_together(given: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        target(spec(given.pop("url", None), **given))
    assert caught.value.path == path


def test_the_older_name_of_the_timeout() -> None:
    assert (spec("redis://h").patience, spec("redis://h", timeout_ms=70).patience, spec("redis://h", timeout=0.2).patience) == (
        0.05,
        0.07,
        0.2,
    )
