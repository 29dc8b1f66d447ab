"""A gateway with two workers, a SIEM that comes and goes, and a required sink."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, configuration, external
from tests.fakes.http_receiver import HttpReceiver
from tests.integration.rsyslog import Rsyslog
from tests.waiting import until

WAITING = "gatehouse_audit_sink_waiting_bytes"


def received(receiver: HttpReceiver) -> set[tuple[str, int, str]]:
    return {(line["writer"], line["seq"], line["hash"]) for _, body in receiver.requests for line in map(json.loads, body.splitlines())}


def logged(gatehouse: Gatehouse) -> set[tuple[str, int, str]]:
    found = set()
    for path in (gatehouse.state_dir / "audit").glob("audit-*.jsonl"):
        writer = path.name[len("audit-") : -len("-00000001.jsonl")]
        for line in path.read_bytes().splitlines():
            record = json.loads(line)
            found.add((writer, record["seq"], record["hash"]))
    return found


def workers(gatehouse: Gatehouse) -> list[int]:
    """Processes of the workers that serve."""
    lines = [line for line in list(gatehouse.lines) if " serves (process " in line]
    return [pid for line in lines if Path(f"/proc/{(pid := int(line.split()[-1].rstrip(')')))}").exists()]


def test_every_record_of_every_worker_reaches_every_sink(tmp_path: Path, short_path: Path, engine: EngineThread) -> None:
    rsyslog, receiver = Rsyslog(short_path).start(), HttpReceiver()
    sinks = [
        {"type": "file"},
        {"type": "syslog", "settings": {"address": f"tls://127.0.0.1:{rsyslog.tls}", "tls": {"ca": rsyslog.authority.cert}}},
        {"type": "http", "name": "siem", "settings": {"url": receiver.url, "required": True, "spool_bytes": "16KiB", "timeout": "30s"}},
    ]
    settings = configuration(
        tmp_path / "state", engines=[external("fake", engine.port)], models=[{"name": "m1", "pool": ["fake"]}], audit={"sinks": sinks}
    )
    try:
        with Gatehouse(tmp_path, settings, arguments=["--workers", "2"]) as running:
            assert {running.chat(f"hello {number}").status_code for number in range(20)} == {200}
            until(lambda: running.metric(WAITING, sink="siem") == 0 == running.metric(WAITING, sink="syslog"), what="the records")
            assert running.metric("gatehouse_audit_sink_up", sink="siem") == 1.0

            receiver.answers = [(503, b"away")] * 1000
            until(lambda: running.chat("x").status_code == 503, what="a full spool")
            assert running.metric("gatehouse_audit_sink_up", sink="siem") == 0.0
            refused = running.chat("x")
            if refused.status_code == 503:
                assert refused.json()["error"]["code"] == "audit_unavailable"
            receiver.answers.clear()
            until(lambda: running.chat("back").status_code == 200, what="the sink to catch up")

            pid = workers(running)[0]
            os.kill(pid, signal.SIGKILL)
            until(lambda: pid not in workers(running) and len(workers(running)) == 2, what="another worker")
            until(lambda: running.chat("after a kill").status_code == 200)
        until(lambda: len(rsyslog.messages()) >= len(logged(running)), what="everything in rsyslog")
        assert received(receiver) == logged(running), "everything, and nothing else"
        messages = rsyslog.messages()
        for writer, seq, head in logged(running):
            assert head.encode() in messages[f'[gatehouse@32473 writer="{writer}" seq="{seq}"]']
    finally:
        rsyslog.stop()
        receiver.close()
