"""kill -9 at any moment loses no acknowledged record, and the chain continues; SIGTERM leaves a signed end.

The killed process runs the build that these tests run on (tests/conftest.py)."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.audit.crypto import load_signer
from gateway.audit.reader import LogReader
from gateway.audit.verify import verify_log

CHILD = Path(__file__).with_name("audit_process.py")
ROUNDS = 6


def start(state_dir: Path, durability: str, prefix: str) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    arguments = [sys.executable, str(CHILD), str(state_dir), durability, prefix]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=root, env=environment)


def run(state_dir: Path, durability: str, prefix: str, acknowledgements: int, end: signal.Signals) -> list[str]:
    """Ends a child after that many acknowledgements; every request id that it acknowledged (what is in the pipe survives it)."""
    child = start(state_dir, durability, prefix)
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(acknowledgements)]
    assert all(lines), "the child died"
    child.send_signal(end)
    lines += child.stdout.readlines()
    code = child.wait(90)
    child.stdout.close()
    assert code == (0 if end is signal.SIGTERM else -end)
    return [line.decode().strip() for line in lines if line.endswith(b"\n")]


@pytest.mark.alone  # the journal is used where the loop has time to spare
@pytest.mark.parametrize("durability", ["write", "journal", "fsync"])
def test_kill_9_loses_no_acknowledged_record(tmp_path: Path, durability: str) -> None:
    chance = random.Random(20261120)
    acknowledged: list[str] = []
    for number in range(ROUNDS):
        count = chance.randint(1, 600) + (1500 if durability == "journal" else 0)  # the journal comes after the first moments
        acknowledged += run(tmp_path, durability, f"k{number}", count, signal.SIGKILL)
    acknowledged += run(tmp_path, durability, "end", 50, signal.SIGTERM)
    signer = load_signer(str(tmp_path))
    report = verify_log(tmp_path / "audit", signer.verifier)
    assert report.ok, report.problems
    assert report.writers[0].unsigned == 1 and report.writers[0].segments > 1
    written = {record["request_id"] for record in LogReader(tmp_path / "audit", signer.verifier).records(kind="intent")}
    assert not set(acknowledged) - written
    opened = [
        r["detail"]["clean"] for r in LogReader(tmp_path / "audit", signer.verifier).records(kind="event") if r["event"] == "audit.opened"
    ]
    assert opened == [True] + [False] * ROUNDS
    if durability == "journal":
        events = LogReader(tmp_path / "audit", signer.verifier).records(kind="event")
        assert sum(record["detail"].get("from_journal", 0) for record in events if record["event"] == "audit.opened") > 0


def test_sigterm_closes_the_log_with_a_signed_end(tmp_path: Path) -> None:
    acknowledged = run(tmp_path, "write", "t", 100, signal.SIGTERM)
    signer = load_signer(str(tmp_path))
    reader = LogReader(tmp_path / "audit", signer.verifier)
    assert [(record["kind"], record.get("event")) for record in reader.tail(2)] == [("event", "audit.closed"), ("checkpoint", None)]
    outcomes = {record["request_id"] for record in reader.records(kind="outcome")}
    assert set(acknowledged) == outcomes
    assert verify_log(tmp_path / "audit", signer.verifier).ok
