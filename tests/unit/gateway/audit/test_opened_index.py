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
from gateway.audit.opened_index import search_opened, summary_opened
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
            tenant = "acme" if number < 4 else "umbra"
            writer.write([make.intent(f"s{number}", tenant, user=user)])
            writer.write([make.outcome(f"s{number}", tenant=tenant, user=user, attempts=1, prompt_tokens=10, endpoint="e1")])
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
            one["request_id"] for one in search_opened(path, AuditSearch(**asked), bench.directory, vault.opener)[0] if "request_id" in one
        ]

    def read() -> None:
        assert ids(user="lovelace") == ["s5", "s3", "s1"] and ids(user="lovelace", limit=2) == ["s5", "s3"]
        assert ids(user="lo*", tenant="acme") == ["s3", "s1"] and ids(user="*", tenant="umbra") == ["s5", "s4"]
        assert ids(user="lovelace", tenants=frozenset({"umbra"})) == ["s5"], "an auditor of one tenant finds nothing of another"
        assert sorted(ids(principal="ci")) == ["r0", "r1", *(f"s{number}" for number in range(6))], "in the clear, and sealed"
        assert ids(code="invalid_api_key") == ["s9"] and ids(user="nobody") == [] and ids(endpoint="e1", user="bob") == ["s4", "s2", "s0"]
        assert ids(request_id="s2", user="bob") == ["s2"] and ids(request_id="s2", user="lovelace") == []
        ((event,), none) = search_opened(path, AuditSearch(actor="mallory"), bench.directory, vault.opener)
        assert none == {}
        assert (event["event"], event["actor"], event["outcome"]) == ("admin.keys.create", "mallory", "ok")
        ((one,), _) = search_opened(path, AuditSearch(request_id="s1"), bench.directory, vault.opener)
        assert (one["user"], one["endpoint"], one["prompt_tokens"], one["tenant"]) == ("lovelace", "e1", 10, "acme") and "sealed" not in one

    await asyncio.to_thread(read)
    assert b"lovelace" not in path.read_bytes() and b"mallory" not in path.read_bytes()


async def test_pages_go_on_where_the_last_one_ended(found: Any) -> None:
    bench, path, vault = found

    def read() -> None:
        seen, place = [], None
        while page := search_opened(path, AuditSearch(principal="ci", limit=3, before=place), bench.directory, vault.opener)[0]:
            seen += [one["request_id"] for one in page]
            place = page[-1]["time"], page[-1]["id"]
        assert len(seen) == len(set(seen)) == 8

    await asyncio.to_thread(read)


async def test_without_keys_what_is_in_the_clear_is_found_still(found: Any) -> None:
    bench, path, _ = found
    assert search_opened(path, AuditSearch(user="lovelace"), bench.directory, CLOSED)[0] == []
    ((one,), _) = search_opened(path, AuditSearch(request_id="s1"), bench.directory, CLOSED)
    assert one["tenant"] == "acme" and one["outcome"] == "ok" and "user" not in one


async def test_whoever_has_no_keys_is_told_how_much_was_not_searched(found: Any) -> None:
    bench, path, _ = found

    def unsearched(asked: AuditSearch) -> int:
        return sum(search_opened(path, asked, bench.directory, CLOSED)[1].values())

    assert search_opened(path, AuditSearch(user="lovelace"), bench.directory, CLOSED)[1] == {"no keys": 8}
    # six requests, one without an intent, one event
    assert unsearched(AuditSearch(user="lovelace", tenant="umbra")) == 2
    assert unsearched(AuditSearch(actor="*", kind="event")) == 1
    assert unsearched(AuditSearch(user="lovelace", request_id="s2")) == 1
    assert unsearched(AuditSearch(user="lovelace", tenants=frozenset({"umbra"}))) == 2
    clear = AuditSearch(tenant="acme", outcome="ok", kind="request", since=0.0), AuditSearch(request_id="s1"), AuditSearch()
    assert [unsearched(asked) for asked in clear] == [0, 0, 0], "what is in the clear finds all"
    assert unsearched(AuditSearch(user="lovelace", tenant="nobody")) == 0


async def test_a_search_says_how_many_it_could_not_open_because_their_key_was_destroyed(found: Any) -> None:
    bench, path, vault = found
    vault.shredded = {"dk-acme-1"}

    def read() -> None:
        def search(**asked: Any) -> tuple[list[str], dict[str, int]]:
            items, unopened = search_opened(path, AuditSearch(**asked), bench.directory, vault.opener)
            return [one.get("request_id", one.get("event")) for one in items], unopened

        assert search(user="lovelace") == (["s5"], {"shredded": 4})
        assert search(user="lovelace", tenant="umbra") == (["s5"], {})
        assert search(user="lovelace", tenants=frozenset({"acme"})) == ([], {"shredded": 4})
        assert search(principal="ci", tenant="umbra", limit=1) == (["s5"], {}), "older ones are told with their page"
        assert search(tenant="acme", kind="request")[1] == {} and search(request_id="s1") == (["s1"], {})
        ((one,), _) = search_opened(path, AuditSearch(request_id="s1"), bench.directory, vault.opener)
        assert one["unopened"] == "shredded" and "user" not in one and one["outcome"] == "ok"
        told, place = Counter[str](), None
        while True:  # over pages each is told once
            page, unopened = search_opened(path, AuditSearch(user="*", limit=1, before=place), bench.directory, vault.opener)
            told.update(unopened)
            if not page:
                break
            place = page[-1]["time"], page[-1]["id"]
        assert told == {"shredded": 4}
        made = summary_opened(path, 0.0, 2e9, None, bench.directory, vault.opener)
        assert made["unopened"] == {"shredded": 4} and {row["user"] for row in made["callers"]} == {"lovelace", "bob", ""}
        assert summary_opened(path, 0.0, 2e9, frozenset({"umbra"}), bench.directory, vault.opener)["unopened"] == {}
        assert summary_opened(path, 3e9, 4e9, None, bench.directory, vault.opener)["unopened"] == {}

    await asyncio.to_thread(read)


async def test_what_was_written_without_a_key_is_not_taken_for_somebody_elses(bench: Any, make: Any) -> None:
    """A record that withholds who asked may be of whoever is looked for; what it does say is believed."""
    vault = Vault()
    await vault.sealer.begin()
    vault.away = {"acme"}

    def read() -> None:
        writer = bench.writer()
        writer.cover, writer.opener = vault.sealer, vault.opener
        writer.open()
        writer.write([make.intent("w1", "acme", user="lovelace"), make.intent("w2", "umbra", user="lovelace")])
        writer.write([make.event("admin.keys.create", tenants=("acme",)), make.event("admin.apply", tenants=("acme", "umbra"))])
        writer.write([make.event("admin.roles.create"), make.event("audit.keys_rotated", tenants=("*",))])
        writer.close()
        path = bench.state_dir / "audit-index.sqlite"
        index = Index(path)
        Indexer(bench.directory, index).update(lambda: True)
        index.close()

        def search(**asked: Any) -> tuple[list[str], dict[str, int]]:
            items, unopened = search_opened(path, AuditSearch(**asked), bench.directory, vault.opener)
            return [one.get("request_id", one.get("event")) for one in items], unopened

        assert search(user="lovelace") == (["w2"], {"withheld": 1})
        ((one,), _) = search_opened(path, AuditSearch(request_id="w1"), bench.directory, vault.opener)
        assert one["model"] == "demo-chat" and "user" not in one
        assert search(user="lovelace", model="other*") == ([], {})
        assert search(tenant="acme", kind="event") == (["audit.keys_rotated", "admin.apply", "admin.keys.create"], {})
        assert search(tenant="umbra") == (["audit.keys_rotated", "admin.apply", "w2"], {})
        assert search(tenant="umbra", event="admin.*", limit=1) == (["admin.apply"], {}) and search(tenant="nobody") == (
            ["audit.keys_rotated"],
            {},
        )
        assert search(tenants=frozenset({"acme"})) == (["w1"], {}), "events belong to nobody's auditor"
        assert search(tenant="acme", tenants=frozenset({"acme"})) == (["w1"], {})
        ((one,), _) = search_opened(path, AuditSearch(event="admin.apply"), bench.directory, CLOSED)
        assert one["tenants"] == ["acme", "umbra"]
        assert search_opened(path, AuditSearch(tenant="acme", actor="root"), bench.directory, CLOSED)[1] == {"no keys": 4}

    await asyncio.to_thread(read)


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
        assert len(search_opened(path, AuditSearch(user="*", limit=2), bench.directory, vault.opener)[0]) == 2
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
