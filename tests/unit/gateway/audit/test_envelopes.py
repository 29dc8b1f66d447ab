"""Whole records encrypted: what a line keeps in the clear, that it opens in its own place alone, and what happens without a key."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.audit import envelopes
from gateway.audit.broker import AuditBroker
from gateway.audit.chain import Chain, Entry, payload
from gateway.audit.envelopes import MOST, RecordSealer
from gateway.audit.journal import Journal, journal_name
from gateway.audit.keyring import SYSTEM
from gateway.audit.record import MAX_LINE
from gateway.core.errors import ConfigError, MasterUnavailable
from gateway.core.specs import AuditSpec
from gateway.core.types import EventRecord, IntentRecord, OutcomeRecord
from tests.unit.gateway.audit.keys import Vault


async def sealed(vault: Vault, *records: Entry, writer: str = "0", seq: int = 0) -> list[bytes]:
    """The lines of the records, sealed in another thread as the writer does."""
    await vault.sealer.begin()
    return await sealed_by(vault, *records, writer=writer, seq=seq)


async def sealed_by(vault: Vault, *records: Entry, writer: str = "0", seq: int = 0) -> list[bytes]:
    """The same once it has begun."""
    chain = Chain(seq)
    made = await asyncio.to_thread(vault.sealer, records, writer, seq)
    return chain.seal(made).splitlines(keepends=True)


async def test_a_line_keeps_in_the_clear_what_the_log_needs_and_nothing_else(make: Any) -> None:
    vault = Vault()
    first = make.intent("r1", "acme", user="canary-user", session="canary-session", caller={"models": ["canary-model"]})
    last = make.outcome("r1", tenant="acme", principal="canary-key", detail={"x": "canary-detail"})
    lines = await sealed(vault, first, last, make.event("admin.keys.create", actor="canary-admin", target="canary-target"))
    assert not any(b"canary" in line or b"10.0.0.1" in line for line in lines)
    intent, outcome, event = map(json.loads, lines)
    assert {name: intent[name] for name in ("seq", "kind", "time", "request_id", "tenant")} == {
        "seq": 1,
        "kind": "intent",
        "time": 1000.0,
        "request_id": "r1",
        "tenant": "acme",
    }
    assert set(intent) == {"seq", "kind", "time", "request_id", "tenant", "digest", "sealed", "hash"}
    assert set(outcome) == {"seq", "kind", "time", "request_id", "outcome", "tenant", "digest", "sealed", "hash"}
    assert set(event) == {"seq", "kind", "time", "event", "digest", "sealed", "hash"}
    assert intent["sealed"]["key"] == outcome["sealed"]["key"] == "dk-acme-1" and event["sealed"]["key"] == f"dk-{SYSTEM}-1"


@given(
    tenant=st.text(max_size=200).filter(lambda text: "-" not in text and text.strip() == text and "\0" not in text),
    user=st.text(max_size=300),
    detail=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=20_000) | st.integers(), max_size=5),
    peer=st.sampled_from(["", "10.0.0.1"]),
    seq=st.integers(0, 2**40),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_is_in_a_record_comes_back_as_it_would_be_in_the_clear(
    tenant: str, user: str, detail: dict[str, Any] | None, peer: str, seq: int
) -> None:
    record = OutcomeRecord(1.5, "r1", "ok", 200, tenant=tenant, user=user, detail=detail, peer=peer)

    async def run() -> None:
        vault = Vault()
        (line,) = await sealed(vault, record, seq=seq)
        assert len(line) <= MAX_LINE and line.isascii() and line.count(b"\n") == 1
        opened = json.loads(vault.opener.line("0", line))
        (clear,) = Chain(seq).seal([record]).splitlines()
        same = {name: value for name, value in json.loads(clear).items() if name not in ("hash", "detail")}
        assert {name: opened.get(name) for name in same} == same
        assert opened["hash"] == json.loads(line)["hash"] and bool(json.loads(line).get("early")) == bool(peer)
        if len(payload(record)) < MOST:
            assert opened.get("detail") == json.loads(clear).get("detail")

    asyncio.run(run())


async def test_a_line_opens_only_where_it_was_written(make: Any) -> None:
    vault = Vault()
    one, other, third = await sealed(vault, make.intent("r1"), make.intent("r1"), make.intent("r1", "umbra"))
    told, foreign = json.loads(one), json.loads(third)
    forged = {
        "another writer": ("1", one),
        "another line": ("0", one.replace(b'{"seq":1,', b'{"seq":2,')),
        "another tenant": ("0", one.replace(b'"tenant":"acme"', b'"tenant":"umbra"')),
        "another request": ("0", one.replace(b'"request_id":"r1"', b'"request_id":"r2"')),
        "another time": ("0", one.replace(b'"time":1000.0', b'"time":1001.0')),
        "another digest": ("0", one.replace(told["digest"].encode(), json.loads(other)["digest"].encode())),
        "the data of the next line": ("0", one.replace(told["sealed"]["data"].encode(), json.loads(other)["sealed"]["data"].encode())),
        "another tenant's envelope": ("0", one.replace(b'"sealed":{"v":1,"key":"dk-acme-1"', b'"sealed":{"v":1,"key":"dk-umbra-1"')),
        "another tenant's record": ("0", one[: one.index(b',"digest"')] + third[third.index(b',"digest"') :]),
        "another number": ("0", one.replace(b'"n":%d,' % told["sealed"]["n"], b'"n":77,')),
        "a withheld one": ("0", one.replace(b'"tenant":"acme"', b'"tenant":"acme","withheld":true')),
    }
    assert foreign["sealed"]["key"] == "dk-umbra-1"
    for name, (writer, line) in forged.items():
        assert line != one or writer != "0", name
        found = json.loads(vault.opener.line(writer, line))
        assert "principal" not in found and found["unopened"], name
    assert json.loads(vault.opener.line("0", one))["principal"] == "ci"


async def test_no_nonce_comes_twice_whatever_is_written_again(make: Any) -> None:
    vault, batch = Vault(), [make.intent(f"r{number}") for number in range(20)]
    lines = [line for _ in range(3) for line in await sealed(vault, *batch)]
    again = Vault()  # another process with the same data key
    lines += await sealed(again, *batch)
    used = [(json.loads(line)["sealed"]["salt"], json.loads(line)["sealed"]["n"]) for line in lines]
    assert len(set(used)) == len(used)


async def test_a_digest_is_of_what_was_sealed_and_says_nothing_without_it(make: Any) -> None:
    vault = Vault()
    one, other = await sealed(vault, make.intent("r1"), make.intent("r1"))
    assert json.loads(one)["digest"] != json.loads(other)["digest"], "the salt is random"
    found = vault.opener.opened("0", one)
    assert found is not None and json.loads(found.text)["principal"] == "ci"
    assert sha256(bytes.fromhex(found.salt) + found.text).hexdigest() == json.loads(one)["digest"]


async def test_a_tenant_whose_key_cannot_be_had_stops_nobody_and_loses_its_people(make: Any) -> None:
    vault = Vault()
    vault.away = {"acme"}
    records = [
        make.intent("r1", user="canary", session="canary", agent="canary", labels=("canary",), reserved_prompt=7),
        make.outcome("r1", tenant="acme", principal="canary", user="canary", prompt_tokens=3, attempts=1, detail={"a": "canary"}),
        make.intent("r2", "umbra"),
    ]
    lines = await sealed(vault, *records)
    intent, outcome, other = (json.loads(vault.opener.line("0", line)) for line in lines)
    assert vault.sealer.withheld == 2 and json.loads(lines[0])["withheld"] and json.loads(lines[0])["sealed"]["key"] == f"dk-{SYSTEM}-1"
    assert b"canary" not in vault.opener.lines("0", lines[0] + lines[1])
    assert (intent["reserved_prompt"], outcome["prompt_tokens"], outcome["attempts"]) == (7, 3, 1) and intent["principal"] == ""
    assert other["principal"] == "ci"


async def test_a_pause_of_this_process_while_a_key_is_fetched_costs_no_record_its_people(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for the key ends in a process that stood still: the key comes now, and is waited for as long again."""
    vault, loop, times = Vault(), asyncio.get_running_loop(), [0.0, 29.99, 29.99]
    await vault.sealer.begin()
    gate = vault.gate = asyncio.Event()

    def now() -> float:
        if times:
            return times.pop(0)
        loop.call_soon_threadsafe(gate.set)
        return 90.0

    monkeypatch.setattr(envelopes, "time", SimpleNamespace(monotonic=now))
    (line,) = await sealed_by(vault, make.intent("r1", user="canary"))
    assert vault.sealer.withheld == 0 and not times
    assert json.loads(vault.opener.line("0", line))["user"] == "canary"


def test_what_is_withheld_is_everything_that_is_not_known_to_say_nothing_of_people() -> None:
    people = {"principal", "credential", "peer", "user", "agent", "session", "caller", "facts", "labels", "detail", "text", "body_hash"}
    every = {*IntentRecord.__struct_fields__, *OutcomeRecord.__struct_fields__}
    assert every - envelopes._KEPT == people, "say of a new field whether it may be recorded without the tenant's key"


async def test_without_any_key_nothing_is_written(make: Any) -> None:
    vault = Vault()
    vault.away = {SYSTEM, "acme"}
    with pytest.raises(MasterUnavailable):
        await vault.sealer.begin()
    with pytest.raises(OSError, match="no data key"):
        await asyncio.to_thread(vault.sealer, [make.intent()], "0", 0)
    (plain,) = await asyncio.to_thread(vault.sealer, [make.event("audit.opened")], "0", 0)
    assert isinstance(plain, EventRecord), "what the log says of itself needs no key"


async def test_a_master_that_is_away_while_keys_are_dropped_does_not_stop_the_log(make: Any) -> None:
    vault = Vault()
    await sealed(vault, make.event("x"))
    vault.ring.drop(None)
    vault.away = {SYSTEM, "acme"}
    event, intent = await sealed_by(vault, make.event("y", actor="ada"), make.intent(user="ada"))
    assert json.loads(vault.opener.line("0", event))["actor"] == "ada", "with the key before"
    assert json.loads(intent)["withheld"] and vault.sealer.withheld == 1
    vault.away, vault.version = set(), 2
    vault.ring.drop(None)  # whoever failed is not asked again for a second
    event, intent = await sealed_by(vault, make.event("z"), make.intent())
    assert json.loads(event)["sealed"]["key"] == "dk-@gatehouse-2" and json.loads(intent)["sealed"]["key"] == "dk-acme-2"


async def test_a_key_that_is_destroyed_while_it_is_used_is_replaced(make: Any) -> None:
    vault = Vault()
    (first,) = await sealed(vault, make.intent())
    vault.ring.drop("acme")
    vault.version = 2
    (second,) = await sealed(vault, make.intent())
    assert [json.loads(line)["sealed"]["key"] for line in (first, second)] == ["dk-acme-1", "dk-acme-2"]


async def test_records_of_a_journal_from_before_are_sealed_too(make: Any) -> None:
    vault = Vault()
    early = make.outcome("r2", tenant="acme", peer="10.0.0.9")
    clear = [payload(make.intent("r1", user="canary")), payload(early), payload(make.event("x", actor="canary"))]
    lines = await sealed(vault, *clear)
    assert not any(b"canary" in line or b"10.0.0.9" in line for line in lines) and json.loads(lines[1])["early"]
    opened = [json.loads(vault.opener.line("0", line)) for line in lines]
    assert opened[0]["user"] == "canary" and opened[1]["peer"] == "10.0.0.9" and opened[2]["actor"] == "canary"
    assert [vault.opener.payload("0", line) for line in lines] == clear
    kept = [b',"kind":"segment","x":1', payload(make.event("audit.closed")), b',"kind":"event","time":1.0,"event":"%b"' % (b"y" * MOST)]
    assert await asyncio.to_thread(vault.sealer, kept, "0", 0) == kept


async def test_a_broker_encrypts_as_its_settings_say_and_never_in_a_journal(bench: Any, make: Any) -> None:
    vault = Vault()
    bench.disk.room = 1 << 40
    settings: dict[str, Any] = {"durability": "write", "timeout": 60.0, "encryption": {"scope": "record", "master": {"file": "x"}}}
    with pytest.raises(ConfigError, match="no keys"):
        await bench.broker(**settings)
    bench.brokers.clear()
    broker = AuditBroker(
        msgspec.convert(settings, AuditSpec), str(bench.state_dir), sink=bench.sink(), tick=0.01, steady=1, cpu=lambda: 0.0
    )
    broker.encrypt(vault.ring, vault.opener)
    bench.brokers.append(broker)
    await broker.start()
    for number in range(40):
        await make.settled(broker.intent(make.intent(f"r{number}", user="canary")))
        broker.outcome(make.outcome(f"r{number}", tenant="acme", user="canary"))
    assert not list(bench.directory.glob("*.journal"))
    await broker.aclose()
    files = b"".join(path.read_bytes() for path in bench.directory.iterdir())
    assert b"canary" not in files and files.count(b'"kind":"intent"') == 40


async def test_a_process_that_was_killed_leaves_sealed_intents_whose_requests_are_charged(bench: Any, make: Any) -> None:
    vault = Vault()
    await vault.sealer.begin()

    def run() -> list[dict[str, Any]]:
        first = bench.writer()
        first.cover, first.opener = vault.sealer, vault.opener
        first.open()
        first.write([make.intent("r1", reserved_prompt=5, user="ada"), make.intent("r2"), make.outcome("r2", tenant="acme")])
        first.write([make.outcome("r1", tenant="acme", peer="10.0.0.1")])  # refused before its intent: ends none
        first.abandon()
        second = bench.writer()
        second.cover, second.opener = vault.sealer, vault.opener
        second.open()
        second.close()
        return [json.loads(vault.opener.line("0", line)) for line in bench.lines()]

    records = await asyncio.to_thread(run)
    (unknown,) = (record for record in records if record.get("code") == "outcome_unknown")
    assert (unknown["request_id"], unknown["prompt_tokens"], unknown["user"], unknown["tenant"]) == ("r1", 5, "ada", "acme")
    assert isinstance(unknown["sealed"], str)


async def test_intents_whose_keys_were_destroyed_before_a_kill_get_an_outcome_of_what_is_in_the_clear(bench: Any, make: Any) -> None:
    vault = Vault()
    await vault.sealer.begin()

    def opened() -> Any:
        writer = bench.writer()
        writer.cover, writer.opener = vault.sealer, vault.opener
        writer.open()
        return writer

    def run() -> list[dict[str, Any]]:
        first = opened()
        first.write([make.intent("r1", reserved_prompt=5, user="ada")])
        first.abandon()
        vault.shredded = {"dk-acme-1"}
        vault.ring.drop("acme")
        vault.opener.drop("acme")
        vault.version = 2
        opened().close()
        return [json.loads(vault.opener.line("0", line)) for line in bench.lines()]

    records = await asyncio.to_thread(run)
    (unknown,) = (record for record in records if record.get("code") == "outcome_unknown")
    assert (unknown["request_id"], unknown["tenant"], unknown["sealed"]) == ("r1", "acme", "dk-acme-2")
    assert "user" not in unknown and "prompt_tokens" not in unknown


async def test_a_journal_in_the_clear_is_chained_sealed_and_once_whatever_crashes_between(bench: Any, make: Any) -> None:
    vault = Vault()
    await vault.sealer.begin()

    def run() -> None:
        before = bench.writer()
        before.open()
        before.abandon()
        journal = Journal(bench.directory / journal_name("0"))
        for number in range(3):
            assert journal.append(payload(make.intent(f"j{number}", user="canary")))
        left = (bench.directory / journal_name("0")).read_bytes()
        for _ in range(2):  # the second time, the process had ended before it removed the journal
            (bench.directory / journal_name("0")).write_bytes(left)
            writer = bench.writer()
            writer.cover, writer.opener = vault.sealer, vault.opener
            writer.open()
            writer.abandon()
        assert not (bench.directory / journal_name("0")).exists()

    await asyncio.to_thread(run)
    records = [json.loads(vault.opener.line("0", line)) for line in bench.lines()]
    assert [record["request_id"] for record in records if record["kind"] == "intent"] == ["j0", "j1", "j2"]
    assert b"canary" not in b"".join(bench.lines())


def test_a_sealer_without_a_loop_waits_for_nothing(make: Any) -> None:
    with pytest.raises(OSError, match="no data key"):
        RecordSealer(Vault().ring)([make.intent()], "0", 0)
