"""Hints are not doubted for what could not be read while this process stood still."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from gateway.core.pauses import MOST_REST_SECONDS
from gateway.store.listening import PATIENCE, PING_SECONDS, Broken, Ear
from tests.fakes.paused import Paused, run


class Wired(Ear):
    """What it says comes back from a socket once the test writes it there."""

    def __init__(self, loop: Paused, sock: socket.socket) -> None:
        super().__init__("own", lambda payload: None)
        self._loop, self._socket = loop, sock
        loop.add_reader(sock, self._readable)

    def _readable(self) -> None:
        self.take(b"own", self._socket.recv(100).decode())
        self.moved()

    async def listen(self, patience: float) -> None: ...

    def say(self, number: int) -> None: ...

    def close(self) -> None:
        self._loop.remove_reader(self._socket)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, two = socket.socketpair()
    with one, two:
        one.setblocking(False)
        yield one, two


@pytest.mark.parametrize("pause", [PATIENCE + 1.5, 100.0])
def test_what_came_back_while_the_process_stood_still_is_read_before_anybody_doubts(
    pair: tuple[socket.socket, socket.socket], pause: float
) -> None:
    async def test(loop: Paused) -> None:
        ear = Wired(loop, pair[0])
        proving = asyncio.ensure_future(ear.prove(PATIENCE))
        await asyncio.sleep(0)
        pair[1].send(b"1")
        loop.paused = pause
        await proving
        ear.close()

    run(test)


def test_what_does_not_come_back_afterwards_either_is_a_fault(pair: tuple[socket.socket, socket.socket]) -> None:
    async def test(loop: Paused) -> None:
        ear = Wired(loop, pair[0])
        proving = asyncio.ensure_future(ear.prove(PATIENCE))
        await asyncio.sleep(0)
        loop.paused = 100.0
        for _ in range(3):
            await asyncio.sleep(0)
        assert not proving.done()
        loop.paused += MOST_REST_SECONDS + 0.1
        with pytest.raises(Broken, match="did not come back"):
            await proving
        ear.close()

    run(test)


def test_after_a_pause_it_is_asked_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    async def test(loop: Paused) -> None:
        ear = Wired(loop, pair[0])
        quiet = asyncio.ensure_future(ear.doubted(PING_SECONDS))
        await asyncio.sleep(0)
        loop.paused = 100.0
        began = loop.time()
        await quiet
        assert loop.time() - began < PING_SECONDS
        ear.close()

    run(test)
