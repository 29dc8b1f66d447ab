"""A disk that is really full: 503 for every request, nothing acknowledged that is not there, and healing by itself."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.audit.broker import AuditBroker
from gateway.audit.crypto import load_signer
from gateway.audit.reader import LogReader
from gateway.audit.verify import verify_log
from gateway.core.errors import AuditUnavailable
from gateway.core.specs import AuditSpec
from gateway.core.types import IntentRecord, OutcomeRecord
from gateway.core.waiting import Signal
from tests.integration.disk import Disk, disk_of
from tests.waiting import reached

SMALL, LARGE = 256 * 1024, 8 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    with disk_of(tmp_path / "disk", SMALL, LARGE) as disk:
        yield disk


async def settled(signal: Signal[None]) -> None:
    ready = asyncio.Event()
    signal.add_callback(ready.set)
    await asyncio.wait_for(ready.wait(), 60)
    if signal.error is not None:
        raise signal.error


async def fill(broker: AuditBroker, first: int = 0) -> tuple[list[str], str]:
    """Intents until one is refused: those that were acknowledged, and the refused one."""
    acknowledged: list[str] = []
    for number in range(first, 10_000):
        request_id = f"r{number}"
        record = IntentRecord(
            time=1.0,
            request_id=request_id,
            tenant="acme",
            principal="ci",
            credential="api_key",
            peer="10.0.0.1",
            operation="chat",
            model="m" * 900,
            stream=False,
            bytes=200,
        )
        try:
            await settled(broker.intent(record))
        except AuditUnavailable as error:
            assert (error.status, error.code) == (503, "audit_unavailable")
            return acknowledged, request_id
        acknowledged.append(request_id)
    raise AssertionError("the disk took everything")


@pytest.mark.parametrize("durability", ["write", "fsync"])
async def test_a_full_disk_refuses_and_heals(small_disk: Disk, durability: str) -> None:
    place, enlarge = small_disk
    spec = AuditSpec(durability=durability, timeout=60.0)  # type: ignore[arg-type]
    broker = AuditBroker(spec, str(place), tick=0.02)
    await broker.start()
    acknowledged, refused = await fill(broker)
    assert len(acknowledged) > 50
    while broker.accepting:  # the event that tells of the fault fitted into what was left
        more, refused = await fill(broker, int(refused[1:]) + 1)
        acknowledged += more
    with pytest.raises(AuditUnavailable):
        broker.intent(
            IntentRecord(
                time=1.0,
                request_id="late",
                tenant="acme",
                principal="ci",
                credential="api_key",
                peer="10.0.0.1",
                operation="chat",
                model="m",
                stream=False,
                bytes=200,
            )
        )
    broker.outcome(OutcomeRecord(time=2.0, request_id=refused, outcome="failed", status=503, code="audit_unavailable"))
    enlarge()
    await reached(lambda: broker.accepting)
    await settled(
        broker.intent(
            IntentRecord(
                time=3.0,
                request_id="after",
                tenant="acme",
                principal="ci",
                credential="api_key",
                peer="10.0.0.1",
                operation="chat",
                model="m",
                stream=False,
                bytes=200,
            )
        )
    )
    await broker.aclose()
    signer = load_signer(str(place))
    report = verify_log(place / "audit", signer.verifier)
    assert report.ok, report.problems
    reader = LogReader(place / "audit", signer.verifier)
    assert [record["request_id"] for record in reader.records(kind="intent")] == [*acknowledged, "after"]
    assert [record["request_id"] for record in reader.records(kind="outcome")] == [refused]
    assert any(record["event"] == "audit.recovered" for record in reader.records(kind="event"))
