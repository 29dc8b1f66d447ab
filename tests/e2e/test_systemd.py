"""A gateway under a service manager that the test plays: notifications, the watchdog, sockets that were listening before the process."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.core.specs import ListenSpec
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import ROOT, Gatehouse, _read, configuration, external
from tests.e2e.resilience import reload
from tests.waiting import until


class Manager:
    """The service manager's end of NOTIFY_SOCKET, and its sockets. It hears at any time, as a real one does: the kernel keeps ten messages,
    and more are lost."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder / "notify")
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(self.name)
        self._heard: list[str] = []
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()
        self.sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ("data", "admin")}

    def _hear(self) -> None:
        while message := self._sock.recv(4096):
            self._heard.extend(message.decode().split("\n"))

    @property
    def heard(self) -> list[str]:
        """Every line of every message so far."""
        return list(self._heard)

    def port(self, name: str) -> int:
        return int(self.sockets[name].getsockname()[1])

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RD)  # ends the thread's waiting
        self._hearing.join(60)
        for sock in (self._sock, *self.sockets.values()):
            sock.close()


class Service(Gatehouse):
    """Started as systemd does it: descriptors from 3 on, and variables that name the process."""

    manager: Manager
    watchdog = 400_000
    """Microseconds."""

    def launch(self) -> Gatehouse:
        data, admin = (self.manager.sockets[name].fileno() for name in ("data", "admin"))
        command = shlex.join([sys.executable, "-m", "gateway", "serve", "--config", str(self.file), *self.arguments])
        move = f"exec 3<&{admin} 4<&{data} {admin}<&- {data}<&-"
        names = "LISTEN_FDS=2 LISTEN_FDNAMES=admin:data LISTEN_PID=$$ WATCHDOG_PID=$$"
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", f"{move}; {names} exec {command}"],
            cwd=ROOT, env={**self.environ, "NOTIFY_SOCKET": self.manager.name, "WATCHDOG_USEC": str(self.watchdog)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(data, admin),
        )  # fmt: skip
        assert self.process.stdout is not None
        threading.Thread(target=_read, args=(self.process.stdout, self.lines), daemon=True).start()
        return self


@pytest.fixture
def service(short_path: Path, tmp_path: Path, engines: Callable[..., EngineThread]) -> Iterator[Callable[..., Service]]:
    manager = Manager(short_path)
    made: list[Service] = []

    def make(workers: int = 0, **listen: Any) -> Service:
        here = {"data": f"127.0.0.1:{manager.port('data')}", "admin": f"127.0.0.1:{manager.port('admin')}"}
        listed = [external("fake", engines().port, slots=64)]
        config = configuration(tmp_path / "state", engines=listed, models=[{"name": "m1", "pool": ["fake"]}], listen={**here, **listen})
        made.append(Service(tmp_path, config, arguments=["--workers", str(workers)] if workers else []))
        made[-1].manager = manager
        return made[-1]

    yield make
    for each in made:
        each.stop()
    manager.close()


def test_readiness_reloads_the_watchdog_and_the_end_are_told(service: Callable[..., Service]) -> None:
    gatehouse = service()
    manager = gatehouse.manager
    gatehouse.launch()
    gatehouse.url = f"http://127.0.0.1:{manager.port('data')}"
    assert gatehouse.chat().status_code == 200, "it waited in the socket's queue for the gateway to start"
    until(lambda: "READY=1" in manager.heard, what="the readiness")
    assert "STATUS=serves 1 model" in manager.heard, "in the same message"
    until(lambda: manager.heard.count("WATCHDOG=1") >= 3, what="the watchdog's food")

    reload(gatehouse, gatehouse.config)
    until(lambda: manager.heard.count("READY=1") == 2, what="the end of the reload")
    heard = manager.heard
    assert heard.index("RELOADING=1") < len(heard) - heard[::-1].index("READY=1")
    reload(gatehouse, {**gatehouse.config, "nonsense": 1})
    until(lambda: manager.heard.count("READY=1") == 3, what="the end of the refused reload")
    assert any(line.startswith("STATUS=serves 1 model; the newest configuration was refused: ") for line in manager.heard)

    assert gatehouse.stop() == 0
    until(lambda: "STOPPING=1" in manager.heard and "EXTEND_TIMEOUT_USEC=75000000" in manager.heard, what="the end")
    assert not any(line.startswith("MAINPID") for line in manager.heard)


def test_a_loop_that_hangs_starves_the_watchdog(service: Callable[..., Service]) -> None:
    gatehouse = service()
    manager = gatehouse.manager
    gatehouse.launch()
    until(lambda: "WATCHDOG=1" in manager.heard, what="the watchdog's food")
    assert gatehouse.process is not None
    os.kill(gatehouse.process.pid, signal.SIGSTOP)
    try:
        until(lambda: "\nState:\tT" in Path(f"/proc/{gatehouse.process.pid}/status").read_text(), what="the standstill")
        # What was sent before is heard: this message is behind it.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.sendto(b"STANDS STILL", manager.name)
        until(lambda: "STANDS STILL" in manager.heard, what="the messages of before")
        seen = manager.heard.count("WATCHDOG=1")
        threading.Event().wait(0.5)  # more than the watchdog's time
        assert manager.heard.count("WATCHDOG=1") == seen
    finally:
        os.kill(gatehouse.process.pid, signal.SIGCONT)
    until(lambda: manager.heard.count("WATCHDOG=1") > seen, what="food again")


def test_the_sockets_outlive_a_restart(service: Callable[..., Service]) -> None:
    gatehouse = service()
    gatehouse.start()
    assert gatehouse.chat().status_code == 200
    assert gatehouse.stop() == 0
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(gatehouse.chat()))
    thread.start()
    gatehouse.launch()
    thread.join(120)
    assert [answer.status_code for answer in answers] == [200]


def test_an_upgrade_is_a_reload_of_the_same_process_on_the_same_sockets(service: Callable[..., Service]) -> None:
    gatehouse = service(workers=1)
    manager = gatehouse.manager
    gatehouse.start()
    until(lambda: "READY=1" in manager.heard, what="the readiness")
    assert gatehouse.process is not None
    fed = manager.heard.count("WATCHDOG=1")
    gatehouse.process.send_signal(signal.SIGUSR2)
    until(lambda: manager.heard.count("READY=1") == 2, what="the end of the upgrade")
    assert manager.heard.count("RELOADING=1") == 1
    until(lambda: manager.heard.count("WATCHDOG=1") > fed + 2, what="the watchdog's food")
    assert gatehouse.chat().status_code == 200 and gatehouse.process.poll() is None
    assert gatehouse.url.endswith(f":{manager.port('data')}")


def test_an_upgrade_feeds_the_watchdog_before_and_after_the_exec(service: Callable[..., Service]) -> None:
    """Otherwise its time would have to cover the rest of an interval, the new program's start, and another interval."""
    gatehouse = service(workers=1)
    manager = gatehouse.manager
    gatehouse.watchdog = 3_600_000_000  # so nothing is due by itself
    gatehouse.start()
    until(lambda: "READY=1" in manager.heard, what="the readiness")
    assert gatehouse.process is not None
    fed = manager.heard.count("WATCHDOG=1")
    gatehouse.process.send_signal(signal.SIGUSR2)
    until(lambda: manager.heard.count("READY=1") == 2, what="the end of the upgrade")
    until(lambda: manager.heard.count("WATCHDOG=1") >= fed + 2, what="the food after the exec")
    assert manager.heard.count("WATCHDOG=1") == fed + 2
    first, second = [number for number, line in enumerate(manager.heard) if line == "WATCHDOG=1"][fed:]
    assert manager.heard.index("RELOADING=1") < first < second


def test_a_socket_for_another_address_ends_the_start(service: Callable[..., Service]) -> None:
    gatehouse = service(admin="127.0.0.1:1")
    gatehouse.launch()
    assert gatehouse.ended() == 1
    until(lambda: any("listen.admin: the service manager passes a socket on" in line for line in gatehouse.lines), what="the reason")
    assert yaml.safe_load(gatehouse.file.read_text())["listen"]["admin"] == "127.0.0.1:1"


def test_the_units_listen_where_the_configuration_does_by_default() -> None:
    for name in ("data", "admin"):
        unit = (ROOT / f"deploy/systemd/gatehouse-{name}.socket").read_text()
        assert f"\nListenStream={getattr(ListenSpec(), name)}\n" in unit


def test_the_unit_lets_engines_confine_themselves() -> None:
    """Its filter of system calls begins with @system-service, which has no Landlock in systemd 252 (Debian 12) and 255 (Ubuntu 24.04)."""
    unit = (ROOT / "deploy/systemd/gatehouse.service").read_text()
    allowed = {word for line in re.findall(r"^SystemCallFilter=([^~\n]+)", unit, re.MULTILINE) for word in line.split()}
    assert {"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"} <= allowed
