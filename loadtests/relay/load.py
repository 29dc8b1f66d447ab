"""The three kinds of load: a closed loop (wrk), an open loop at a fixed rate, and streams held side by side.

Each measures one target at `port` on loopback and returns plain numbers; `bad` or `lost` counts everything that was not
a whole 200 answer.
"""

import asyncio
import functools
import json
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

Figures = dict[str, float]
GRACE = 10.0  # seconds that the open loop waits for answers after its last request
MOST_CONNECTIONS = 900
"""Of the open loop: select() fails for a descriptor of 1024 or more, and a gateway that stands still for a moment would have it open one
for each request that is due meanwhile."""

WRK_REPORT = """
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\nREPORT {"seconds":%f,"requests":%d,"bad":%d,"p50_us":%f,"p99_us":%f}\\n',
    summary.duration / 1e6, summary.requests, e.connect + e.read + e.write + e.timeout + e.status,
    latency:percentile(50), latency:percentile(99)))
end
"""


def http_request(headers: dict[str, str], body: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the sorted values do not exceed (nearest rank); NaN of nothing."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def lua_string(text: str) -> str:
    return (
        '"'
        + "".join(c if (c.isascii() and c.isalnum()) or c in " .,:;-_/{}[]()" else "".join(f"\\{b:03d}" for b in c.encode()) for c in text)
        + '"'
    )


def closed_loop(port: int, headers: dict[str, str], body: bytes, connections: int, seconds: int, core: int, folder: Path) -> Figures:
    """As fast as it goes with `connections` requests in flight: requests a second, latency in microseconds."""
    script = folder / "wrk.lua"
    lines = ['wrk.method = "POST"', f"wrk.body = {lua_string(body.decode())}"]
    lines += [f"wrk.headers[{lua_string(name)}] = {lua_string(value)}" for name, value in headers.items()]
    script.write_text("\n".join(lines) + WRK_REPORT)
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), f"http://127.0.0.1:{port}/v1/chat/completions"]
    output = subprocess.run(["taskset", "-c", str(core), *command], capture_output=True, text=True, timeout=seconds + 30, check=True).stdout
    report: Figures = json.loads(output.rpartition("REPORT ")[2])
    report["rps"] = report["requests"] / report.pop("seconds")
    return report


class Exchange(asyncio.Protocol):
    """One keep-alive connection of the open loop. `done(ok)` is called once for every request sent."""

    transport: asyncio.Transport

    def __init__(self, lost: "Callable[[Exchange], None]") -> None:
        """lost: called when the connection has ended, after `done`."""
        self.buffer, self.lost = b"", lost
        self.done: Callable[[bool], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        if at < 0:
            self.transport.abort()  # a whole JSON answer has a length: anything else counts as bad
            return
        length = int(head[at + 17 :].split(b"\r\n", 1)[0])
        if len(self.buffer) >= end + 4 + length:
            self.buffer = b""
            self._finish(head.startswith(b"http/1.1 200"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(False)
        self.lost(self)

    def _finish(self, ok: bool) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(ok)


class OpenLoop:
    """Sends a request each 1/rate seconds whether or not earlier ones are done. Latency counts from when it was due.

    A request that is due while `most` connections are busy waits for the first one that is free, and that wait counts too.
    """

    def __init__(self, port: int, request: bytes, rate: int, seconds: float, most: int = MOST_CONNECTIONS) -> None:
        self.port, self.request, self.rate, self.total, self.most = port, request, rate, int(rate * seconds), most
        self.open: set[Exchange] = set()
        self.idle: list[Exchange] = []
        self.late: deque[float] = deque()
        """When those were due that wait for a connection."""
        self.connecting: set[asyncio.Task[None]] = set()
        self.took: list[float] = []
        self.bad = 0
        self.over = False

    async def run(self) -> Figures:
        loop = asyncio.get_running_loop()
        begin = loop.time() + 0.05
        for number in range(self.total):
            due = begin + number / self.rate
            if (early := due - loop.time()) > 0:
                await asyncio.sleep(early)
            self.late.append(due)
            self._send_late()
        deadline = loop.time() + GRACE
        while len(self.took) + self.bad < self.total and loop.time() < deadline:
            await asyncio.sleep(0.01)
        await self._end()
        self.took.sort()
        lost = self.total - len(self.took)
        return {
            "bad": lost,
            **{f"p{name}_us": percentile(self.took, share) * 1e6 for name, share in (("50", 0.5), ("99", 0.99), ("999", 0.999))},
        }

    async def _end(self) -> None:
        """Leaves no connection, and no task that would make one."""
        self.over = True
        for task in self.connecting:
            task.cancel()
        await asyncio.gather(*self.connecting, return_exceptions=True)
        for exchange in self.open:
            exchange.transport.abort()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next turn

    def _send_late(self) -> None:
        """Sends what is due as far as there are connections for it."""
        while self.late and not self.over:
            if self.idle:
                self._send(self.idle.pop(), self.late.popleft())
            elif len(self.open) + len(self.connecting) < self.most:
                task = asyncio.get_running_loop().create_task(self._connect(self.late.popleft()))
                self.connecting.add(task)
                task.add_done_callback(self.connecting.discard)
            else:
                return

    async def _connect(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, exchange = await loop.create_connection(functools.partial(Exchange, self._lost), "127.0.0.1", self.port)
        except OSError:
            self.bad += 1
            loop.call_soon(self._send_late)  # once this task no longer counts
            return
        self.open.add(exchange)
        if exchange.transport.is_closing():  # it was closed at once
            self.bad += 1
            self._lost(exchange)
        else:
            self._send(exchange, due)

    def _lost(self, exchange: Exchange) -> None:
        """A connection has ended, maybe an idle one."""
        self.open.discard(exchange)
        if exchange in self.idle:
            self.idle.remove(exchange)
        self._send_late()

    def _send(self, exchange: Exchange, due: float) -> None:
        def done(ok: bool) -> None:
            if ok:
                self.took.append(time.monotonic() - due)
                self.idle.append(exchange)
                self._send_late()
            else:
                self.bad += 1
                exchange.transport.abort()

        exchange.done = done
        exchange.transport.write(self.request)


def open_loop(port: int, headers: dict[str, str], body: bytes, rate: int, seconds: float) -> Figures:
    """select() takes its timeout in microseconds where epoll takes milliseconds, which would blur a 500 us interval."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(OpenLoop(port, http_request(headers, body), rate, seconds).run())


class Stream(asyncio.Protocol):
    """One streamed answer: counts its events, and sets `ended` with whether `[DONE]` came."""

    transport: asyncio.Transport

    def __init__(self, request: bytes, ended: "asyncio.Future[bool]") -> None:
        self.request, self.ended = request, ended
        self.events = 0
        self.first: float | None = None
        self.begin = 0.0
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.begin = time.monotonic()
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        seen = self.tail + data
        events = seen.count(b"data: {") - self.tail.count(b"data: {")  # split between two reads, an event still counts once
        if events and self.first is None:
            self.first = time.monotonic() - self.begin
        self.events += events
        if b"data: [DONE]" in seen:
            self._end(True)
            self.transport.close()
        self.tail = seen[-11:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(False)

    def _end(self, whole: bool) -> None:
        if not self.ended.done():
            self.ended.set_result(whole)


def _itself(stream: Stream) -> Stream:
    return stream


async def streams(port: int, request: bytes, count: int, limit: float) -> Figures:
    """`count` streams at once, each read to its end; TimeoutError after `limit` seconds."""
    loop = asyncio.get_running_loop()
    all_streams = [Stream(request, loop.create_future()) for _ in range(count)]
    async with asyncio.timeout(limit):
        await asyncio.gather(*(loop.create_connection(functools.partial(_itself, s), "127.0.0.1", port) for s in all_streams))
        whole = await asyncio.gather(*(s.ended for s in all_streams))
    await asyncio.sleep(0)  # a closed transport closes its socket in the next turn
    first = sorted(s.first for s in all_streams if s.first is not None)
    return {
        "chunks": sum(s.events for s in all_streams),
        "lost": whole.count(False),
        "ttft_p50_ms": percentile(first, 0.5) * 1e3,
        "ttft_p99_ms": percentile(first, 0.99) * 1e3,
    }


def side_by_side(port: int, headers: dict[str, str], body: bytes, count: int, limit: float = 60.0) -> Figures:
    """The same from outside an event loop."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(streams(port, http_request(headers, body), count, limit))
