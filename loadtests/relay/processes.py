"""Starting, pinning, measuring and stopping the processes of a benchmark (Linux: /proc, taskset)."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """CPU seconds of all threads since they started, and resident MiB, of a process with all its descendants."""

    cpu: float
    rss_mib: float


def need(*programs: str) -> None:
    """Ends the run, naming the Debian packages, when a program is missing."""
    missing = [name for name in programs if shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin") is None]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}. On Debian: apt-get install {' '.join(missing)}")


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: list[str], core: int, log: IO[bytes], env: dict[str, str] | None = None) -> Iterator[int]:
    """Runs the command on one core, in a process group of its own; gives its process id, and leaves nothing of it behind."""
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        yield process.pid
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Asks the group to end, and insists after ten seconds: a gateway drains before it goes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def usage(pid: int) -> Usage:
    """The scheduler's nanosecond account of every thread, and the resident pages, over the process's whole tree."""
    cpu = rss = 0.0
    waiting = [pid]
    while waiting:
        process = Path(f"/proc/{waiting.pop()}")
        try:
            for thread in (process / "task").iterdir():
                cpu += int((thread / "schedstat").read_text().split()[0]) / 1e9
                waiting += [int(child) for child in (thread / "children").read_text().split()]
            rss += int((process / "statm").read_text().split()[1]) * PAGE / 2**20
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while it was read
    return Usage(cpu, rss)


def ended(pid: int) -> bool:
    """Whether a child has ended and waits to be asked why."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until_answers(port: int, request: bytes, marker: bytes, log: Path, limit: float = 120.0, pid: int = 0) -> None:
    """Sends the benchmark's own request until the answer is 200 and holds `marker`, which only the engine behind can have written. Raises
    SystemExit with the end of the log after `limit` seconds, or once the child `pid` has ended."""
    deadline = time.monotonic() + limit
    seen = b"nothing"
    while time.monotonic() < deadline and not (pid and ended(pid)):
        try:
            seen = _ask(port, request, marker) or seen
        except OSError as error:
            seen = str(error).encode()
        if seen.startswith(b"HTTP/1.1 200") and marker in seen:
            return
        time.sleep(0.2)
    tail = log.read_bytes()[-2000:].decode(errors="replace")
    why = "ended before it relayed an answer" if pid and ended(pid) else "never relayed an answer"
    raise SystemExit(f"the gateway for port {port} {why}; last: {seen[:300]!r}\n{tail}")


def _ask(port: int, request: bytes, marker: bytes) -> bytes:
    """What the first answer holds up to the marker, or up to its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        answer = b""
        while marker not in answer and (piece := connection.recv(65536)):
            answer += piece
        return answer
