"""No byte of one caller reaches another, however requests are cancelled, failed and interleaved."""

from __future__ import annotations

import asyncio
import json
import random
import re

from gateway.transport.pool import EndpointClient
from tests.fakes.engine import FakeEngine
from tests.fakes.receiver import Sink

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\n"

REQUESTS = 12_000
WORKERS = 40
FAULTS = ["surplus", "close:at=mid", "reset:at=mid,linger=0", "close:at=before", "trailers", "garbage:at=mid", "short_length"]


class Caller:
    """Sends requests that carry its marks and cancels most of them, each at another moment."""

    def __init__(self, client: EndpointClient, number: int) -> None:
        self.client, self.number = client, number
        self.random = random.Random(number)
        self.cancelled = self.finished = self.failed = 0

    async def run(self, requests: int) -> None:
        for turn in range(requests):
            await self.one(f"<{self.number}-{turn}>")

    async def one(self, mark: str) -> None:
        moment = self.random.choice(["at once", *["soon", "head", "body"] * 3, "never"])
        fault = self.random.choice(FAULTS) if self.random.random() < 0.1 else "normal:chunks=6"
        stream = fault.startswith("garbage") or self.random.random() < 0.7  # without chunks, garbage would be content
        body = {"model": "m1", "stream": stream, "user": mark, "messages": [{"role": "user", "content": "x"}]}
        sink = Sink()
        cancelled = asyncio.get_running_loop().create_future()

        def cancel(what: str) -> None:
            if what == moment and not cancelled.done():
                sink.call.cancel()  # type: ignore[union-attr]
                cancelled.set_result(None)

        sink.on_call = cancel
        sink.call = self.client.send(HEAD + f"x-fake: {fault}\r\n".encode(), json.dumps(body).encode(), sink, 30, 30)
        if moment == "soon":
            for _ in range(self.random.randrange(8)):
                await asyncio.sleep(0)
        if moment in ("at once", "soon") and not sink.over:
            sink.call.cancel()
            cancelled.set_result(None)
        over = asyncio.ensure_future(sink.until(lambda: sink.over or cancelled.done()))
        await asyncio.wait([over, cancelled], return_when=asyncio.FIRST_COMPLETED)
        self.check(sink, mark, fault, cancelled.done())
        heard = len(sink.calls)
        over.cancel()
        await asyncio.sleep(0)
        assert len(sink.calls) == heard, "a receiver was called after its call had ended"

    def check(self, sink: Sink, mark: str, fault: str, cancelled: bool) -> None:
        text = sink.body.decode()
        assert set(re.findall(r"<\d+-\d+>", text)) <= {mark}, f"{mark} got bytes of another caller"
        assert "stolen" not in text
        if cancelled:
            self.cancelled += 1
        elif sink.errors:
            assert not fault.startswith("normal"), sink.errors
            self.failed += 1
        else:
            assert sink.ended and sink.head is not None
            assert mark + "5" in text or not fault.startswith("normal")
            self.finished += 1


async def test_cancelled_requests_leak_nothing_to_others() -> None:
    async with FakeEngine() as engine:
        client = EndpointClient(engine.address, max_idle=WORKERS, connect_timeout=60.0)
        callers = [Caller(client, number) for number in range(WORKERS)]
        await asyncio.gather(*(caller.run(REQUESTS // WORKERS) for caller in callers))
        cancelled, finished = sum(c.cancelled for c in callers), sum(c.finished for c in callers)
        assert cancelled >= 10_000 and finished > 500 and sum(c.failed for c in callers) > 50
        assert client.reused > 1000, "the test is void when connections are not reused"
        assert client.in_flight == 0 and client.idle <= WORKERS
        await engine.until(lambda: engine.open == client.idle)
        await client.aclose()
        await engine.until(lambda: engine.open == 0)
