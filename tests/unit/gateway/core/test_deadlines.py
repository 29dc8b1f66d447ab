"""Deadlines of a process that stands still, on an event loop whose clock a test moves."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gateway.core import deadlines
from gateway.core.deadlines import Patience, within
from gateway.core.pauses import MOST_REST_SECONDS
from tests.fakes.paused import Paused, Standing, run


async def receive(loop: Paused, sock: socket.socket, seconds: float) -> bytes:
    async with within(seconds):
        return await loop.sock_recv(sock, 100)


@pytest.fixture
def pair() -> Any:
    one, two = socket.socketpair()
    with one, two:
        one.setblocking(False)
        yield one, two


@pytest.mark.parametrize("pause", [5.01, 12.0, 100.0])
def test_what_arrived_while_the_process_stood_still_is_read(pair: Any, pause: float) -> None:
    async def test(loop: Paused) -> None:
        waiting = asyncio.ensure_future(receive(loop, pair[0], 5.0))
        await asyncio.sleep(0)
        pair[1].send(b"in time")
        loop.paused = pause
        assert await waiting == b"in time"

    run(test)


def test_what_comes_as_much_later_is_waited_for_and_no_longer(pair: Any) -> None:
    async def test(loop: Paused) -> None:
        waiting = [asyncio.ensure_future(receive(loop, pair[0], 5.0)) for _ in range(2)]
        await asyncio.sleep(0)
        loop.paused = 15.0  # ten too late
        await asyncio.sleep(0)
        loop.paused += 9.0
        pair[1].send(b"again")
        done, (left,) = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert done.pop().result() == b"again"
        loop.paused += 1.1
        with pytest.raises(TimeoutError):
            await left

    run(test)


def test_what_had_just_begun_gets_its_time_again(pair: Any) -> None:
    async def test(loop: Paused) -> None:
        waiting = asyncio.ensure_future(receive(loop, pair[0], 5.0))
        await asyncio.sleep(0)
        loop.paused = 6.5  # a second and a half too late
        await asyncio.sleep(0)
        loop.paused += 4.5
        await asyncio.sleep(0)
        pair[1].send(b"begun anew")
        assert await waiting == b"begun anew"

    run(test)


def test_a_rest_is_bounded_and_there_is_one(pair: Any) -> None:
    async def test(loop: Paused) -> None:
        waiting = asyncio.ensure_future(receive(loop, pair[0], 5.0))
        await asyncio.sleep(0)
        loop.paused = 1000.0
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        loop.paused += MOST_REST_SECONDS + 0.1
        with pytest.raises(TimeoutError):
            await waiting

    run(test)


def test_without_a_pause_it_is_a_deadline(pair: Any) -> None:
    async def test(loop: Paused) -> None:
        for seconds in (-5.0, 0.0, 0.01):
            began = loop.time()
            with pytest.raises(TimeoutError):
                await receive(loop, pair[0], seconds)
            assert loop.time() - began >= seconds

    run(test)


def test_a_cancellation_passes_and_nothing_is_left(pair: Any) -> None:
    async def test(loop: Paused) -> None:
        waiting = asyncio.ensure_future(receive(loop, pair[0], 5.0))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        loop.paused = 60.0
        await asyncio.sleep(0)
        async with within(5.0):
            pass
        loop.paused += 60.0
        await asyncio.sleep(0)

    run(test)


def test_a_wait_can_be_over_before_its_time(pair: Any) -> None:
    async def test(loop: Paused) -> None:
        wait = within(3600.0)
        loop.call_soon(wait.end)
        with pytest.raises(TimeoutError):
            async with wait:
                await asyncio.Event().wait()
        wait.end()  # it is over already

    run(test)


def test_the_time_for_several_waits_begins_again_once_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Standing()
    monkeypatch.setattr(deadlines, "time", clock)
    patience = Patience(5.0)
    clock.pause(4.0)
    assert 0.0 < patience.left() <= 1.0, "what is left after a pause that took less"
    clock.pause(1.5)
    assert -1.0 < patience.left() <= 0.0, "it is over, as without a pause"
    clock.pause(6.5)
    assert 4.0 < patience.left() < 5.1
    clock.pause(12.0)
    assert patience.left() < 0.0
