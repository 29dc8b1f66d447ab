"""Where engines of the store may be: not at addresses of this machine or link, unless the configuration allows them."""

from __future__ import annotations

import pytest

from gateway.app.engines.upstreams import check_address, check_upstream
from gateway.core.errors import ConfigError


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
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "168.63.129.16",
        "100.100.100.200",
        "[::ffff:192.0.0.192]",
    ],
)
def test_addresses_of_this_machine_and_link_are_refused(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_address(f"http://{host}:8000/v1", ())
    assert caught.value.path == "url"


def test_other_addresses_are_taken_and_names_are_asked_for() -> None:
    assert check_address("http://10.0.0.5:8000", ()) is None
    assert check_address("https://[2001:db8::1]", ()) is None
    assert check_address("http://[fd00:ec2::253]", ()) is None
    assert check_address("https://vllm.example:8000", ()) == "vllm.example"


def test_what_the_configuration_allows_is_all_there_is() -> None:
    allowed = ("10.1.0.0/16", "127.0.0.1", "*.models.example")
    assert check_address("http://10.1.2.3", allowed) is None
    assert check_address("http://127.0.0.1:9", allowed) is None
    assert check_address("http://a.models.example", allowed) is None
    assert check_address("http://models.example", allowed) == "models.example"
    assert check_address("http://100.100.100.200", ("100.64.0.0/10",)) is None
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
