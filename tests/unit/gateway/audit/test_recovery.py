"""Writers without a process are repaired and closed, while the others write on."""

from typing import Any

import pytest

from gateway.audit.chain import payload
from gateway.audit.crypto import load_signer
from gateway.audit.journal import Journal, journal_name
from gateway.audit.recovery import Recovery
from gateway.audit.verify import verify_log


def start(bench: Any, writer: str) -> Any:
    made = bench.writer(writer=writer)
    made.open()
    return made


@pytest.fixture
def recovery(log_bench: Any) -> Recovery:
    log_bench.directory.mkdir()
    return Recovery(log_bench.directory, "gw", lambda writer: log_bench.sink(writer=writer), log_bench.signer, log_bench.clock)


def killed(bench: Any, make: Any, writer: str) -> None:
    """A writer whose process was killed: half a line at the end, and a record that is in its journal only."""
    made = start(bench, writer)
    made.write([make.intent("chained")])
    made.abandon()
    path = bench.segment(1, writer)
    path.write_bytes(path.read_bytes() + b'{"seq":9,"ki')
    journal = Journal(bench.directory / journal_name(writer))
    assert journal.append(payload(make.intent("journaled")))
    journal.close()


def test_a_killed_writer_is_recovered_with_the_second_look(log_bench: Any, make: Any, recovery: Recovery) -> None:
    own = start(log_bench, "gw")
    killed(log_bench, make, "gw-2")
    assert not verify_log(log_bench.directory, log_bench.signer.verifier, patience=0.0).ok
    assert (recovery.look(), recovery.look(), recovery.look(), recovery.look()) == ([], ["gw-2"], [], [])
    records = log_bench.records(1, "gw-2")
    assert [record["request_id"] for record in records if record["kind"] == "intent"] == ["chained", "journaled"]
    opened = [record["detail"] for record in records if record.get("event") == "audit.opened"]
    assert opened[-1] == {"clean": False, "segment": 1, "from_journal": 1, "outcomes_unknown": 2, "recovered_by": "gw"}
    ended = [(record["request_id"], record["outcome"]) for record in records if record["kind"] == "outcome"]
    assert ended == [("chained", "unknown"), ("journaled", "unknown")]
    own.write([make.intent("meanwhile")])
    own.checkpoint()
    own.close()
    report = verify_log(log_bench.directory, log_bench.signer.verifier)
    assert report.ok and [writer.unsigned for writer in report.writers] == [1, 1]


def test_a_writer_that_a_process_has_is_left_alone(log_bench: Any, make: Any, recovery: Recovery) -> None:
    live = start(log_bench, "gw-1")
    live.write([make.intent("r")])
    assert [recovery.look() for _ in range(3)] == [[], [], []]
    live.close()
    assert [recovery.look() for _ in range(3)] == [[], [], []]  # it was closed


def test_a_successor_comes_first(log_bench: Any, make: Any, recovery: Recovery) -> None:
    killed(log_bench, make, "gw-1")
    assert recovery.look() == []
    successor = start(log_bench, "gw-1")
    assert (recovery.look(), recovery.look()) == ([], [])
    successor.close()
    assert not any("recovered_by" in record.get("detail", {}) for record in log_bench.records(1, "gw-1"))


def test_a_writer_of_another_key_is_not_touched(log_bench: Any, make: Any, recovery: Recovery, tmp_path: Any) -> None:
    made = log_bench.writer(writer="other")
    made.signer = load_signer(str(tmp_path / "elsewhere"))
    made.open()
    made.checkpoint()
    made.write([make.intent("r")])
    made.abandon()
    before = log_bench.segment(1, "other").read_bytes()
    assert [recovery.look() for _ in range(3)] == [[], [], []]
    assert log_bench.segment(1, "other").read_bytes() == before


def test_links_in_the_directory_lead_nowhere(log_bench: Any, recovery: Recovery, tmp_path: Any) -> None:
    victim = tmp_path / "victim"
    victim.write_text("root:x:0:0\n")
    (log_bench.directory / "audit-evil-00000001.jsonl").symlink_to(victim)
    (log_bench.directory / "checkpoints-evil.jsonl").symlink_to(victim)
    assert [recovery.look() for _ in range(3)] == [[], [], []]
    assert victim.read_text() == "root:x:0:0\n"


def test_what_cannot_be_recovered_is_told_once(log_bench: Any, make: Any, recovery: Recovery, caplog: pytest.LogCaptureFixture) -> None:
    killed(log_bench, make, "gw-1")
    log_bench.disk.fill()
    assert [recovery.look() for _ in range(4)] == [[]] * 4
    assert sum("could not be recovered" in record.message for record in caplog.records) == 1
    log_bench.disk.error = None
    assert recovery.look() == ["gw-1"]
    assert verify_log(log_bench.directory, log_bench.signer.verifier).ok


def test_a_writer_whose_segments_are_gone_gets_no_new_ones(log_bench: Any, recovery: Recovery) -> None:
    log_bench.log(writer="gw-1")
    log_bench.segment(1, "gw-1").unlink()
    assert [recovery.look() for _ in range(3)] == [[], [], []]
    assert not verify_log(log_bench.directory, log_bench.signer.verifier).ok
