"""What carrying the log to sinks costs: `python -m loadtests.audit.carrying [--requests 50000]`.

A log of so many requests (an intent and an outcome each) is carried to a real rsyslog over TLS, then to an HTTP server of another process,
each by a courier of its own, `--rounds` times. Prints the CPU microseconds a request of this process, which does nothing else meanwhile,
and requests/s. In a gateway it is a thread of the process that serves, or with `--workers` of the control process.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from gateway.audit.broker import AuditBroker
from gateway.audit.courier import Courier
from gateway.audit.keyring import DataKey
from gateway.audit.sealing import Pending
from gateway.audit.sink_positions import SinkPositionsFile
from gateway.audit.sinks.http import HttpSink
from gateway.audit.sinks.syslog import SyslogSink
from gateway.core.specs import AuditSpec
from gateway.core.specs.audit import EncryptionSpec, MasterSpec
from gateway.core.specs.sinks import HttpSinkSpec, SyslogSinkSpec
from gateway.core.types import IntentRecord, OutcomeRecord
from tests.integration.rsyslog import Rsyslog


class Taking(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None: ...


def take(pipe: Connection) -> None:
    """An HTTP server of its own process, until it is ended."""
    server = HTTPServer(("127.0.0.1", 0), Taking)
    pipe.send(server.server_port)
    server.serve_forever()


async def write(place: Path, requests: int, kept: int) -> None:
    """kept: bytes of the texts that are kept of each request and of its answer; 0: none."""
    encryption = EncryptionSpec(master=MasterSpec(file="unused")) if kept else None
    broker = AuditBroker(AuditSpec(durability="async", encryption=encryption), str(place))
    await broker.start()
    key, text = DataKey("dk-1", "acme", 1, os.urandom(32)), b"x" * kept

    def pending(answer: bool) -> Any:
        head = b"HTTP/1.1 200 OK\r\n\r\n" if answer else b""
        return Pending(key, "acme", [head + text], max(kept, 1), answer=answer) if kept else None

    common: dict[str, Any] = {"body_hash": "ab" * 32, "bytes": 800}
    for number in range(requests):
        now, id = time.time(), f"req-{number:028d}"
        asked = ("payments", "ci", "api_key", "10.1.2.3", "chat", "demo-chat", False)
        broker.intent(IntentRecord(now, id, *asked, rule="key ci", config=1, text=pending(False), **common))  # type: ignore[misc]
        counts = {"attempts": 1, "prompt_tokens": 32, "completion_tokens": 88, "duration_ms": 12.5, "endpoint": "chat-a"}
        broker.outcome(OutcomeRecord(now, id, "ok", 200, text=pending(True), **counts, **common))
        if number % 1024 == 0:
            await asyncio.sleep(0.02)
    await broker.aclose()


async def carry(name: str, sink: Any, place: Path, requests: int) -> None:
    courier = Courier(name, sink, place / "audit", SinkPositionsFile(place, f"{name}-{time.monotonic_ns()}"), history=True)
    courier.prepare()
    cpu, began = time.process_time(), time.monotonic()
    courier.start()
    await courier.aclose(600)
    cpu, took = time.process_time() - cpu, time.monotonic() - began
    assert courier.waiting == 0 and courier.fault is None, courier.fault
    print(f"{name:8} {cpu / requests * 1e6:6.2f} us of CPU a request, {requests / took:8.0f} requests/s")


async def measure(options: argparse.Namespace, place: Path, server: Rsyslog, port: int) -> None:
    await write(place, options.requests, options.texts)
    tls = {"ca": server.authority.cert}
    for _ in range(options.rounds):
        syslog = SyslogSink(msgspec.convert({"address": f"tls://127.0.0.1:{server.tls}", "tls": tls}, SyslogSinkSpec))
        await carry("syslog", syslog, place, options.requests)
        await syslog.aclose()
        http = HttpSink(msgspec.convert({"url": f"http://127.0.0.1:{port}/in", "format": options.format}, HttpSinkSpec))
        await carry("http", http, place, options.requests)
        await http.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=0, help="bytes of texts kept of each prompt and each answer")
    parser.add_argument("--format", default="ndjson", choices=["ndjson", "splunk_hec", "otlp", "ocsf"])
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    taking = multiprocessing.get_context("spawn").Process(target=take, args=(theirs,), daemon=True)
    taking.start()
    with tempfile.TemporaryDirectory(prefix="carrying-") as name:
        server = Rsyslog(Path(name)).start()
        try:
            asyncio.run(measure(options, Path(name), server, ours.recv()))
        finally:
            server.stop()
            taking.terminate()


if __name__ == "__main__":
    main()
