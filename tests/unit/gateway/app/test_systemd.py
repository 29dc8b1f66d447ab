"""What the service manager hears and passes, over real datagram sockets and descriptors."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.app.systemd import VARIABLES, ServiceManager, given_sockets, take_variables
from gateway.core.errors import ConfigError
from gateway.core.tasks import TaskOwner
from tests.waiting import reached


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, short_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """The manager's socket, and its name as NOTIFY_SOCKET says it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        if request.param == "path":
            name = str(short_path / "notify")
            sock.bind(name)
        else:
            sock.bind(f"\0gatehouse-test-{os.getpid()}")
            name = f"@gatehouse-test-{os.getpid()}"
        yield sock, name


def heard(sock: socket.socket) -> list[list[str]]:
    """Every message so far, as lines."""
    found = []
    while True:
        try:
            found.append(sock.recv(4096).decode().split("\n"))
        except BlockingIOError:
            return found


def test_start_reload_and_end_are_told(manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    one = ServiceManager({"NOTIFY_SOCKET": name})
    assert one.there
    one.ready("serves 2 models")
    one.reloading()
    one.reloaded("serves 3 models\nand more")
    one.status("upgrading")
    one.stopping(12.5)
    ready, reloading, reloaded, status, stopping = heard(sock)
    assert ready == ["READY=1", "STATUS=serves 2 models"]
    assert reloading[0] == "RELOADING=1" and re.fullmatch(r"MONOTONIC_USEC=\d{6,}", reloading[1])
    assert reloaded == ["READY=1", "STATUS=serves 3 models\\nand more"]
    assert status == ["STATUS=upgrading"]
    assert stopping[0] == "STOPPING=1" and stopping[2] == "EXTEND_TIMEOUT_USEC=12500000"


def test_reloads_that_overlap_end_with_the_last(manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    one = ServiceManager({"NOTIFY_SOCKET": name})
    one.reloading()  # during the start, which is not over before it says so
    one.ready("a")
    one.reloaded("b")
    one.reloading()
    one.reloading()
    one.reloaded("c")
    one.reloaded("d")
    assert [message[0] for message in heard(sock)] == ["READY=1", "READY=1", "RELOADING=1", "RELOADING=1", "READY=1"]


def test_a_reload_does_not_revive_what_leaves(manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    one = ServiceManager({"NOTIFY_SOCKET": name})
    one.ready("a")
    one.reloading()
    one.stopping(1.0)
    one.reloaded("b")
    one.reloading()
    assert [message[0] for message in heard(sock)] == ["READY=1", "RELOADING=1", "STOPPING=1"]


@pytest.mark.parametrize("name", ["", "vsock:2:1234", "/nowhere/at/all"])
def test_without_a_manager_nothing_happens(name: str, caplog: pytest.LogCaptureFixture) -> None:
    one = ServiceManager({"NOTIFY_SOCKET": name})
    one.ready("a")
    one.stopping(1.0)
    assert bool(caplog.records) == bool(name)


def test_a_manager_that_does_not_read_holds_nobody_up_for_long(
    manager: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, name = manager
    monkeypatch.setattr("gateway.app.systemd.SEND_SECONDS", 0.001)
    one = ServiceManager({"NOTIFY_SOCKET": name})
    for _ in range(10_000):
        one.status("x" * 1000)
        if caplog.records:
            break
    assert "cannot be told STATUS=" in caplog.text


async def test_the_watchdog_is_fed_while_the_workers_answer(manager: tuple[socket.socket, str], caplog: pytest.LogCaptureFixture) -> None:
    sock, name = manager
    answers = [True, True, False, True]

    async def alive() -> bool:
        return answers.pop(0) if answers else True

    owner = TaskOwner("test")
    ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "4000", "WATCHDOG_PID": str(os.getpid())}).watch(owner, alive)
    await reached(lambda: not answers)
    await owner.aclose()
    assert heard(sock)[:2] == [["WATCHDOG=1"], ["WATCHDOG=1"]]
    assert "the watchdog is not fed" in caplog.text


@pytest.mark.parametrize("environ", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "-5"}, {"WATCHDOG_USEC": "4000", "WATCHDOG_PID": "1"}])
async def test_a_watchdog_that_is_off_or_for_another_process_is_not_fed(
    manager: tuple[socket.socket, str], environ: dict[str, str]
) -> None:
    owner = TaskOwner("test")

    async def alive() -> bool:
        raise AssertionError

    ServiceManager({"NOTIFY_SOCKET": manager[1], **environ}).watch(owner, alive)
    assert len(owner) == 0
    await owner.aclose()


def test_the_watchdog_gets_its_time_once_more_where_there_is_one(manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    ServiceManager({"NOTIFY_SOCKET": name}).feed()
    assert heard(sock) == []
    ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "600000000"}).feed()
    assert heard(sock) == [["WATCHDOG=1"]]


async def test_a_loop_that_hangs_does_not_feed_the_watchdog(manager: tuple[socket.socket, str]) -> None:
    sock, name = manager
    owner = TaskOwner("test")

    async def alive() -> bool:
        await asyncio.Event().wait()
        return True

    ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000"}).watch(owner, alive)
    await asyncio.sleep(0.02)
    assert heard(sock) == []
    await owner.aclose()


# --- sockets


@pytest.fixture
def passed() -> Iterator[list[socket.socket]]:
    """Two listening sockets whose descriptors follow each other, as systemd passes them."""
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    first = 200
    for number, sock in enumerate(socks):
        os.dup2(sock.fileno(), first + number)
    yield socks
    for sock in socks:
        sock.close()
    for number in range(len(socks)):
        try:
            os.close(first + number)
        except OSError:
            pass


def variables(count: int, names: str, pid: int | None = None) -> dict[str, str]:
    return {"LISTEN_PID": str(pid or os.getpid()), "LISTEN_FDS": str(count), "LISTEN_FDNAMES": names}


def test_sockets_are_taken_by_name(passed: list[socket.socket]) -> None:
    found = given_sockets(variables(2, "admin:data"), 200)
    assert found["admin"].getsockname() == passed[0].getsockname()
    assert found["data"].getsockname() == passed[1].getsockname()
    for sock in found.values():
        assert not sock.getblocking() and not os.get_inheritable(sock.fileno())
        sock.close()


def test_sockets_for_another_process_are_left_alone(passed: list[socket.socket]) -> None:
    assert given_sockets(variables(2, "admin:data", pid=1), 200) == {}
    assert given_sockets({}, 200) == {}


@pytest.mark.parametrize("names", ["", "gatehouse.socket:gatehouse.socket", "data:data", "data"])
def test_names_that_say_nothing_are_refused(passed: list[socket.socket], names: str) -> None:
    with pytest.raises(ConfigError, match="FileDescriptorName="):
        given_sockets(variables(2, names), 200)


def test_a_count_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="LISTEN_FDS"):
        given_sockets({**variables(1, "data"), "LISTEN_FDS": "many"})


def test_what_does_not_listen_is_refused() -> None:
    with socket.socket() as sock, pytest.raises(ConfigError, match="not a listening TCP socket"):
        given_sockets(variables(1, "data"), os.dup(sock.fileno()))
    read, write = os.pipe()
    os.close(write)
    with pytest.raises(ConfigError, match="is not a socket"):
        given_sockets(variables(1, "data"), read)
    os.close(read)


def test_children_inherit_none_of_the_variables() -> None:
    environ = {name: "x" for name in VARIABLES} | {"PATH": "/bin"}
    take_variables(environ)
    assert environ == {"PATH": "/bin"}
