"""The servers around the gateways: Redis, haproxy and the engine, each a process that is started, stopped, frozen and killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.waiting import until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy" / "haproxy" / "haproxy.cfg"


class Server:
    """A process and its log."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self.directory = name, directory
        self.log = directory / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, *command: str) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)

    def ready(self) -> bool:
        """Whether it still runs; an AssertionError with its log when it does not."""
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended:\n{self.log.read_text()}")
        return True

    def freeze(self) -> None:
        """SIGSTOP: it answers nothing and closes nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(60)


class RedisServer(Server):
    """A Redis without persistence, on a Unix socket of its own; what it holds is lost when it stops."""

    def __init__(self, directory: Path, *settings: str, name: str = "redis", port: int = 0) -> None:
        """settings: further arguments of redis-server."""
        super().__init__(name, directory)
        self.socket = str(directory / f"{name}.sock")
        self.port, self.settings = port, settings

    def start(self) -> RedisServer:
        program = shutil.which("redis-server")
        assert program is not None, "the tests need Redis (Debian: apt-get install redis-server)"
        place = ("--port", str(self.port), "--unixsocket", self.socket, "--bind", "127.0.0.1", "--dir", str(self.directory))
        self.run(program, *place, "--save", "", "--appendonly", "no", *self.settings)
        until(lambda: self.ready() and self.command("PING") == b"+PONG", what="Redis")
        return self

    def command(self, *words: str) -> bytes:
        """The first line of the answer to a command; nothing while nobody answers."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(60)
                connection.connect(self.socket)
                parts = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
                connection.sendall(f"*{len(words)}\r\n{parts}".encode())
                return connection.recv(65536).partition(b"\r\n")[0]
        except OSError:
            return b""


class Sentinel(Server):
    """A Redis Sentinel, alone, that watches the master at `port` under the name `main`."""

    def __init__(self, directory: Path, port: int, master: int) -> None:
        super().__init__("sentinel", directory)
        self.port, self._master = port, master

    def start(self) -> Sentinel:
        program = shutil.which("redis-server")
        assert program is not None, "the tests need Redis (Debian: apt-get install redis-server)"
        file = self.directory / "sentinel.conf"
        file.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\nsentinel monitor main 127.0.0.1 {self._master} 1\n"
            "sentinel down-after-milliseconds main 60000\nsentinel failover-timeout main 60000\n"
        )
        self.run(program, str(file), "--sentinel")
        until(lambda: self.ready() and answers(self.port), what="the Sentinel")
        return self


class EngineServer(Server):
    """`tests.cluster.engine` on a port of its own."""

    def __init__(self, directory: Path, port: int) -> None:
        super().__init__("engine", directory)
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def start(self) -> EngineServer:
        self.run(sys.executable, "-m", "tests.cluster.engine", "--port", str(self.port))
        until(lambda: self.ready() and answers(self.port), what="the engine")
        return self


class Haproxy(Server):
    """haproxy with the configuration of deploy/haproxy, on other addresses and with quicker checks."""

    def __init__(self, directory: Path, port: int, replicas: dict[str, int]) -> None:
        super().__init__("haproxy", directory)
        self.port, self._replicas = port, replicas
        self.url = f"http://127.0.0.1:{port}"
        self._socket = directory / "haproxy.sock"

    def start(self) -> Haproxy:
        program = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert program is not None, "the tests need haproxy (Debian: apt-get install haproxy)"
        file = self.directory / "haproxy.cfg"
        file.write_text(self._configuration(EXAMPLE.read_text()))
        self.run(program, "-db", "-f", str(file))
        until(lambda: self.ready() and self._socket.exists() and answers(self.port), what="haproxy")
        return self

    def _configuration(self, text: str) -> str:
        servers = "\n".join(f"    server {name} 127.0.0.1:{port} check" for name, port in self._replicas.items())
        changes = {
            r"stats socket \S+": f"stats socket {self._socket}",
            r"^    bind :80$": f"    bind 127.0.0.1:{self.port}",
            r"inter 500ms fastinter 250ms downinter 500ms": "inter 100ms fastinter 50ms downinter 100ms",
            r"(^    server \w+ \S+ check\n?)+": f"{servers}\n",
            r"^global$": "global\n    no strict-limits\n    no insecure-fork-wanted",
        }
        for pattern, by in changes.items():
            text, count = re.subn(pattern, by, text, flags=re.MULTILINE)
            assert count == 1, f"{EXAMPLE} has no line for {pattern}"
        return text

    def tell(self, words: str) -> str:
        """The answer of the operator's socket to a command, such as `disable server replicas/a`."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(self._socket))
            connection.sendall(words.encode() + b"\n")
            answer = b""
            while part := connection.recv(65536):
                answer += part
        return answer.decode()

    def up(self) -> set[str]:
        """The replicas that get traffic."""
        rows = [row.split(",") for row in self.tell("show stat").splitlines()]
        at = rows[0].index("status")
        return {row[1] for row in rows if row[0] == "replicas" and row[1] in self._replicas and row[at].startswith("UP")}


def answers(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    with socket.socket() as connection:
        connection.settimeout(60)
        return connection.connect_ex(("127.0.0.1", port)) == 0


def short_directory(prefix: str) -> Path:
    """A new folder whose path is short enough for Unix sockets."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
