"""What every audit sink keeps to: gateway.audit.sinks.contract.Sink."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.app.configuration.plugins import OURS
from gateway.audit.sinks.contract import Sink, batch_of
from gateway.core.plugins import SinkContext, built
from gateway.core.specs import AuditSpec, SinkSpec
from tests.fakes.http_receiver import HttpReceiver
from tests.fakes.kafka import MockKafka

BATCHES = [b'{"a":1}\n', b'{"b":2}\n{"c":3}\n', b'{"d":"' + b"x" * 100_000 + b'"}\n']


@dataclass
class Opened:
    """A sink that can be written to, and the records that have arrived. arrived: given how many there are to be at least, once so many are
    there."""

    sink: Sink
    arrived: Callable[[int], list[Any]]
    close: Callable[[], None]


def open_file(make: Callable[..., Any], folder: Path) -> Opened:
    """The local log is opened and begun by the chain's writer."""
    sink = make()
    sink.open()
    sink.begin(1)

    def arrived(wanted: int) -> list[Any]:
        return [json.loads(line) for path in sorted(folder.rglob("*.jsonl")) for line in path.read_bytes().splitlines()]

    return Opened(sink, arrived, lambda: None)


def open_http(make: Callable[..., Any], folder: Path) -> Opened:
    receiver = HttpReceiver()

    def arrived(wanted: int) -> list[Any]:
        found = [json.loads(line) for _, body in receiver.requests for line in body.splitlines()]
        assert all(record.pop("writer") == "gw" for record in found)
        return found

    return Opened(make(url=receiver.url), arrived, receiver.close)


def open_syslog(make: Callable[..., Any], folder: Path) -> Opened:
    listener = socket.create_server(("127.0.0.1", 0))
    data = bytearray()
    took = threading.Condition()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            while part := connection.recv(65536):
                with took:
                    data.extend(part)
                    took.notify_all()

    def whole() -> list[Any]:
        """The messages that were read to their end."""
        found, rest = [], bytes(data)
        while rest:
            length, _, rest = rest.partition(b" ")
            if not length.isdigit() or len(rest) < int(length):
                break
            message, rest = rest[: int(length)], rest[int(length) :]
            found.append(json.loads(message.partition(b'"] ')[2]))
        return found

    def arrived(wanted: int) -> list[Any]:
        """What is acknowledged is in the kernel, and is read soon."""
        with took:
            assert took.wait_for(lambda: len(whole()) >= wanted, 150)
            return whole()

    thread = threading.Thread(target=serve)
    thread.start()

    def close() -> None:
        thread.join(60)
        listener.close()

    return Opened(make(address=f"tcp://127.0.0.1:{listener.getsockname()[1]}"), arrived, close)


def open_kafka(make: Callable[..., Any], folder: Path) -> Opened:
    cluster = MockKafka()

    def arrived(wanted: int) -> list[Any]:
        found = cluster.messages("audit")
        assert all(message.key() == b"gw" for message in found)
        return [json.loads(message.value()) for message in found]

    return Opened(make(brokers=cluster.brokers, topic="audit"), arrived, lambda: cluster.__exit__())


IMPLEMENTATIONS = {"file": open_file, "http": open_http, "kafka": open_kafka, "syslog": open_syslog}
"""By type: makes one, and a receiver for it. To add a sink, add one."""


@pytest.fixture(params=IMPLEMENTATIONS)
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    row = OURS.sinks[request.param]

    def make(**settings: Any) -> Any:
        context = SinkContext(name=row.name, audit=AuditSpec(), sink=SinkSpec(type=row.name), state_dir=tmp_path, writer="0")
        return built(row.build, row.settings, settings, context)

    opened = IMPLEMENTATIONS[row.name](make, tmp_path)
    yield opened
    await opened.sink.aclose()
    opened.close()


def test_every_type_is_held_to_this_contract() -> None:
    assert set(IMPLEMENTATIONS) == {row.name for row in OURS.sinks}


def test_what_is_written_is_there_whole_and_in_order(opened: Opened) -> None:
    for batch in BATCHES:
        opened.sink.write(batch_of("gw", batch))
    wanted = [json.loads(line) for batch in BATCHES for line in batch.splitlines()]
    assert opened.arrived(len(wanted)) == wanted


def test_a_probe_writes_nothing(opened: Opened) -> None:
    opened.sink.write(batch_of("gw", BATCHES[0]))
    opened.sink.probe()
    opened.sink.write(batch_of("gw", BATCHES[1]))
    assert opened.arrived(3) == [{"a": 1}, {"b": 2}, {"c": 3}]


async def test_nothing_can_be_written_once_it_is_closed(opened: Opened) -> None:
    opened.sink.write(batch_of("gw", BATCHES[0]))
    await opened.sink.aclose()
    await opened.sink.aclose()
    with pytest.raises(OSError):
        opened.sink.write(batch_of("gw", BATCHES[0]))
