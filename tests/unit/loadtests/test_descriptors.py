"""What open descriptors are told to be."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtests.descriptors import kinds


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def test_connections_are_told_apart_by_where_they_lead(stack: ExitStack) -> None:
    before = kinds(os.getpid())
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = listener.getsockname()[1]
    for _ in range(3):
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        stack.enter_context(listener.accept()[0])
    after = kinds(os.getpid())
    # the client's end has a port of its own, which nobody listens on
    assert after[f"tcp in :{port}"] == 3
    assert after["tcp out"] - before.get("tcp out", 0) == 3
    assert after["listening"] - before.get("listening", 0) == 1


def test_unix_sockets_and_files_go_by_their_names(stack: ExitStack) -> None:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gh")))
    before = kinds(os.getpid())
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(folder / "engine.sock"))
    listener.listen()
    client = stack.enter_context(socket.socket(socket.AF_UNIX))
    client.connect(str(folder / "engine.sock"))
    stack.enter_context(listener.accept()[0])
    stack.enter_context((folder / "audit-0f3c-12.log").open("w"))
    after = kinds(os.getpid())
    assert after["unix engine.sock"] == 2
    assert after["unix out"] - before.get("unix out", 0) == 1
    assert sum(after.values()) - sum(before.values()) == 4


def test_a_process_that_has_ended_has_none() -> None:
    assert kinds(2**22 + 1) == {}
