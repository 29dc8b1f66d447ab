"""A real PostgreSQL server of a test module's own: its data in a temporary directory, reached over a Unix socket."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from tests.stores import migrate_to_newest

USER = "gatehouse"


def binaries() -> Path:
    """Where Debian keeps the newest server's programs, or where PATH finds them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    assert initdb is not None, "the tests need a PostgreSQL server (Debian: apt-get install postgresql)"
    return Path(initdb).parent


class PostgresServer:
    """`start`, `stop`, `freeze` and `thaw` as often as a test likes. `database` makes a new, empty database and returns its URL; `store`
    makes one that is migrated already (tests/stores.py)."""

    def __init__(self, own_session: bool = False) -> None:
        """own_session: the terminal's signals do not reach it."""
        self._own_session = own_session
        self.directory = Path(tempfile.mkdtemp(prefix="gatehouse-pg-"))
        self._data = self.directory / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._migrated = False
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # initdb refuses root
            account = pwd.getpwnam("postgres")
            os.chown(self.directory, account.pw_uid, account.pw_gid)
            self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        initdb = [str(binaries() / "initdb"), "-D", str(self._data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=self.directory, **self._as)

    def start(self) -> PostgresServer:
        settings = ["listen_addresses=", f"unix_socket_directories={self.directory}", "fsync=off", "max_connections=60"]
        arguments = [str(binaries() / "postgres"), "-D", str(self._data)]
        for setting in settings:
            arguments += ["-c", setting]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                arguments, stdout=log, stderr=log, cwd=self.directory, start_new_session=self._own_session, **self._as
            )
        self._until(self._answers, "the server")
        return self

    def _until(self, condition: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"{what} did not come:\n" + (self.directory / "log").read_text())
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, name: str) -> str:
        return f"postgresql://{USER}@/{name}?host={quote(str(self.directory), safe='')}"

    def database(self) -> str:
        self._count += 1
        name = f"test{self._count}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def store(self) -> str:
        if not self._migrated:
            self.execute("CREATE DATABASE migrated")
            migrate_to_newest(self.url("migrated"), self.directory)
            self._migrated = True
        self._count += 1
        name = f"test{self._count}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE migrated")
        return self.url(name)

    def execute(self, statement: str, url: str | None = None) -> list[tuple[Any, ...]]:
        with psycopg.connect(url or self.url("postgres"), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def stop(self, number: int = signal.SIGINT) -> None:
        """Breaks off every connection and ends ("fast"; SIGQUIT: "immediate", without writing anything more)."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(90)
            self._process = None

    def _all(self) -> list[int]:
        assert self._process is not None
        pid = self._process.pid
        return [pid, *(int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def freeze(self) -> None:
        """Nothing is answered any more, and no connection is closed either."""
        for pid in self._all():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._all():
            os.kill(pid, signal.SIGCONT)

    def remove(self) -> None:
        if self._process is not None:
            self.thaw()
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Import it into a test module; each module has a server of its own."""
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.remove()
