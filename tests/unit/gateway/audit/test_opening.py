"""Reading records that were encrypted as a whole: who asks for keys, for how long they are used, and what cannot be opened."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest

from gateway.audit.chain import Chain
from gateway.audit.keyring import DataKey
from gateway.audit.opening import CLOSED, NO_ENCRYPTION, SEALED, FromLoop, Opener
from gateway.audit.reader import LogReader
from gateway.core.audit_questions import AuditFilter
from gateway.core.errors import MasterUnavailable
from tests.unit.gateway.audit.keys import Vault


async def lines(vault: Vault, *records: Any) -> list[bytes]:
    await vault.sealer.begin()
    return Chain().seal(await asyncio.to_thread(vault.sealer, records, "0", 0)).splitlines(keepends=True)


async def test_a_key_is_fetched_once_until_it_is_dropped(make: Any) -> None:
    vault = Vault()
    found = await lines(vault, *(make.intent(f"r{number}") for number in range(5)), make.intent("r9", "umbra"))
    assert vault.opener.lines("0", b"".join(found)).count(b'"principal":"ci"') == 6
    assert vault.fetched == ["dk-acme-1", "dk-umbra-1"]
    vault.opener.drop("acme")
    vault.opener.lines("0", b"".join(found))
    assert vault.fetched == ["dk-acme-1", "dk-umbra-1", "dk-acme-1"]
    vault.opener.drop(None)
    vault.opener.line("0", found[5])
    assert vault.fetched[3:] == ["dk-umbra-1"]


async def test_a_destroyed_key_leaves_what_is_in_the_clear_and_says_why(make: Any) -> None:
    vault = Vault()
    (line,) = await lines(vault, make.intent("r1"))
    vault.opener.line("0", line)
    vault.shredded.add("dk-acme-1")
    vault.opener.drop("acme")
    told = json.loads(vault.opener.line("0", line))
    assert told["unopened"] == "shredded" and told["tenant"] == "acme" and "principal" not in told
    assert told["hash"] == json.loads(line)["hash"] and vault.opener.opened("0", line) is None and vault.opener.payload("0", line) == b""
    assert json.loads(CLOSED.line("0", line))["unopened"] == NO_ENCRYPTION


async def test_a_master_that_is_away_is_an_error_and_not_an_answer(make: Any) -> None:
    vault = Vault()
    (line,) = await lines(vault, make.intent("r1"))
    vault.fault = MasterUnavailable("away")
    with pytest.raises(MasterUnavailable):
        vault.opener.line("0", line)
    vault.fault = None
    assert json.loads(vault.opener.line("0", line))["principal"] == "ci"


async def test_a_record_that_only_looks_sealed_is_as_it_is(make: Any) -> None:
    vault = Vault()
    looks = b'{"digest":"%b","sealed":{"v":1,"key":"dk-acme-1","salt":"%b","n":1,"data":"AAAA"}}' % (b"ab" * 32, b"00" * 16)
    (line,) = Chain().seal([make.intent(caller=msgspec.Raw(looks))]).splitlines(keepends=True)
    assert SEALED in line and vault.opener.line("0", line) == line
    assert vault.opener.line("0", b'{"seq":1,"x":"","sealed":{"v":1') == b'{"seq":1,"x":"","sealed":{"v":1'


async def test_a_thread_gets_keys_from_the_loop_and_does_not_wait_for_one_that_has_ended(make: Any) -> None:
    vault = Vault()
    (line,) = await lines(vault, make.intent("r1"))

    async def ask(id: str) -> DataKey | str:
        await asyncio.sleep(0)
        return vault.open(id)

    fetch = FromLoop(ask, asyncio.get_running_loop())
    told = await asyncio.to_thread(Opener(fetch).line, "0", line)
    assert json.loads(told)["principal"] == "ci"
    ended = asyncio.new_event_loop()
    ended.close()
    with pytest.raises(MasterUnavailable, match="ends"):
        Opener(FromLoop(ask, ended)).line("0", line)


async def test_threads_that_need_one_key_at_once_fetch_it_once(make: Any) -> None:
    vault = Vault()
    (line,) = await lines(vault, make.intent("r1"))
    gate = threading.Event()

    def slowly(id: str) -> DataKey | str:
        assert gate.wait(90)
        return vault.open(id)

    opener = Opener(slowly)
    asked = [asyncio.create_task(asyncio.to_thread(opener.line, "0", line)) for _ in range(4)]
    await asyncio.sleep(0)
    gate.set()
    assert len({*await asyncio.gather(*asked)}) == 1 and vault.fetched == ["dk-acme-1"]


async def test_a_mixed_log_reads_as_one(bench: Any, make: Any) -> None:
    """Records in the clear, then sealed ones, then with another key, then in the clear again."""
    vault = Vault()
    await vault.sealer.begin()

    def write() -> None:
        bench.log(2)
        for version in (1, 2, 0):
            writer = bench.writer(segment_bytes=1)
            writer.opener = vault.opener
            if version:
                vault.version = version
                vault.ring.drop("acme")
                writer.cover = vault.sealer
            writer.open()
            writer.write([make.intent(f"s{version}", user="ada"), make.outcome(f"s{version}", tenant="acme")])
            writer.close()

    await asyncio.to_thread(write)
    reader = LogReader(bench.directory, bench.signer.verifier, vault.opener)

    def read() -> None:
        assert reader.verify()["ok"]
        ids = [record["request_id"] for record in reader.records(principal="ci", kind="intent")]
        assert ids == ["r0", "r1", "s1", "s2", "s0"]
        assert [record["request_id"] for record in reader.newest(None, "ada")] == ["s0", "s2", "s1"]
        assert {record.get("user") for record in reader.tail(100) if record["kind"] == "intent"} == {None, "ada"}
        as_they_are = list(reader.export(AuditFilter(request_id="s2", sealed=True)))
        assert len(as_they_are) == 2 and all(b'"sealed":{' in line for line in as_they_are)
        assert len(list(reader.export_as(AuditFilter(request_id="s1"), "csv"))) == 3

    await asyncio.to_thread(read)
    vault.shredded = {"dk-acme-1", "dk-acme-2"}
    vault.opener.drop(None)

    def after() -> None:
        assert reader.verify()["ok"]
        assert [record["request_id"] for record in reader.records(principal="ci", kind="intent")] == ["r0", "r1", "s0"]
        assert [record["unopened"] for record in reader.records(request_id="s1")] == ["shredded", "shredded"]

    await asyncio.to_thread(after)
