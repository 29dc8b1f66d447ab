"""Records in a real rsyslog, byte for byte: over TLS, TCP and UDP, hostile texts, restarts, a server that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gateway.audit.broker import AuditBroker
from gateway.audit.courier import Courier
from gateway.audit.formats import rfc3339
from gateway.audit.sink_positions import SinkPositionsFile
from gateway.audit.sinks.contract import Unacceptable, batch_of
from gateway.audit.sinks.syslog import SyslogSink
from gateway.core.specs import AuditSpec
from gateway.core.specs.sinks import SyslogSinkSpec
from gateway.core.types import EventRecord
from gateway.core.waiting import as_future
from tests.integration.rsyslog import Rsyslog
from tests.waiting import reached, until

HOSTILE = [
    "line\nfeed\r\n",
    "\0nul",
    "\x1b[31m",
    "<13>1 - - - - - - forged",
    "11 <13>1 x",
    "ünïcödé \U0001f600 \u2028\u202e",
    "]",
    '"\\',
    "%s %msg%",
]


@pytest.fixture(scope="module")
def rsyslog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rsyslog]:
    made = Rsyslog(tmp_path_factory.mktemp("rsyslog")).start()
    yield made
    made.stop()


def settings(rsyslog: Rsyslog, way: str, **more: object) -> SyslogSinkSpec:
    address = f"{way}://127.0.0.1:{getattr(rsyslog, way)}"
    tls = {"tls": {"ca": rsyslog.authority.cert}} if way == "tls" else {}
    return msgspec.convert({"address": address, **tls, **more}, SyslogSinkSpec)


def said(writer: str, lines: list[bytes]) -> dict[str, bytes]:
    return {f'[gatehouse@32473 writer="{writer}" seq="{number}"]': line.rstrip() for number, line in enumerate(lines, 1)}


async def logged(tmp_path: Path, writer: str, texts: list[str]) -> list[bytes]:
    """The lines of a log with these texts."""
    broker = AuditBroker(AuditSpec(), str(tmp_path), writer=writer)
    await broker.start()
    for text in texts:
        await as_future(broker.event(EventRecord(1.0, text[:64], actor=text, detail={"text": text})))
    await broker.aclose()
    return [
        line
        for path in sorted((tmp_path / "audit").glob(f"audit-{writer}-0*.jsonl"))
        for line in path.read_bytes().splitlines(keepends=True)
    ]


@pytest.mark.parametrize("way", ["tls", "tcp", "udp"])
async def test_hostile_records_arrive_byte_for_byte(rsyslog: Rsyslog, tmp_path: Path, way: str) -> None:
    lines = await logged(tmp_path, way, [*HOSTILE, *(["x" * 60_000] if way != "udp" else [])])
    sink = SyslogSink(settings(rsyslog, way))
    await asyncio.to_thread(sink.write, batch_of(way, b"".join(lines)))
    wanted = said(way, lines)
    await reached(lambda: wanted.items() <= rsyslog.messages().items(), what=f"{len(wanted)} records over {way}")
    assert await asyncio.to_thread(sink.finish)
    await sink.aclose()
    with pytest.raises(OSError):
        sink.write(batch_of(way, lines[0]))


def test_a_message_has_the_time_of_its_record() -> None:
    sink = SyslogSink(SyslogSinkSpec(address="udp://127.0.0.1:9"))
    parts = (0.0, 0.5, 0.123456, 0.0000004, 0.9999984, 0.9999994, 0.9999996, 0.000001)
    for second in (1.7e9, 1.7e9 + 1, 1.7e9, 0.0, 253402300798.0):
        for seconds in (second + part for part in parts):
            assert f">1 {rfc3339(seconds)} ".encode() in sink._message("gw", b'{"seq":1,"kind":"intent","time":%r}' % seconds)
    for strange in (-1.0, 1e300, 253402300800.0):
        assert f">1 {rfc3339(strange)} ".encode() in sink._message("gw", b'{"seq":1,"kind":"intent","time":%r}' % strange)


def test_a_datagram_that_is_too_long_is_refused(rsyslog: Rsyslog) -> None:
    sink = SyslogSink(settings(rsyslog, "udp"))
    with pytest.raises(Unacceptable):
        sink.write(batch_of("gw", b'{"seq":1,"x":"' + b"x" * 66_000 + b'"}\n'))
    assert sink.finish()


def test_a_server_that_cannot_be_verified_gets_nothing(rsyslog: Rsyslog, tmp_path: Path) -> None:
    for tls in ({}, {"ca": rsyslog.authority.cert, "server_name": "other.example"}):
        sink = SyslogSink(settings(rsyslog, "tls", tls=tls))
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            sink.probe()


async def test_nothing_is_lost_while_the_server_stands_still_or_is_restarted(tmp_path: Path, short_path: Path) -> None:
    server = await asyncio.to_thread(Rsyslog(short_path).start)
    try:
        broker = AuditBroker(AuditSpec(), str(tmp_path), writer="gw")
        sink = SyslogSink(settings(server, "tls", timeout=0.5))
        courier = Courier("siem", sink, tmp_path / "audit", SinkPositionsFile(tmp_path, "siem"))
        courier.prepare()
        await broker.start()
        courier.start()

        async def tell(name: str) -> None:
            await as_future(broker.event(EventRecord(1.0, name)))

        await tell("before")
        await reached(lambda: any(b'"before"' in text for text in server.messages().values()))
        server.freeze()
        for number in range(200):
            await as_future(broker.event(EventRecord(1.0, f"frozen.{number}", detail={"text": "x" * 40_000})))  # more than its kernel keeps
        await reached(lambda: courier.fault is not None, what="the fault")
        server.thaw()
        await reached(lambda: courier.fault is None and any(b'"frozen.199"' in text for text in server.messages().values()))
        await asyncio.to_thread(server.stop)
        await tell("away")
        await reached(lambda: courier.fault is not None, what="the fault")
        await asyncio.to_thread(server.start)
        await tell("back")
        await broker.aclose()
        lines = (tmp_path / "audit" / "audit-gw-00000001.jsonl").read_bytes().splitlines(keepends=True)
        wanted = said("gw", lines)
        await reached(lambda: wanted.items() <= server.messages().items(), what="everything")
        await courier.aclose(60)
        assert (courier.lost, courier.refused, courier.waiting) == (0, 0, 0)
        await sink.aclose()
    finally:
        await asyncio.to_thread(server.stop)
    assert until(lambda: server.process is not None and server.process.poll() is not None)
