"""One process carries the logs of all to the sinks, each obeys the required ones; and writers that nobody has are looked after."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.audit.shipping import Shipping, obey, recovery
from gateway.audit.broker import AuditBroker
from gateway.audit.sinks.contract import Batch
from gateway.audit.verify import verify_log
from gateway.audit.writers import claim
from gateway.core.errors import ConfigError
from gateway.core.plugins import SinkContext, SinkRow, Table
from gateway.core.specs import AuditSpec, ConfigSpec, SinkSpec
from gateway.core.specs.sinks import CarriedSpec
from gateway.core.types import EventRecord
from gateway.core.waiting import as_future


class Lines:
    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def write(self, batch: Batch) -> None:
        self.data[batch.writer] = self.data.get(batch.writer, b"") + batch

    def probe(self) -> None: ...

    async def aclose(self) -> None: ...


def test_two_sinks_of_one_name_are_refused(tmp_path: Path) -> None:
    audit = AuditSpec(sinks=(SinkSpec(type="file"), SinkSpec(type="lines"), SinkSpec(type="lines")))
    spec = ConfigSpec(version=1, audit=audit, state_dir=str(tmp_path))
    sinks = Table(SinkRow, (SinkRow(name="lines", build=lambda settings, context: Lines()),))
    with pytest.raises(ConfigError, match="give each a `name` of its own"):
        Shipping(spec, "gw", sinks, lambda *event: None)


async def test_one_process_carries_the_records_of_all(tmp_path: Path) -> None:
    made: list[Lines] = []

    def build(settings: object, context: SinkContext) -> Lines:
        made.append(Lines())
        return made[-1]

    audit = AuditSpec(sinks=(SinkSpec(type="file"), SinkSpec(type="lines"), SinkSpec(type="lines", name="copy")))
    spec = ConfigSpec(version=1, audit=audit, state_dir=str(tmp_path))
    sinks = Table(SinkRow, (SinkRow(name="lines", build=build),))
    shipping = Shipping(spec, "gw", sinks, lambda *event: None)
    await shipping.start()
    parts = [AuditBroker(audit, str(tmp_path), writer="gw"), AuditBroker(audit, str(tmp_path), sink=claim(audit, str(tmp_path), "gw"))]
    for broker in parts:
        await broker.start()
        await as_future(broker.event(EventRecord(1.0, "told", target=broker.writer)))
    for broker in parts:
        await broker.aclose()
    await shipping.aclose()
    assert [courier.name for courier in shipping.couriers] == ["lines", "copy"]
    written = {
        writer: b"".join(path.read_bytes() for path in sorted((tmp_path / "audit").glob(f"audit-{writer}-0*.jsonl")))
        for writer in ("gw", "gw-1")
    }
    assert [sink.data for sink in made] == [written, written]


async def test_a_required_sink_that_is_behind_stops_every_process(tmp_path: Path) -> None:
    class Settings(CarriedSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
        pass

    settings = {"required": True, "spool_bytes": 1}
    audit = AuditSpec(sinks=(SinkSpec(type="file"), SinkSpec(type="lines", settings=settings)))
    spec = ConfigSpec(version=1, audit=audit, state_dir=str(tmp_path))
    sinks = Table(SinkRow, (SinkRow(name="lines", settings=Settings, build=lambda settings, context: Lines()),))
    broker = AuditBroker(audit, str(tmp_path), writer="gw")
    obey(spec, broker, sinks)
    await broker.start()
    assert broker.fault is not None and "sink lines" in broker.fault, "nobody carries anything"
    await broker.aclose()


async def test_writers_of_the_same_state_directory_are_recovered(tmp_path: Path) -> None:
    audit = AuditSpec()
    spec = ConfigSpec(version=1, audit=audit, state_dir=str(tmp_path))
    sink = claim(audit, str(tmp_path), "gw")
    worker = AuditBroker(audit, str(tmp_path), sink=sink)
    await worker.start()
    look = recovery(spec, "gw").look
    assert (look(), look()) == ([], []), "a process has it"
    await worker.aclose()
    path = next((tmp_path / "audit").glob("audit-gw-1-*.jsonl"))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))  # as a kill would have left it
    (tmp_path / "audit" / "checkpoints-gw-1.jsonl").unlink()
    assert (look(), look()) == ([], ["gw-1"])
    from_key = AuditBroker(audit, str(tmp_path), writer="gw")
    assert verify_log(tmp_path / "audit", from_key._writer.signer.verifier).ok
