"""Sinks beside the chain: every line, in order; never in the way of the log."""

from __future__ import annotations

import threading

import pytest

from gateway.audit.shipping import Shipper
from gateway.core.clock import FakeClock


class Collecting:
    """Keeps what it gets. `failures`: how many tries fail first. `gate`: a write waits for it. `reachable`: what a probe says."""

    def __init__(self, failures: int = 0, gate: threading.Event | None = None, *, reachable: bool = True) -> None:
        self.batches: list[bytes] = []
        self.failures, self.gate, self.reachable = failures, gate, reachable
        self.came = threading.Event()

    def write(self, batch: bytes) -> None:
        self.came.set()
        if self.gate is not None:
            self.gate.wait(10)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no route")
        self.batches.append(batch)

    def probe(self) -> None:
        if not self.reachable:
            raise ConnectionError("nobody listens")

    async def aclose(self) -> None:
        return None


async def test_every_batch_arrives_in_order() -> None:
    sink = Collecting()
    shipper = Shipper("siem", sink)
    shipper.start()
    for number in range(100):
        shipper.take(b"%d\n" % number)
    await shipper.aclose()
    assert sink.batches == [b"%d\n" % number for number in range(100)]
    assert (shipper.waiting, shipper.lost) == (0, 0)


async def test_a_batch_is_tried_until_it_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    sink = Collecting(failures=3)
    shipper = Shipper("siem", sink, pause=0.001)
    shipper.start()
    shipper.take(b"a\n")
    shipper.take(b"b\n")
    while shipper.waiting:
        sink.came.wait(0.01)
    await shipper.aclose()
    assert sink.batches == [b"a\n", b"b\n"]
    assert caplog.text.count("takes no records: ConnectionError: no route") == 1 and "takes records again" in caplog.text


async def test_one_that_hangs_holds_up_nobody_and_what_finds_no_room_is_counted() -> None:
    gate = threading.Event()
    sink = Collecting(gate=gate)
    shipper = Shipper("siem", sink, room=10)
    shipper.start()
    shipper.take(b"12345\n")
    sink.came.wait(10)
    shipper.take(b"1\n")
    shipper.take(b"too\nmany\n")
    assert (shipper.waiting, shipper.lost) == (8, 2)
    gate.set()
    await shipper.aclose()
    assert sink.batches == [b"12345\n", b"1\n"]


async def test_one_that_hangs_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    gate, clock = threading.Event(), FakeClock()
    sink = Collecting(gate=gate)
    shipper = Shipper("siem", sink, timeout=5.0, clock=clock)
    shipper.start()
    shipper.take(b"a\n")
    sink.came.wait(10)
    clock.advance(4.9)
    shipper.take(b"b\n")
    assert shipper.fault is None
    clock.advance(0.1)
    shipper.take(b"c\n")
    shipper.take(b"d\n")
    assert shipper.fault == "it has not answered for 5 s"
    gate.set()
    await shipper.aclose()
    assert shipper.fault is None and sink.batches == [b"a\n", b"b\n", b"c\n", b"d\n"]
    assert caplog.text.count("takes no records") == caplog.text.count("takes records again") == 1


async def test_one_that_cannot_be_reached_is_reported_before_anything_is_written(caplog: pytest.LogCaptureFixture) -> None:
    shipper = Shipper("siem", Collecting(reachable=False))
    shipper.start()
    await shipper.aclose()
    assert shipper.fault == "ConnectionError: nobody listens" and "takes no records" in caplog.text


async def test_the_end_does_not_wait_for_one_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    shipper = Shipper("siem", Collecting(failures=1 << 30), pause=60.0)
    shipper.start()
    shipper.take(b"a\n")
    await shipper.aclose()
    assert "did not take the last 2 bytes" in caplog.text


async def test_one_that_was_never_started_can_be_closed() -> None:
    await Shipper("siem", Collecting()).aclose()
