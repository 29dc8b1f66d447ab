"""Which clients a sweep looks at: those with connections, and all that have a deadline at once."""

from __future__ import annotations

import asyncio

import pytest

from gateway.app.engines.connections import ROUND, Connections
from gateway.core.errors import EngineTimeout
from gateway.core.specs import EngineSpec
from gateway.transport.pool import EndpointClient
from tests.fakes.engine import FakeEngine
from tests.fakes.receiver import Sink
from tests.unit.gateway.transport.conftest import BODY, HEAD


class Counted(Connections):
    """Notes whom each sweep looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.looked: list[EndpointClient] = []

    def sweep(self) -> int:
        """How many clients a sweep knows of."""
        self.tick()
        return len(self._connected)


async def test_a_client_is_swept_from_its_first_connection_until_its_last():
    connections = Counted()
    async with FakeEngine() as engine:
        clients = [connections.client(EngineSpec(name=f"e{n}", runtime="external", url=engine.address), engine.address) for n in range(50)]
        assert connections.sweep() == 0
        for client in clients[:3]:
            sink = Sink()
            client.send(HEAD, BODY, sink, 30.0, 10.0)
            await sink.finished()
        assert connections.sweep() == 3
        for client in clients:
            await client.aclose()
        for _ in range(2 * ROUND):
            left = connections.sweep()
        assert left == 0


async def test_a_pause_of_this_process_does_not_count_against_engines():
    now = [1000.0]
    connections = Connections(lambda: now[0])

    def tick(seconds: float, steps: int = 1) -> None:
        for _ in range(steps):
            now[0] += seconds
            connections.tick()

    async with FakeEngine() as engine:
        client = connections.client(EngineSpec(name="e", runtime="external", url=engine.address), engine.address)
        sink = Sink()
        sink.call = client.send(HEAD + b"x-fake: hang\r\n", BODY, sink, 10.0, 10.0)
        await engine.until(lambda: len(engine.requests) == 1)
        tick(0.5, 19)
        tick(60.0)
        assert not sink.over
        tick(0.5, 4)
        with pytest.raises(EngineTimeout):
            await sink.finished()
        await client.aclose()


async def test_a_deadline_that_has_passed_ends_its_call_however_many_rest():
    """The first sweep sets the deadline, the second finds that it has passed."""
    connections = Connections()
    async with FakeEngine() as engine:
        clients = [connections.client(EngineSpec(name=f"e{n}", runtime="external", url=engine.address), engine.address) for n in range(30)]
        for client in clients:
            sink = Sink()
            client.send(HEAD, BODY, sink, 30.0, 10.0)
            await sink.finished()
        late = Sink()
        late.call = clients[7].send(HEAD + b"x-fake: hang\r\n", BODY, late, 0.0, 10.0)
        connections.tick()
        connections.tick()
        with pytest.raises(EngineTimeout):
            await late.finished()
        await asyncio.gather(*(client.aclose() for client in clients))


async def test_requests_sent_again_are_counted_by_engine_whatever_client_sent_them() -> None:
    def resends() -> dict[str, float]:
        return {sample.labels["engine"]: sample.value for metric in connections.collect() for sample in metric.samples}

    connections = Connections()
    async with FakeEngine() as engine:
        for asked in range(1, 3):  # as before and after a restart of the engine
            client = connections.client(EngineSpec(name="a", runtime="external", url=engine.address), engine.address)
            other = connections.client(EngineSpec(name="b", runtime="external", url=engine.address), engine.address)
            assert resends() == ({} if asked == 1 else {"a": 1, "b": 0})
            for one in (client, other):
                kept = Sink()
                one.send(HEAD, BODY, kept, 30.0, 10.0)
                await kept.finished()
            again = Sink()
            client.send(HEAD + b"x-fake: reset:at=before\r\n", BODY, again, 30.0, 10.0)
            await again.failed()  # this engine closes the new connection, too
            assert resends() == {"a": asked, "b": 0}
            await asyncio.gather(client.aclose(), other.aclose())
