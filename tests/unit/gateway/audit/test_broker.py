"""The broker on a real loop with its real thread, over a disk that fails on command."""

import asyncio
import errno
import logging
from typing import Any

import msgspec
import pytest

from gateway.audit.broker import AuditBroker
from gateway.audit.reader import LogReader
from gateway.audit.verify import verify_log
from gateway.core.errors import AuditUnavailable, ConfigError
from gateway.core.ports import AuditLog, AuditReader
from gateway.core.specs import AuditSpec


def ids(bench: Any, kind: str = "intent") -> list[str]:
    return [record["request_id"] for record in bench.records() if record["kind"] == kind]


def recovered(bench: Any) -> dict[str, Any]:
    (detail,) = [r["detail"] for r in bench.records() if r.get("event") == "audit.recovered"]
    return detail


def verified(bench: Any) -> bool:
    return verify_log(bench.directory, bench.signer.verifier).ok


async def test_an_intent_is_in_the_file_when_its_signal_completes(bench: Any, make: Any) -> None:
    broker = await bench.broker()
    await make.settled(broker.intent(make.intent("r1")))
    assert ids(bench) == ["r1"] and broker.accepting


async def test_intents_of_one_tick_share_one_signal_and_one_write(bench: Any, make: Any) -> None:
    broker = await bench.broker()
    before = bench.disk.writes
    signals = {broker.intent(make.intent(f"r{n}")) for n in range(50)}
    broker.outcome(make.outcome("r0"))
    assert len(signals) == 1
    await make.settled(signals.pop())
    assert bench.disk.writes == before + 1 and ids(bench) == [f"r{n}" for n in range(50)]


async def test_while_one_write_runs_the_next_batch_gathers(bench: Any, make: Any) -> None:
    broker = await bench.broker()
    bench.disk.released.clear()
    first = broker.intent(make.intent("a"))
    await make.until(lambda: bench.disk.hanging == 1)
    second = broker.intent(make.intent("b"))
    await asyncio.sleep(0)
    third = broker.intent(make.intent("c"))
    assert second is third and second is not first and not first.done
    before = bench.disk.writes
    bench.disk.released.set()
    await make.settled(third)
    assert first.done and bench.disk.writes == before + 1 and ids(bench) == ["a", "b", "c"]


async def test_outcomes_alone_are_written_soon(bench: Any, make: Any) -> None:
    broker = await bench.broker()
    broker.outcome(make.outcome("r1"))
    await make.until(lambda: ids(bench, "outcome") == ["r1"])
    broker.outcome(make.outcome("r2"))
    await make.until(lambda: ids(bench, "outcome") == ["r1", "r2"])


async def test_outcomes_that_come_during_a_write_are_written_after_it(bench: Any, make: Any) -> None:
    broker = await bench.broker()
    bench.disk.released.clear()
    signal = broker.intent(make.intent("r1"))
    await make.until(lambda: bench.disk.hanging == 1)
    broker.outcome(make.outcome("r1"))
    await make.until(lambda: broker._gathering.timer is None)  # the flush found the writer busy
    bench.disk.released.set()
    await make.settled(signal)
    await make.until(lambda: ids(bench, "outcome") == ["r1"])


async def test_events_are_durable_like_intents(bench: Any, make: Any) -> None:
    broker = await bench.broker()
    await make.settled(broker.event(make.event("config.applied", actor="admin", target="models/demo")))
    record = bench.records()[-1]
    assert (record["event"], record["actor"], record["target"]) == ("config.applied", "admin", "models/demo")


async def test_fsync_is_done_before_the_signal(bench: Any, make: Any) -> None:
    broker = await bench.broker(durability="fsync")
    before = bench.disk.syncs
    await make.settled(broker.intent(make.intent()))
    assert bench.disk.syncs > before


async def test_write_does_not_sync(bench: Any, make: Any) -> None:
    broker = await bench.broker(durability="write")
    await make.settled(broker.intent(make.intent()))
    assert bench.disk.syncs == 0


async def test_async_waits_for_nothing_and_is_written_soon(bench: Any, make: Any) -> None:
    broker = await bench.broker(durability="async")
    assert broker.intent(make.intent("r1")).done
    await make.until(lambda: ids(bench) == ["r1"])


async def test_no_space_refuses_and_heals_and_keeps_the_outcomes(bench: Any, make: Any) -> None:
    broker = await bench.broker()
    await make.settled(broker.intent(make.intent("before")))
    bench.disk.fill(after=20)
    with pytest.raises(AuditUnavailable, match=r"^The audit log takes no records\.$"):
        await make.settled(broker.intent(make.intent("refused-1")))
    assert not broker.accepting and broker.fault == "No space left on device"
    with pytest.raises(AuditUnavailable) as refusal:
        broker.intent(make.intent("refused-2"))
    assert (refusal.value.status, refusal.value.code) == (503, "audit_unavailable")
    broker.outcome(make.outcome("before"))
    broker.outcome(make.outcome("refused-1", code="audit_unavailable"))
    writes = bench.disk.writes
    await make.until(lambda: bench.disk.writes >= writes + 3)
    assert not broker.accepting
    bench.disk.error = None
    await make.until(lambda: broker.accepting)
    await make.settled(broker.intent(make.intent("after")))
    assert ids(bench) == ["before", "after"] and ids(bench, "outcome") == ["before", "refused-1"]
    detail = recovered(bench)
    assert (detail["reason"], detail["refused_intents"], detail["lost_records"]) == ("No space left on device", 1, 0)
    await broker.aclose()
    assert verified(bench)


async def test_where_no_request_waits_a_failing_disk_loses_none_that_was_forwarded(bench: Any, make: Any) -> None:
    broker = await bench.broker(durability="async")
    bench.disk.fill()
    assert broker.intent(make.intent("r1")).done and broker.event(make.event()).done
    await make.until(lambda: not broker.accepting)
    writes = bench.disk.writes
    await make.until(lambda: bench.disk.writes >= writes + 3)
    broker.outcome(make.outcome("r1"))
    bench.disk.error = None
    await make.until(lambda: broker.accepting and ids(bench, "outcome") == ["r1"])
    assert ids(bench) == ["r1"] and recovered(bench)["lost_records"] == 0
    events = [record["event"] for record in bench.records() if record["kind"] == "event"]
    assert events.count("audit.recovered") == 1 and make.event().event in events
    await broker.aclose()
    assert verified(bench)


async def test_a_batch_that_failed_gives_its_outcomes_back(bench: Any, make: Any) -> None:
    broker = await bench.broker()
    bench.disk.fill()
    signal = broker.intent(make.intent("r2"))
    broker.outcome(make.outcome("r1"))
    with pytest.raises(AuditUnavailable):
        await make.settled(signal)
    bench.disk.error = None
    await make.until(lambda: broker.accepting)
    assert ids(bench, "outcome") == ["r1"] and ids(bench) == []


async def test_a_failed_sync_refuses(bench: Any, make: Any) -> None:
    broker = await bench.broker(durability="fsync")
    bench.disk.sync_error = errno.EIO
    with pytest.raises(AuditUnavailable, match=r"takes no records\.$"):
        await make.settled(broker.intent(make.intent("r1")))
    bench.disk.sync_error = None
    await make.until(lambda: broker.accepting)
    await broker.aclose()
    assert ids(bench) == [] and verified(bench)


async def test_a_write_that_hangs_refuses_and_heals(bench: Any, make: Any) -> None:
    broker = await bench.broker(clock=bench.clock)
    bench.disk.released.clear()
    written = broker.intent(make.intent("hung"))
    await make.until(lambda: bench.disk.hanging == 1)
    gathered = broker.intent(make.intent("gathered"))
    await bench.ticked(broker, 5.0)  # the setting's default
    for signal in (written, gathered):
        with pytest.raises(AuditUnavailable, match=r"takes no records\.$"):
            await make.settled(signal)
    assert not broker.accepting
    with pytest.raises(AuditUnavailable):
        broker.intent(make.intent("refused"))
    broker.outcome(make.outcome("gathered"))
    bench.disk.released.set()
    await make.until(lambda: broker.accepting)
    await make.settled(broker.intent(make.intent("after")))
    assert ids(bench) == ["hung", "after"] and ids(bench, "outcome") == ["gathered"]
    assert recovered(bench)["refused_intents"] == 1
    await broker.aclose()
    assert verified(bench)


async def test_a_pause_of_this_process_is_no_write_that_hangs(bench: Any, make: Any) -> None:
    """The writer stood still too: it gets its time from then on."""
    broker = await bench.broker(clock=bench.clock)
    bench.disk.released.clear()
    written = broker.intent(make.intent("before"))
    await make.until(lambda: bench.disk.hanging == 1)
    await bench.ticked(broker, 3.0)
    bench.clock.advance(60.0)
    await bench.ticked(broker, 1.5)
    assert broker.accepting and not written.done and 3.0 < broker.lag < 5.0
    bench.disk.released.set()
    await make.settled(written)
    await broker.aclose()
    assert ids(bench) == ["before"] and verified(bench)


async def test_a_hung_write_that_then_fails_is_healed_too(bench: Any, make: Any) -> None:
    broker = await bench.broker(clock=bench.clock)
    bench.disk.released.clear()
    signal = broker.intent(make.intent("hung"))
    broker.outcome(make.outcome("hung"))
    await make.until(lambda: bench.disk.hanging == 1)
    await bench.ticked(broker, 5.0)
    with pytest.raises(AuditUnavailable):
        await make.settled(signal)
    bench.disk.fill()
    bench.disk.released.set()
    await make.until(lambda: bench.disk.writes >= 4)
    bench.disk.error = None
    await make.until(lambda: broker.accepting)
    assert ids(bench) == [] and ids(bench, "outcome") == ["hung"]


async def test_a_full_queue_refuses_and_recovers_without_a_fault(bench: Any, make: Any) -> None:
    broker = await bench.broker(queue=4)
    bench.disk.released.clear()
    first = broker.intent(make.intent("a"))
    await make.until(lambda: bench.disk.hanging == 1)
    rest = [broker.intent(make.intent(name)) for name in "bcd"]
    with pytest.raises(AuditUnavailable, match="queue is full"):
        broker.intent(make.intent("e"))
    assert broker.accepting
    bench.disk.released.set()
    await make.settled(rest[-1])
    assert first.done and ids(bench) == ["a", "b", "c", "d"]
    await make.settled(broker.intent(make.intent("f")))


async def test_outcomes_that_are_lost_are_counted_and_told(bench: Any, make: Any) -> None:
    broker = await bench.broker(queue=4)
    bench.disk.fill()
    with pytest.raises(AuditUnavailable):
        await make.settled(broker.intent(make.intent("r")))
    for number in range(10):
        broker.outcome(make.outcome(f"r{number}"))
    writes = bench.disk.writes
    await make.until(lambda: bench.disk.writes >= writes + 2)  # one that began before they were lost tells of none
    bench.disk.error = None
    await make.until(lambda: broker.accepting)
    kept = ids(bench, "outcome")
    assert kept == [f"r{n}" for n in range(len(kept))] and 3 <= len(kept) <= 4
    assert recovered(bench)["lost_records"] == 10 - len(kept)


async def test_a_clean_stop_gives_requests_outcomes_whose_own_were_lost(bench: Any, make: Any) -> None:
    broker = await bench.broker(queue=2)
    for name in "abcd":
        await make.settled(broker.intent(make.intent(name, reserved_completion=7)))
    bench.disk.fill()
    for name in "abcd":
        broker.outcome(make.outcome(name))
    await make.until(lambda: not broker.accepting and broker.lost == 2)
    bench.disk.error = None
    await make.until(lambda: broker.accepting)
    assert ids(bench, "outcome") == ["a", "b"]
    await broker.aclose()
    found = [(one["request_id"], one["outcome"], one.get("completion_tokens")) for one in bench.records() if one["kind"] == "outcome"]
    assert found[2:] == [("c", "unknown", 7), ("d", "unknown", 7)]
    assert [one["detail"] for one in bench.records() if one.get("event") == "audit.closed"] == [{"segment": 1, "outcomes_unknown": 2}]
    await bench.broker()
    assert len(ids(bench, "outcome")) == 4


async def test_a_lost_outcome_turns_accepting_off_until_it_is_told(bench: Any, make: Any) -> None:
    broker = await bench.broker(queue=2)
    bench.disk.released.clear()
    signal = broker.intent(make.intent("a"))
    await make.until(lambda: bench.disk.hanging == 1)
    for name in "abc":
        broker.outcome(make.outcome(name))
    assert not broker.accepting and broker.fault == "the queue is full"
    bench.disk.released.set()
    await make.settled(signal)
    await make.until(lambda: broker.accepting)
    assert recovered(bench)["lost_records"] == 2


async def test_outcomes_that_are_lost_while_the_log_is_tried_are_told_too(bench: Any, make: Any) -> None:
    broker = await bench.broker(queue=2)
    bench.disk.fill()
    with pytest.raises(AuditUnavailable):
        await make.settled(broker.intent(make.intent("r")))
    await make.until(lambda: broker._writing.batch is None)
    bench.disk.released.clear()
    await make.until(lambda: bench.disk.hanging == 1)
    for name in "abc":
        broker.outcome(make.outcome(name))
    bench.disk.error = None
    bench.disk.released.set()
    await make.until(lambda: broker.accepting)
    details = [record["detail"] for record in bench.records() if record.get("event") == "audit.recovered"]
    assert [(detail["reason"], detail["lost_records"]) for detail in details] == [("No space left on device", 0), ("the queue is full", 2)]
    assert ids(bench, "outcome") == ["a"]


async def test_many_kept_outcomes_are_written_in_pieces(bench: Any, make: Any) -> None:
    broker = await bench.broker(segment_bytes=1 << 30)
    bench.disk.fill()
    with pytest.raises(AuditUnavailable):
        await make.settled(broker.intent(make.intent("r")))
    for number in range(10_000):
        broker.outcome(make.outcome(f"r{number}"))
    bench.disk.error = None
    await make.until(lambda: broker.accepting)
    await make.until(lambda: broker.records >= 10_003)
    assert ids(bench, "outcome") == [f"r{n}" for n in range(10_000)]


async def test_an_event_that_is_refused_fails_and_raises_nothing(bench: Any, make: Any, caplog: Any) -> None:
    broker = await bench.broker()
    bench.disk.fill()
    with pytest.raises(AuditUnavailable):
        await make.settled(broker.event(make.event("a")))
    signal = broker.event(make.event("breaker.opened"))
    assert signal.done and isinstance(signal.error, AuditUnavailable)
    assert "breaker.opened" in caplog.text


async def test_checkpoints_come_by_time(bench: Any, make: Any) -> None:
    broker = await bench.broker(checkpoint={"every": 0.01})
    await make.settled(broker.intent(make.intent()))
    await make.until(lambda: any(record["kind"] == "checkpoint" for record in bench.records()))
    await make.settled(broker.intent(make.intent()))
    await broker.aclose()
    assert verified(bench)


async def test_a_failing_checkpoint_is_a_fault_that_heals(bench: Any, make: Any) -> None:
    broker = await bench.broker(clock=bench.clock, checkpoint={"every": 10.0})
    await make.settled(broker.intent(make.intent("a")))
    bench.disk.fill()
    bench.clock.advance(10.0)
    await make.until(lambda: not broker.accepting)
    bench.disk.error = None
    await make.until(lambda: broker.accepting)
    await broker.aclose()
    assert ids(bench) == ["a"] and verified(bench)


async def test_close_writes_what_waits_and_signs_the_end(bench: Any, make: Any) -> None:
    broker = await bench.broker()
    signal = broker.intent(make.intent("r1"))
    broker.outcome(make.outcome("r1"))
    await broker.aclose()
    assert signal.done and signal.error is None
    assert [record["kind"] for record in bench.records()][-4:] == ["intent", "outcome", "event", "checkpoint"]
    report = verify_log(bench.directory, bench.signer.verifier)
    assert report.ok and report.writers[0].signed == len(bench.lines()) - 1
    with pytest.raises(AuditUnavailable, match="takes no records"):
        broker.intent(make.intent("late"))
    broker.outcome(make.outcome("late"))
    assert not broker.accepting
    await broker.aclose()


async def test_a_pause_while_it_closes_loses_nothing(bench: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, paused = asyncio.get_running_loop(), [0.0]
    time_of = loop.time
    monkeypatch.setattr(loop, "time", lambda: time_of() + paused[0])
    broker = await bench.broker()
    bench.disk.released.clear()
    signal = broker.intent(make.intent("r1"))
    await make.until(lambda: bench.disk.hanging == 1)
    broker.outcome(make.outcome("r0"))
    closing = asyncio.ensure_future(broker.aclose(5.0))
    await asyncio.sleep(0)
    paused[0] = 13.0
    for _ in range(3):
        await asyncio.sleep(0)
    assert not closing.done()
    bench.disk.released.set()
    await closing
    await make.settled(signal)
    assert ids(bench) == ["r1"] and ids(bench, "outcome") == ["r0"] and verified(bench)


async def test_close_gives_up_on_a_hung_disk(bench: Any, make: Any, caplog: Any) -> None:
    broker = await bench.broker()
    bench.disk.released.clear()
    signal = broker.intent(make.intent("r1"))
    await make.until(lambda: bench.disk.hanging == 1)
    broker.outcome(make.outcome("r0"))
    await asyncio.wait_for(broker.aclose(0.05), 60)
    assert not broker.accepting and "could not be closed in time" in caplog.text
    with pytest.raises(AuditUnavailable):
        await make.settled(signal)


async def test_close_while_broken_tries_once_more(bench: Any, make: Any, caplog: Any) -> None:
    broker = await bench.broker(tick=60)
    bench.disk.fill()
    with pytest.raises(AuditUnavailable):
        await make.settled(broker.intent(make.intent("r1")))
    broker.outcome(make.outcome("r1"))
    bench.disk.error = None
    await broker.aclose()
    assert ids(bench, "outcome") == ["r1"] and verified(bench)


async def test_close_on_a_full_disk_says_what_is_lost(bench: Any, make: Any, caplog: Any) -> None:
    broker = await bench.broker(tick=60)
    bench.disk.fill()
    with pytest.raises(AuditUnavailable):
        await make.settled(broker.intent(make.intent("r1")))
    broker.outcome(make.outcome("r1"))
    with caplog.at_level(logging.ERROR):
        await broker.aclose()
    assert "1 are lost" in caplog.text
    bench.disk.error = None
    await (await bench.broker()).aclose()
    assert verified(bench)


async def test_before_the_start_everything_is_refused(bench: Any, make: Any) -> None:
    broker = AuditBroker(AuditSpec(), str(bench.state_dir))
    with pytest.raises(AuditUnavailable, match="takes no records"):
        broker.intent(make.intent())
    assert not broker.accepting
    await broker.aclose()


async def test_a_log_that_cannot_be_opened_is_a_config_error(bench: Any) -> None:
    bench.disk.fill()
    with pytest.raises(ConfigError, match="cannot open the audit log: No space left"):
        await bench.broker()
    bench.disk.error = None
    await bench.broker()
    with pytest.raises(ConfigError, match="another process"):
        await bench.broker()


async def test_it_implements_the_ports(bench: Any) -> None:
    log: AuditLog = await bench.broker()
    reader: AuditReader = LogReader(bench.directory, bench.signer.verifier)
    assert log.accepting and reader.verify()["ok"]


async def test_new_segments_name_the_configuration(bench: Any, make: Any) -> None:
    broker = await bench.broker(segment_bytes=500)
    broker.configured(7)
    for number in range(3):
        await make.settled(broker.intent(make.intent(f"r{number}")))
    assert (bench.records(1)[0]["config"], bench.records(2)[0]["config"]) == (0, 7)


async def test_a_log_can_be_verified_while_it_is_written(bench: Any, make: Any) -> None:
    broker = await bench.broker(segment_bytes=4000, checkpoint={"every": 0.001}, tick=0.001)
    loop = asyncio.get_running_loop()
    for round_number in range(20):
        report = loop.run_in_executor(None, verify_log, bench.directory, bench.signer.verifier)
        while not report.done():
            await make.settled(broker.intent(make.intent(f"r{round_number}")))
        assert (await report).ok, (await report).problems


async def test_body_hashes_are_keyed_per_installation(bench: Any, tmp_path_factory: Any) -> None:
    broker = await bench.broker()
    other = AuditBroker(AuditSpec(), str(tmp_path_factory.mktemp("other")))
    assert broker.hash_body(b"x") == broker.hash_body(b"x") != other.hash_body(b"x")


def test_body_hashes_can_be_switched_off(tmp_path: Any) -> None:
    assert AuditBroker(AuditSpec(body_hashes=False), str(tmp_path)).hash_body(b"x" * 2000) == ""


async def test_a_record_that_cannot_be_encoded_whole_does_not_affect_others(bench: Any, make: Any) -> None:
    broker = await bench.broker()
    bad = make.intent("bad", detail={"n": 10**40, "o": object(), "s": "\ud800"})
    await make.settled(broker.intent(bad))
    broker.intent(make.intent("good"))
    await broker.aclose()
    assert ids(bench) == ["bad", "good"] and verified(bench)


async def test_records_keep_their_order_over_many_batches(bench: Any, make: Any) -> None:
    broker = await bench.broker(segment_bytes=20_000)
    sent = []
    for number in range(300):
        sent.append(f"r{number}")
        signal = broker.intent(make.intent(sent[-1]))
        if number % 7 == 0:
            await make.settled(signal)
    await broker.aclose()
    paths = sorted(bench.directory.glob("audit-0-*.jsonl"))
    lines = [msgspec.json.decode(line) for path in paths for line in path.read_bytes().splitlines()]
    assert [line["request_id"] for line in lines if line["kind"] == "intent"] == sent
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1)) and verified(bench)
