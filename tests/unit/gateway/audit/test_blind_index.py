"""Tokens of encrypted records in the index: they find what opening finds, tell nothing, and go with their key."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.audit import blind_index, opened_index
from gateway.audit.blind_index import Blinder, token
from gateway.audit.index import BLIND, Index
from gateway.audit.indexer import Indexer
from gateway.audit.opened_index import search_opened
from gateway.core.audit_questions import AuditSearch
from gateway.core.errors import AuditSearchTooLong, MasterUnavailable
from tests.unit.gateway.audit.keys import Vault


class Log:
    """A log of encrypted records and its index, whose records get tokens."""

    def __init__(self, bench: Any, make: Any, vault: Vault) -> None:
        self.bench, self.make, self.vault = bench, make, vault
        self.path: Path = bench.state_dir / "audit-index.sqlite"
        self.writer = bench.writer()
        self.writer.cover, self.writer.opener = vault.sealer, vault.opener
        self.blinder = Blinder(self.path, bench.directory, vault.opener)

    def request(self, id: str, tenant: str = "acme", user: str = "bob", **outcome: Any) -> None:
        self.writer.write([self.make.intent(id, tenant, user=user)])
        self.writer.write([self.make.outcome(id, tenant=tenant, **outcome)])

    def index(self) -> None:
        with closing(Index(self.path)) as index:
            Indexer(self.bench.directory, index).update(lambda: True)

    def settled(self) -> Log:
        self.index()
        assert self.blinder.update(120.0)
        return self

    def rows(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute(sql).fetchall()

    def found(self, **asked: Any) -> tuple[list[str], dict[str, int]]:
        items, unopened = search_opened(self.path, AuditSearch(**asked), self.bench.directory, self.vault.opener)
        return [one.get("request_id", one.get("event")) for one in items], unopened


@pytest.fixture
async def log(bench: Any, make: Any) -> Log:
    vault = Vault()
    await vault.sealer.begin()

    def begin() -> Log:
        made = Log(bench, make, vault)
        made.writer.open()
        return made

    return await asyncio.to_thread(begin)


async def test_what_has_tokens_is_found_without_being_opened(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        for number in range(12):
            log.request(f"r{number}", "acme" if number % 3 else "umbra", "lovelace" if number % 2 else "bob", endpoint=f"e{number % 4}")
        log.writer.write([log.make.event("admin.keys.create", actor="mallory", tenants=("acme",))])
        log.settled()
        assert log.rows("SELECT sealed, count(*) FROM entries WHERE sealed <> 0 GROUP BY 1") == [(2, 13)]
        opened: list[Any] = []
        line = log.vault.opener.line
        monkeypatch.setattr(log.vault.opener, "line", lambda *given: (opened.append(given), line(*given))[1])
        assert log.found(user="lovelace", endpoint="e3") == (["r11", "r7", "r3"], {}) and len(opened) == 6
        assert log.found(user="lovelace", tenant="umbra")[0] == ["r9", "r3"]
        assert log.found(user="lovelace", tenants=frozenset({"umbra"}))[0] == ["r9", "r3"]
        assert log.found(user="nobody") == ([], {}) and log.found(user="bob", endpoint="e3")[0] == []
        assert log.found(actor="mallory", tenant="acme")[0] == log.found(actor="mallory")[0] == ["admin.keys.create"]
        assert log.found(actor="mallory", tenants=frozenset({"acme"}))[0] == [], "events belong to nobody's auditor"
        monkeypatch.setattr(opened_index, "MOST", 6)
        assert log.found(user="lovelace", limit=2)[0] == ["r11", "r9"]
        with pytest.raises(AuditSearchTooLong, match="more than 6"):
            log.found(user="lov*")
        monkeypatch.setattr(opened_index, "MOST", 60)
        assert log.found(user="lov*", endpoint="e3")[0] == ["r11", "r7", "r3"]
        seen: list[str] = []
        place = None
        while page := search_opened(log.path, AuditSearch(user="lovelace", limit=2, before=place), log.bench.directory, log.vault.opener)[
            0
        ]:
            seen += [one["request_id"] for one in page]
            place = page[-1]["time"], page[-1]["id"]
        assert seen == ["r11", "r9", "r7", "r5", "r3", "r1"]
        whole = log.path.read_bytes()
        assert not any(word in whole for word in (b"lovelace", b"mallory", b"demo-chat", b"10.0.0."))

    await asyncio.to_thread(run)


async def test_an_outcome_that_comes_later_changes_the_tokens(log: Log) -> None:
    def run() -> None:
        log.writer.write([log.make.intent("r1", "acme", user="lovelace")])
        log.settled()
        assert log.found(user="lovelace")[0] == ["r1"], "opened: it may end yet"
        assert log.found(endpoint="e9")[0] == []
        log.writer.write([log.make.outcome("r1", tenant="acme", endpoint="e9")])
        log.index()
        assert log.found(endpoint="e9", user="lovelace")[0] == ["r1"], "before it has tokens"
        log.settled()
        assert log.found(endpoint="e9", user="lovelace")[0] == ["r1"] and log.rows("SELECT count(*) FROM blind")[0][0] == 1

    await asyncio.to_thread(run)


async def test_lines_of_two_keys_and_of_clear_and_encrypted_ones_are_opened_each_time(log: Log) -> None:
    def run() -> None:
        log.writer.write([log.make.intent("two", "acme", user="lovelace")])
        log.vault.version = 2
        log.vault.ring.drop("acme")
        log.vault.opener.drop("acme")
        asyncio.run_coroutine_threadsafe(log.vault.sealer._current("acme"), loop).result(120)
        log.writer.write([log.make.outcome("two", tenant="acme", endpoint="e9")])
        log.writer.cover = None
        log.writer.write([log.make.intent("mixed", "acme", user="lovelace")])
        log.writer.cover = log.vault.sealer
        log.writer.write([log.make.outcome("mixed", tenant="acme", endpoint="e9")])
        log.request("one", user="lovelace", endpoint="e9")
        log.settled()
        assert log.rows("SELECT request_id, sealed FROM entries WHERE request = 1 ORDER BY id") == [("two", 3), ("mixed", 3), ("one", 2)]
        assert log.found(user="lovelace", endpoint="e9") == (["one", "mixed", "two"], {})

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(run)


async def test_tokens_go_with_their_key_and_what_had_them_is_told(log: Log) -> None:
    def run() -> None:
        for number in range(4):
            log.request(f"r{number}", "acme" if number % 2 else "umbra", "lovelace")
        log.settled()
        tokens = token(log.vault.key("dk-acme-1").blind(), "user", "lovelace")
        assert log.rows(f"SELECT count(*) FROM blind WHERE b_user = {tokens}") == [(2,)]
        log.vault.shredded = {"dk-acme-1"}
        log.vault.opener.drop("acme")
        assert log.found(user="lovelace") == (["r2", "r0"], {"shredded": 2}), "before they are erased"
        log.settled()
        assert log.rows("SELECT name FROM data_keys WHERE gone = 1") == [("dk-acme-1",)]
        nothing = " AND ".join(f"b_{name} = 0" for name in BLIND)
        assert log.rows(f"SELECT count(*) FROM blind WHERE {nothing}") == [(2,)]
        whole = b"".join(path.read_bytes() for path in log.path.parent.glob("audit-index.sqlite*"))
        assert tokens.to_bytes(8, "big") not in whole
        assert log.found(user="lovelace") == (["r2", "r0"], {"shredded": 2})
        assert log.found(user="lovelace", limit=1) == (["r2"], {"shredded": 1}), "older ones are told with their page"
        assert log.found(user="lovelace", tenant="umbra")[1] == {} and log.found(user="nobody", tenant="acme") == ([], {"shredded": 2})
        log.path.unlink()
        log.settled()  # made anew, when the key was gone already
        assert log.found(user="lovelace") == (["r2", "r0"], {"shredded": 2})

    await asyncio.to_thread(run)


async def test_what_is_withheld_or_cannot_be_opened_is_opened_each_time(log: Log) -> None:
    log.vault.away = {"acme"}

    def run() -> None:
        log.request("w", "acme", "lovelace")
        log.request("r", "umbra", "lovelace")
        log.settled()
        assert log.found(user="lovelace") == (["r"], {"withheld": 1})
        log.vault.fault = MasterUnavailable("away")
        log.vault.opener.drop(None)
        log.request("later", "umbra", "lovelace")
        log.index()
        with pytest.raises(MasterUnavailable):
            log.blinder.update(120.0)
        assert log.rows("SELECT sealed FROM entries WHERE request_id = 'later'") == [(1,)], "nothing was decided"
        log.vault.fault = None
        assert log.settled().found(user="lovelace") == (["later", "r"], {"withheld": 1})

    await asyncio.to_thread(run)


async def test_a_removed_segment_takes_its_tokens_along_and_too_many_keys_are_refused(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        log.request("r", "acme", "lovelace")
        log.request("s", "umbra", "lovelace")
        log.settled()
        monkeypatch.setattr(blind_index, "KEYS", 1)
        with pytest.raises(AuditSearchTooLong, match="more than 1 data keys: narrow it by tenant"):
            log.found(user="lovelace", kind="request")
        with closing(Index(log.path)) as index:
            index.forget("0")
        assert log.rows("SELECT count(*) FROM blind") == [(0,)]

    await asyncio.to_thread(run)
