"""Each process has sinks of its own, which are told whose records they get; and looks after writers that nobody has."""

from __future__ import annotations

from pathlib import Path

from gateway.app.shipping import Shipping, recovery
from gateway.audit.broker import AuditBroker
from gateway.audit.verify import verify_log
from gateway.audit.writers import claim
from gateway.core.plugins import SinkContext, SinkRow, Table
from gateway.core.specs import AuditSpec, ConfigSpec, SinkSpec
from gateway.core.types import EventRecord
from gateway.core.waiting import as_future


class Lines:
    def __init__(self, writer: str) -> None:
        self.writer, self.data = writer, b""

    def write(self, batch: bytes) -> None:
        self.data += batch

    def probe(self) -> None: ...

    async def aclose(self) -> None: ...


async def test_the_sinks_of_each_process_get_its_records_and_its_writer(tmp_path: Path) -> None:
    made: list[Lines] = []

    def build(settings: object, context: SinkContext) -> Lines:
        made.append(Lines(context.writer))
        return made[-1]

    audit = AuditSpec(sinks=(SinkSpec(type="file"), SinkSpec(type="lines")))
    spec = ConfigSpec(version=1, audit=audit, state_dir=str(tmp_path))
    sinks = Table(SinkRow, (SinkRow(name="lines", build=build),))
    parts = [AuditBroker(audit, str(tmp_path), writer="gw"), AuditBroker(audit, str(tmp_path), sink=claim(audit, str(tmp_path), "gw"))]
    shippings = [Shipping(spec, broker, sinks) for broker in parts]
    for broker, shipping in zip(parts, shippings, strict=True):
        await shipping.start()
        await broker.start()
        await as_future(broker.event(EventRecord(1.0, "told", target=broker.writer)))
    for broker, shipping in zip(parts, shippings, strict=True):
        await broker.aclose()
        await shipping.aclose()
    assert [sink.writer for sink in made] == ["gw", "gw-1"]
    for sink in made:
        written = b"".join(path.read_bytes() for path in sorted((tmp_path / "audit").glob(f"audit-{sink.writer}-0*.jsonl")))
        assert sink.data == written and b'"target":"%b"' % sink.writer.encode() in written


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
