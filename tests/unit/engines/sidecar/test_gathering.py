"""What a sidecar writes in one turn of the loop leaves together."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from engines.sidecar.gathering import GatheringProtocol
from engines.sidecar.http import Response, send_whole
from gateway.core.gathering import MOST, GatheringTransport


class Recorded(asyncio.Transport):
    """Keeps each call that would be a system call."""

    def __init__(self) -> None:
        super().__init__({"sockname": "", "peername": ""})
        self.calls: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.calls.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.calls.append(b"".join(list_of_data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send_whole(send, Response(b'{"whole": true}'))


def test_head_and_body_of_an_answer_leave_in_one_call() -> None:
    async def scenario() -> list[bytes]:
        config = uvicorn.Config(answer, http=GatheringProtocol, ws="none", lifespan="off", log_config=None, access_log=False)
        config.load()
        state, transport = ServerState(), Recorded()
        protocol = GatheringProtocol(config, state, {}, asyncio.get_running_loop())
        protocol.connection_made(transport)
        for _ in range(2):
            protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            while state.tasks:
                await asyncio.gather(*state.tasks)
            await asyncio.sleep(0)
        protocol.shutdown()
        return transport.calls

    calls = asyncio.run(scenario())
    assert len(calls) == 2
    assert all(call.startswith(b"HTTP/1.1 200 OK\r\n") and call.endswith(b'\r\n\r\n{"whole": true}') for call in calls)


def test_what_was_written_leaves_before_the_end_and_nothing_after_it() -> None:
    async def scenario() -> list[bytes]:
        transport = Recorded()
        gathering = GatheringTransport(transport, asyncio.get_running_loop())
        gathering.write(b"last")
        gathering.close()
        gathering.write(b"too late")
        await asyncio.sleep(0)
        return transport.calls

    assert asyncio.run(scenario()) == [b"last"]


def test_much_is_handed_on_at_once() -> None:
    async def scenario() -> list[int]:
        transport = Recorded()
        gathering = cast(asyncio.Transport, GatheringTransport(transport, asyncio.get_running_loop()))
        gathering.write(b"head")
        gathering.write(b"b" * MOST)
        at_once = list(map(len, transport.calls))
        gathering.write(b"tail")
        await asyncio.sleep(0)
        assert gathering.is_closing() is False
        return [*at_once, -1, *map(len, transport.calls)]

    assert asyncio.run(scenario()) == [MOST + 4, -1, MOST + 4, 4]
