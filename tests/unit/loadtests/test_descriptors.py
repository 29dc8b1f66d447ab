"""What open descriptors are told to be."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.descriptors import kinds
from tests.waiting import until

BEGIN = """
import socket, sys
from pathlib import Path
def say(text):
    print(text, flush=True)
    sys.stdin.readline()
say("begun")
"""
TCP = """
listener = socket.create_server(("127.0.0.1", 0))
ends = []
for _ in range(3):
    ends += [socket.create_connection(listener.getsockname()), listener.accept()[0]]
say(listener.getsockname()[1])
"""
UNIX = """
folder = Path(sys.argv[1])
listener, client = (socket.socket(socket.AF_UNIX) for _ in range(2))
listener.bind(str(folder / "engine.sock"))
listener.listen()
client.connect(str(folder / "engine.sock"))
accepted = listener.accept()[0]
log = (folder / "audit-0f3c-12.log").open("w")
say("open")
"""


@contextmanager
def opening(program: str, *arguments: str) -> Iterator[tuple[str, Callable[[], dict[str, int]]]]:
    """What a program says once it has opened something, and a look at what that is. A process of its own: in this one, what other tests
    have left is closed at any moment."""
    command = [sys.executable, "-c", BEGIN + program, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            before = Counter(kinds(process.pid))
            process.stdin.write("\n")
            process.stdin.flush()
            yield process.stdout.readline().strip(), lambda: dict(Counter(kinds(process.pid)) - before)
        finally:
            process.kill()


def test_connections_are_told_apart_by_where_they_lead() -> None:
    with opening(TCP) as (port, opened):
        # the client's end has a port of its own, which nobody listens on
        expected = {"listening": 1, f"tcp in :{port}": 3, "tcp out": 3}
        until(lambda: opened() == expected, what=f"{expected}; the kernel's tables are not read in one moment")


def test_unix_sockets_and_files_go_by_their_names(short_path: Path) -> None:
    with opening(UNIX, str(short_path)) as (said, opened):
        assert said == "open"
        expected = {"unix engine.sock": 2, "unix out": 1, "audit-N-N.log": 1}
        until(lambda: opened() == expected, what=f"{expected}; the kernel's tables are not read in one moment")


def test_a_process_that_has_ended_has_none() -> None:
    assert kinds(2**22 + 1) == {}
