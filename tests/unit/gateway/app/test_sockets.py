"""The listening sockets: bound, or given and checked against the settings."""

from __future__ import annotations

import socket

import pytest

from gateway.app.sockets import listening, listens_on
from gateway.core.errors import ConfigError
from gateway.core.specs import ListenSpec


def given(host: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family)


def test_what_is_not_given_is_bound() -> None:
    data = given()
    port = data.getsockname()[1]
    found = listening(ListenSpec(data=f"127.0.0.1:{port}", admin="127.0.0.1:0"), {"data": data})
    assert found.data is data and found.admin.getsockname()[1] not in (0, port)
    found.close()
    found.close()
    assert data.fileno() == -1


def test_a_given_socket_with_another_address_is_refused_and_all_are_closed() -> None:
    data, admin = given(), given()
    with pytest.raises(ConfigError, match=r"passes a socket on 127\.0\.0\.1:\d+, not on 127\.0\.0\.1:1: change") as caught:
        listening(ListenSpec(data="127.0.0.1:0", admin="127.0.0.1:1"), {"data": data, "admin": admin})
    assert caught.value.path == "listen.admin"
    assert data.fileno() == admin.fileno() == -1


def test_an_address_in_use_leaves_nothing_open() -> None:
    data, taken = given(), given()
    with pytest.raises(ConfigError, match=r"cannot listen on .*: Address already in use \(`ss -ltnp` names the process"):
        listening(ListenSpec(data="127.0.0.1:0", admin=f"127.0.0.1:{taken.getsockname()[1]}"), {"data": data})
    assert data.fileno() == -1
    taken.close()


@pytest.mark.parametrize(
    ("own", "wanted", "fits"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "0.0.0.0", False),
        ("0.0.0.0", "0.0.0.0", True),
        ("0.0.0.0", "127.0.0.1", False),
        ("::1", "[::1]", True),
        ("::1", "[0:0:0:0:0:0:0:1]", True),
        ("127.0.0.1", "no-such-host.invalid", False),
    ],
)
def test_addresses_are_compared_as_addresses(own: str, wanted: str, fits: bool) -> None:
    with given(own) as sock:
        port = sock.getsockname()[1]
        assert listens_on(sock, f"{wanted}:{port}") == fits
        assert listens_on(sock, f"{wanted}:0") == fits
        assert not listens_on(sock, f"{wanted}:{port ^ 1}")
