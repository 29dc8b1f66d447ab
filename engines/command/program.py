"""The server that an engine with `runtime: command` is: its command, where it listens, its processes from the first to the last.

Linux only where it names the processes of its group (`/proc`); elsewhere only the program itself is ended.
"""

from __future__ import annotations

import http.client
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from engines.command.options import PLACES, CommandOptions
from engines.confinement import Confinement, confine
from engines.sidecar.loading import LoadError, cache_folder, readable
from gateway.core.specs import SidecarSpec

_PLACE = re.compile(r"\$\{(" + "|".join(PLACES) + r")\}")
SOCKET = "c.sock"
LOG_MOST: Final = 16 * 1024 * 1024
SAY_SECONDS: Final = 1.0
"""How long a log with room again must be silent before it says what was left out."""
_NETWORK: Final = (
    *map(Path, ("/etc/hosts", "/etc/host.conf", "/etc/gai.conf", "/etc/resolv.conf", "/etc/services", "/etc/protocols")),
    *map(Path, ("/etc/ssl", "/etc/mime.types")),
)
"""What a server reads of a system, besides what every program does."""


class Program:
    """One life of the server. It belongs to this process's group, which the supervisor ends as a whole.

    options: of the engine, checked. Raises LoadError for those that make no sense.
    """

    def __init__(self, spec: SidecarSpec) -> None:
        try:
            self.options = msgspec.convert(spec.options, CommandOptions)
        except msgspec.ValidationError as error:
            raise LoadError("invalid_options", f"options: {error}") from None
        self._spec = spec
        own = Path(spec.socket).parent
        self._folders = (own, cache_folder(spec.state_dir, spec.name))
        self._socket = own / SOCKET
        self.port = _free_port() if self._names("port") else 0
        self._process: subprocess.Popen[bytes] | None = None

    def _names(self, place: str) -> bool:
        return any(f"${{{place}}}" in text for text in (*self.options.command, *self.options.environment.values()))

    @property
    def address(self) -> str:
        """Where the gateway asks it: the socket if the command names one, else the port on the loopback."""
        return f"unix:{self._socket}" if self._names("socket") else f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """The program, found in PATH, and its arguments. Raises LoadError if there is no such program."""
        first, *rest = map(self._filled, self.options.command)
        found = shutil.which(first)
        if found is None:
            raise LoadError("model_missing", f"options.command: there is no program {first!r}")
        return [found, *rest]

    def _filled(self, text: str) -> str:
        spec = self._spec
        values = {
            "port": str(self.port), "socket": str(self._socket), "model": spec.model, "key": spec.key or "", "context": str(spec.context),
            "slots": str(spec.slots), "threads": str(spec.threads), "device": spec.device, "state": str(self._folders[1]),
        }  # fmt: skip
        return _PLACE.sub(lambda match: values[match[1]], text)

    def confine(self) -> Confinement:
        """Confines this process, and so the server too, which inherits all of it."""
        options, (own, cache) = self.options, self._folders
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ.update(TMPDIR=str(own), HOME=str(cache), XDG_CACHE_HOME=str(cache))
        os.environ.update({name: self._filled(value) for name, value in options.environment.items()})
        model = readable(Path(self._spec.model)) if Path(self._spec.model).is_absolute() else iter(())
        return confine(
            reads=(*_NETWORK, *model, *map(Path, options.reads)),
            writes=(own, cache, *map(Path, options.writes)),
            devices=self._spec.device != "cpu",
            files=options.confine,
            executes=tuple(_prefixes(Path(self.command()[0]))),
            ports=None if options.network else (self.port,) if self.port else (),
        )

    def begin(self) -> None:
        """Starts the server; both its outputs go to the engine's log. Raises LoadError."""
        self._socket.unlink(missing_ok=True)
        try:
            self._process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:
            raise LoadError("model_missing", f"options.command: {error.filename}: {error.strerror}") from None
        assert self._process.stdout is not None
        threading.Thread(target=copy_log, args=(self._process.stdout.fileno(), sys.stderr.fileno()), name="log", daemon=True).start()

    @property
    def ended(self) -> int | None:
        """Its exit code; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def asked(self, seconds: float) -> str | None:
        """What its health check says: None if it is well, else why not. Blocks up to `seconds`."""
        connection = _Connection(self._socket if self._names("socket") else None, self.port, seconds)
        try:
            headers = {"Authorization": f"Bearer {self._spec.key}"} if self._spec.key else {}
            connection.request("GET", self.options.health, headers=headers)
            answer = connection.getresponse()
            answer.read(65536)
            return None if 200 <= answer.status < 300 else f"GET {self.options.health} answered {answer.status}"
        except (OSError, http.client.HTTPException) as error:
            return f"GET {self.options.health}: {error or type(error).__name__}"
        finally:
            connection.close()

    def end(self) -> None:
        """Ends the server and what it has started: SIGTERM, and after `stop_timeout` SIGKILL. Blocks; safe to call again."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(self.options.stop_timeout)
            except subprocess.TimeoutExpired:
                print(f"engine {self._spec.name}: SIGTERM did not end it in {self.options.stop_timeout:g} s", file=sys.stderr, flush=True)
                process.kill()
                process.wait()
        for pid in _group(os.getpgrp()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._socket.unlink(missing_ok=True)

    def memory(self) -> int:
        """Bytes of main memory that it and its processes hold now; 0 where that cannot be read."""
        return sum(map(_resident, _group(os.getpgrp())))


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path | None, port: int, seconds: float) -> None:
        super().__init__("127.0.0.1", port, timeout=seconds)
        self._path = path

    def connect(self) -> None:
        if self._path is None:
            return super().connect()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def copy_log(source: int, log: int, most: int = LOG_MOST) -> None:
    """Copies what the server says into the engine's log until it has ended. The supervisor rotates the log now and then; what comes while
    it is larger than `most` bytes is dropped, so that no server fills the disk; the log says how much once it has room again."""
    dropped = 0
    while True:
        if dropped and not select.select([source], [], [], SAY_SECONDS)[0]:
            if os.fstat(log).st_size <= most:
                dropped = _say_dropped(log, dropped)
            continue
        if not (read := os.read(source, 65536)):
            break
        if os.fstat(log).st_size > most:
            dropped += len(read)
            continue
        if dropped:
            dropped = _say_dropped(log, dropped)
        _write(log, read)
    if dropped:
        _say_dropped(log, dropped)


def _say_dropped(log: int, count: int) -> int:
    """Says how many bytes the log lacks; none are owed after that."""
    _write(log, b"\n[%d bytes of the log were dropped: too many at once]\n" % count)
    return 0


def _write(log: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(log, data) :]
        except OSError:
            return  # the disk is full: the server goes on without a log


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _prefixes(program: Path) -> Iterator[Path]:
    """What a program may be made of: its file, and all of an environment whose `bin` it lies in. Links are followed."""
    for path in {program, program.resolve()}:
        yield path
        if path.parent.name == "bin" and path.parent.parent != Path("/"):
            yield path.parent.parent


def _group(group: int) -> list[int]:
    """The processes of a group, without this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[2]) == group and fields[0] != "Z" and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def wait_until_ready(program: Program) -> None:
    """Blocks until the server is well. Raises LoadError if it ends, or is not after `start_timeout` seconds."""
    begun, why = time.monotonic(), "it has not been asked"
    while time.monotonic() - begun < program.options.start_timeout:
        if (code := program.ended) is not None:
            raise LoadError("engine_failed", f"the command ended with code {code} before it was ready; its log says why")
        answer = program.asked(min(program.options.health_timeout, 2.0))
        if answer is None:
            return
        why = answer
        time.sleep(0.1)
    raise LoadError("engine_failed", f"the command was not ready within {program.options.start_timeout:g} s: {why}")
