"""Searches and reports over records that are encrypted as a whole: by what is hidden, within bounds, and nothing of it on the disk."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.app.main import app
from gateway.audit import opened_index
from gateway.audit.index import Index
from gateway.audit.indexer import Indexer
from gateway.audit.opened_index import search_opened, summary_opened, unsearched
from gateway.audit.opening import CLOSED
from gateway.core.audit_questions import AuditSearch
from gateway.core.errors import AuditSearchTooLong
from tests.unit.gateway.audit.keys import Vault


@pytest.fixture
async def found(bench: Any, make: Any) -> tuple[Any, Path, Vault]:
    """A log of two writers with clear and sealed records, and its index."""
    vault = Vault()
    await vault.sealer.begin()

    def write() -> Path:
        bench.log(2)  # in the clear, of `ci`
        writer = bench.writer(writer="1")
        writer.cover, writer.opener = vault.sealer, vault.opener
        writer.open()
        for number in range(6):
            user = "lovelace" if number % 2 else "bob"
            writer.write([make.intent(f"s{number}", "acme" if number < 4 else "umbra", user=user)])
            writer.write([make.outcome(f"s{number}", tenant="acme", user=user, attempts=1, prompt_tokens=10, endpoint="e1")])
        writer.write([make.outcome("s9", peer="10.0.0.1", code="invalid_api_key"), make.event("admin.keys.create", actor="mallory")])
        writer.close()
        path = bench.state_dir / "audit-index.sqlite"
        index = Index(path)
        Indexer(bench.directory, index).update(lambda: True)
        index.close()
        return path

    return bench, await asyncio.to_thread(write), vault


async def test_hidden_and_clear_conditions_find_the_same_as_without_encryption(found: Any) -> None:
    bench, path, vault = found

    def ids(**asked: Any) -> list[str]:
        return [
            one["request_id"] for one in search_opened(path, AuditSearch(**asked), bench.directory, vault.opener) if "request_id" in one
        ]

    def read() -> None:
        assert ids(user="lovelace") == ["s5", "s3", "s1"] and ids(user="lovelace", limit=2) == ["s5", "s3"]
        assert ids(user="lo*", tenant="acme") == ["s3", "s1"] and ids(user="*", tenant="umbra") == ["s5", "s4"]
        assert ids(user="lovelace", tenants=frozenset({"umbra"})) == ["s5"], "an auditor of one tenant finds nothing of another"
        assert sorted(ids(principal="ci")) == ["r0", "r1", *(f"s{number}" for number in range(6))], "in the clear, and sealed"
        assert ids(code="invalid_api_key") == ["s9"] and ids(user="nobody") == [] and ids(endpoint="e1", user="bob") == ["s4", "s2", "s0"]
        assert ids(request_id="s2", user="bob") == ["s2"] and ids(request_id="s2", user="lovelace") == []
        (event,) = search_opened(path, AuditSearch(actor="mallory"), bench.directory, vault.opener)
        assert (event["event"], event["actor"], event["outcome"]) == ("admin.keys.create", "mallory", "ok")
        (one,) = search_opened(path, AuditSearch(request_id="s1"), bench.directory, vault.opener)
        assert (one["user"], one["endpoint"], one["prompt_tokens"], one["tenant"]) == ("lovelace", "e1", 10, "acme") and "sealed" not in one

    await asyncio.to_thread(read)
    assert b"lovelace" not in path.read_bytes() and b"mallory" not in path.read_bytes()


async def test_pages_go_on_where_the_last_one_ended(found: Any) -> None:
    bench, path, vault = found

    def read() -> None:
        seen, place = [], None
        while page := search_opened(path, AuditSearch(principal="ci", limit=3, before=place), bench.directory, vault.opener):
            seen += [one["request_id"] for one in page]
            place = page[-1]["time"], page[-1]["id"]
        assert len(seen) == len(set(seen)) == 8

    await asyncio.to_thread(read)


async def test_without_keys_what_is_in_the_clear_is_found_still(found: Any) -> None:
    bench, path, _ = found
    assert search_opened(path, AuditSearch(user="lovelace"), bench.directory, CLOSED) == []
    (one,) = search_opened(path, AuditSearch(request_id="s1"), bench.directory, CLOSED)
    assert one["tenant"] == "acme" and one["outcome"] == "ok" and "user" not in one


async def test_whoever_has_no_keys_is_told_how_much_was_not_searched(found: Any) -> None:
    _, path, _ = found
    assert unsearched(path, AuditSearch(user="lovelace")) == 8  # six requests, one without an intent, one event
    assert unsearched(path, AuditSearch(user="lovelace", tenant="umbra")) == 2
    assert unsearched(path, AuditSearch(actor="*", kind="event")) == 1
    assert unsearched(path, AuditSearch(user="lovelace", request_id="s2")) == 1
    assert unsearched(path, AuditSearch(user="lovelace", tenants=frozenset({"umbra"}))) == 2
    clear = AuditSearch(tenant="acme", outcome="ok", kind="request", since=0.0), AuditSearch(request_id="s1"), AuditSearch()
    assert [unsearched(path, asked) for asked in clear] == [0, 0, 0], "what is in the clear finds all"
    assert unsearched(path, AuditSearch(user="lovelace", tenant="nobody")) == 0


@pytest.mark.parametrize(("asked", "code", "count"), [(("--user", "lovelace"), 1, 8), (("--tenant", "acme"), 0, 0)])
async def test_the_command_without_keys_tells_it_too(found: Any, asked: tuple[str, ...], code: int, count: int) -> None:
    command = ["audit", "search", "--dir", str(found[0].directory), *asked, "--output", "json"]
    done = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert done.exit_code == code, done.output
    assert (f"{count} requests and events are encrypted as a whole" in done.stderr) is bool(code)
    assert ("s1" in done.stdout) is not bool(code)


async def test_a_search_opens_so_many_records_and_no_more(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, path, vault = found
    monkeypatch.setattr(opened_index, "MOST", 4)

    def read() -> None:
        assert len(search_opened(path, AuditSearch(user="*", limit=2), bench.directory, vault.opener)) == 2
        with pytest.raises(AuditSearchTooLong, match="more than 4 encrypted records"):
            search_opened(path, AuditSearch(user="lovelace"), bench.directory, vault.opener)

    await asyncio.to_thread(read)


async def test_a_report_is_of_opened_records(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, path, vault = found

    def read() -> None:
        made = summary_opened(path, 0.0, 2e9, None, bench.directory, vault.opener)
        users = Counter[str]()
        for row in made["callers"]:
            users[row["user"]] += row["requests"]
        assert users["lovelace"] == 3 and users["bob"] == 3 and users[""] == 3
        assert any(row["model"] == "demo-chat" and row["prompt_tokens"] == 40 for row in made["accesses"])
        assert [row["actor"] for row in made["changes"]] == ["mallory"]
        of_one = summary_opened(path, 0.0, 2e9, frozenset({"umbra"}), bench.directory, vault.opener)
        assert {row["tenant"] for row in of_one["callers"]} == {"umbra"} and "log" not in of_one
        assert summary_opened(path, 3e9, 4e9, None, bench.directory, vault.opener)["callers"] == []
        monkeypatch.setattr(opened_index, "MOST_REPORTED", 3)
        with pytest.raises(AuditSearchTooLong, match="shorter period"):
            summary_opened(path, 0.0, 2e9, None, bench.directory, vault.opener)

    await asyncio.to_thread(read)
