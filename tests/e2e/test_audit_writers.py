"""The audit log of a gateway: whose writer it is, what becomes of the log of an older version, who may share a directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

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
from tests.e2e.harness import ROOT, Gatehouse, alive, configuration, external
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
    until(lambda: any("the writer 0 was closed" in line for line in gatehouse.lines), what="the recovery of the writer 0")
    assert not (state_dir / "audit" / journal_name("0")).exists()
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


class Load:
    """Clients that send one request after the other, each with an id of its own, until they are stopped; what was answered with 200."""

    def __init__(self, gatehouse: Gatehouse, clients: int = 6) -> None:
        self.answered: set[str] = set()
        self._gatehouse, self._ended = gatehouse, threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def more(self, count: int = 100) -> None:
        """Waits for so many answers more."""
        wanted = len(self.answered) + count
        until(lambda: len(self.answered) >= wanted, what=f"{count} answers")

    def _run(self, number: int) -> None:
        sent = 0
        body = {"model": "m1", "messages": [{"role": "user", "content": "Hello!"}]}
        while not self._ended.is_set():
            try:
                with self._gatehouse.client() as client:
                    while not self._ended.is_set():
                        sent += 1
                        request_id = f"load-{id(self)}-{number}-{sent}"
                        answer = client.post("/v1/chat/completions", json=body, headers={"x-request-id": request_id})
                        if answer.status_code == 200:
                            self.answered.add(request_id)
            except httpx.HTTPError:  # the process that served this connection is gone
                time.sleep(0.01)


def recorded(gatehouse: Gatehouse) -> dict[str, int]:
    """How often each request's intent is in the log."""
    directory = gatehouse.state_dir / "audit"
    verifier = load_verifier(gatehouse.state_dir / "keys" / "audit-signing.pub.pem")
    return Counter(record["request_id"] for record in LogReader(directory, verifier).records(kind="intent"))


def all_recorded(gatehouse: Gatehouse, load: Load) -> dict[str, int]:
    """The same, once all is there that was answered: what is in a journal comes to the log a moment later."""

    def whole() -> dict[str, int] | None:
        found = recorded(gatehouse)
        return found if load.answered <= set(found) else None

    there: dict[str, int] = until(whole, what="all that was answered")
    return there


def closed(gatehouse: Gatehouse) -> list[Any]:
    """The reports of a log that is whole, and whose writers without a process are closed; none before."""
    verifier = load_verifier(gatehouse.state_dir / "keys" / "audit-signing.pub.pem")
    report = verify_log(gatehouse.state_dir / "audit", verifier)
    return report.writers if report.ok and all(writer.live or writer.unsigned == 1 for writer in report.writers) else []


def serving(gatehouse: Gatehouse, live: int) -> list[Any]:
    """The same, while so many writers have a process."""
    reports = closed(gatehouse)
    return reports if sum(report.live for report in reports) == live else []


@pytest.fixture
def workers(engine: EngineThread, tmp_path: Path) -> Iterator[Gatehouse]:
    settings = config(tmp_path / "state", engine, audit={"checkpoint": {"every": "1s"}})
    gatehouse = Gatehouse(tmp_path, settings, {"GATEHOUSE_REPLICA": "gw"}, ["--workers", "2"])
    yield gatehouse.start()
    gatehouse.stop(signal.SIGKILL if gatehouse.process is not None and gatehouse.process.poll() is None else signal.SIGTERM)


def pids(gatehouse: Gatehouse) -> dict[str, int]:
    """The workers' processes by id, as the log tells them."""
    words = [line.split() for line in list(gatehouse.lines) if " serves (process " in line]
    found = {line[line.index("worker") + 1]: int(line[-1].rstrip(")")) for line in words}
    return {worker: pid for worker, pid in found.items() if alive(pid)}


def test_killed_workers_lose_no_answered_request_and_leave_whole_chains(workers: Gatehouse) -> None:
    with Load(workers) as load:
        for _ in range(3):
            until(lambda: len(pids(workers)) == 2, what="two workers")
            load.more()
            victim = next(iter(pids(workers).values()))
            os.kill(victim, signal.SIGKILL)
            until(lambda: victim not in pids(workers).values(), what="the end of the worker that was killed")  # noqa: B023
        load.more()
        until(lambda: len(pids(workers)) == 2, what="two workers")
    reports = until(lambda: serving(workers, 3), what="the recovery of all writers without a process, and the last worker's own")
    assert {"gw", "gw-1", "gw-2"} <= {report.writer for report in reports}
    found = all_recorded(workers, load)
    assert max(found.values()) == 1
    assert workers.metric("gatehouse_audit_records_total") > 0
    assert workers.stop() == 0
    assert verified(workers)[0] == 0
    opened = [record["event"] for record in workers.audit() if record.get("event") in ("audit.opened", "audit.closed")]
    assert opened.count("audit.opened") > opened.count("audit.closed") > 2


def test_a_killed_control_process_starts_again_beside_its_workers(workers: Gatehouse) -> None:
    with Load(workers) as load:
        load.more()
        old = pids(workers)
        assert workers.process is not None
        workers.process.kill()
        workers.process.wait(60)
        workers.start()  # at once: the old workers may still finish what they have
        load.more()
    all_recorded(workers, load)
    until(lambda: not any(alive(pid) for pid in old.values()), what="the end of the old workers")
    assert until(lambda: closed(workers), what="the recovery of all writers without a process")
    assert workers.stop() == 0
    found = recorded(workers)
    assert load.answered <= set(found) and max(found.values()) == 1
    assert verified(workers)[0] == 0
