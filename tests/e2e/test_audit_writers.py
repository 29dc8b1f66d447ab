"""The audit log of a gateway: whose writer it is, what becomes of the log of an older version, who may share a directory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.audit.chain import payload
from gateway.audit.crypto import load_signer, load_verifier
from gateway.audit.journal import Journal, journal_name
from gateway.audit.reader import LogReader
from gateway.audit.sinks.file import FileSink
from gateway.audit.verify import verify_log
from gateway.audit.writer import ChainWriter
from gateway.core.clock import SystemClock
from gateway.core.types import EventRecord
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import ROOT, Gatehouse, configuration, external
from tests.waiting import until

Launch = Callable[..., Gatehouse]


def config(directory: Path, engine: EngineThread, **parts: Any) -> dict[str, Any]:
    return configuration(directory, engines=[external("fake", engine.port)], models=[{"name": "m1", "pool": ["fake"]}], **parts)


def killed_gateway_of_an_older_version(state_dir: Path) -> None:
    """What a gateway that knew one writer only leaves after a kill: a record that is in the journal and not in the log."""
    sink = FileSink(state_dir / "audit", "0", segment_bytes=1 << 20, sync=False)
    old = ChainWriter(sink, load_signer(str(state_dir)), SystemClock())
    old.open()
    old.write([EventRecord(time.time(), "old", target="chained")])
    old.checkpoint()
    old.abandon()
    journal = Journal(sink.directory / journal_name("0"))
    assert journal.append(payload(EventRecord(time.time(), "old", target="journaled")))
    journal.close()


def verified(gatehouse: Gatehouse) -> tuple[int, dict[str, Any]]:
    """`gatehouse audit verify` without the gateway."""
    directory, key = gatehouse.state_dir / "audit", gatehouse.state_dir / "keys" / "audit-signing.pub.pem"
    command = [sys.executable, "-m", "gateway", "audit", "verify", "--dir", str(directory), "--public-key", str(key), "--output", "json"]
    done = subprocess.run(command, cwd=ROOT, env=gatehouse.environ, capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout)


def test_the_log_of_an_older_version_is_recovered_shown_and_cannot_be_taken_away(
    launch: Launch, engine: EngineThread, tmp_path: Path
) -> None:
    state_dir = tmp_path / "state"
    killed_gateway_of_an_older_version(state_dir)
    gatehouse = launch(config(state_dir, engine), {"GATEHOUSE_REPLICA": "west-1"}).start()
    verifier = load_verifier(state_dir / "keys" / "audit-signing.pub.pem")
    until(lambda: not (state_dir / "audit" / journal_name("0")).exists(), what="the recovery of the writer 0")
    assert gatehouse.chat().status_code == 200
    live = {writer.writer: writer.live for writer in until(lambda: _whole(state_dir, verifier), what="a whole log")}
    assert live == {"0": False, "west-1": True}
    assert gatehouse.stop() == 0
    found = list(LogReader(state_dir / "audit", verifier).records(event="old", writer="0"))
    assert [record["target"] for record in found] == ["chained", "journaled"]
    assert verified(gatehouse)[0] == 0
    for path in (state_dir / "audit").glob("*-0*"):
        if path.name.startswith(("audit-0", "checkpoints-0")):
            path.unlink()
    code, report = verified(gatehouse)
    assert code == 1 and [writer["writer"] for writer in report["writers"]] == ["0", "west-1"]
    assert report["first_problem"]["writer"] == "0" and "are gone" in report["first_problem"]["reason"]


def _whole(state_dir: Path, verifier: Any) -> Any:
    report = verify_log(state_dir / "audit", verifier)
    return report.writers if report.ok else None


def test_two_state_directories_cannot_share_an_audit_directory(launch: Launch, engine: EngineThread, tmp_path: Path) -> None:
    audit = {"sinks": [{"type": "file", "path": str(tmp_path / "shared")}]}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = Gatehouse(tmp_path / "one", config(tmp_path / "one" / "state", engine, audit=audit))
    second = Gatehouse(tmp_path / "two", config(tmp_path / "two" / "state", engine, audit=audit))
    with first:
        second.launch()
        assert second.ended() == 1
        until(lambda: any("signs with another key" in line and "audit.sinks" in line for line in second.lines), what="the reason")
    assert first.process is not None and first.process.returncode == 0
