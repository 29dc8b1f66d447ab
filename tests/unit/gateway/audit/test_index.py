"""The index of a log: every request and event once, whatever happens to the reader, the writer or the file; what a search finds."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.app.audit import index as audit_index
from gateway.audit.index import Index, IndexBusy, reading, search, tenants_of
from gateway.audit.indexer import Indexer
from gateway.audit.lines import lines_at
from gateway.audit.summary import summary
from gateway.core.audit_questions import AuditSearch
from gateway.core.errors import AuditSearchTooLong
from tests.waiting import reached


@dataclass
class Kept:
    """An index and what keeps it. `opened`: again, as after a restart."""

    directory: Path
    path: Path
    index: Index

    def update(self, blocks: int = 1 << 30) -> int:
        left = iter(range(blocks))
        return Indexer(self.directory, self.index).update(lambda: next(left, None) is not None)

    def opened(self) -> Kept:
        self.index.close()
        self.index = Index(self.path)
        return self

    def find(self, **asked: Any) -> list[dict[str, Any]]:
        return search(self.path, AuditSearch(**{"kind": "request", **asked}))

    def ids(self, **asked: Any) -> list[str]:
        return [one["request_id"] for one in self.find(limit=1000, **asked)]


@pytest.fixture
def kept(log_bench: Any, tmp_path: Path) -> Iterator[Kept]:
    path = tmp_path / "index" / "audit-index.sqlite"
    kept = Kept(log_bench.directory, path, Index(path))
    yield kept
    kept.index.close()


def logged(log_bench: Any, *batches: list[Any], **more: Any) -> Any:
    writer = log_bench.writer(**more)
    writer.open()
    for batch in batches:
        writer.write(batch)
    return writer


def test_an_intent_and_its_outcome_are_one_entry_with_both_lines(log_bench: Any, make: Any, kept: Kept) -> None:
    intent = make.intent(rule="keys/ci", user="ann", session="s1")
    logged(log_bench, [intent, make.outcome(endpoint="e1", prompt_tokens=7, cost=40), make.event("admin.keys.create", actor="acme/root")])
    assert kept.update() == 0
    (found,) = kept.find()
    assert (found["tenant"], found["principal"], found["user"], found["rule"], found["method"]) == (
        "acme",
        "ci",
        "ann",
        "keys/ci",
        "api_key",
    )
    assert (found["outcome"], found["endpoint"], found["prompt_tokens"], found["cost"]) == ("ok", "e1", 7, 40)
    lines = lines_at(kept.directory, "0", found["place"])
    assert [line["kind"] for line in lines] == ["intent", "outcome"] and {line["request_id"] for line in lines} == {"r1"}
    (event,) = kept.find(kind="event", event="admin.*")
    assert (event["actor"], event["outcome"]) == ("acme/root", "ok")


@pytest.mark.parametrize(
    ("asked", "found"),
    [("*.user*", ["a.user.1", "b.user.2"]), ("*1", ["a.user.1"]), ("a*1", ["a.user.1"]), ("a?user*1", []), ("[ab]*1", []), ("*", None)],
)
def test_a_star_stands_for_any_characters(log_bench: Any, make: Any, kept: Kept, asked: str, found: list[str] | None) -> None:
    users = ["a.user.1", "b.user.2", "c.other.3"]
    logged(log_bench, [make.intent(user, user=user) for user in [*users, ""]])
    kept.update()
    assert sorted(kept.ids(user=asked)) == (users if found is None else found)


def test_a_pattern_may_stand_for_any_number_of_names(log_bench: Any, make: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.audit.index._ALIKE", 5)
    logged(log_bench, [make.intent(f"r{n}", user=f"user-{n}", tenant=f"t{n}") for n in range(20)])
    kept.update()
    assert len(kept.ids(user="user-*")) == len(kept.ids(user="*er-*")) == len(kept.ids(tenant="t*")) == 20
    assert len(kept.find(kind=None, tenant="*")) == 20


def test_an_outcome_comes_to_its_intent_however_much_later(log_bench: Any, make: Any, kept: Kept) -> None:
    writer = logged(log_bench, [make.intent("a"), make.intent("b")])
    kept.update()
    assert kept.ids(outcome="ok") == []
    writer.write([make.outcome("b", code="late")])
    kept.opened().update()
    assert kept.ids(outcome="ok") == kept.ids(code="late") == ["b"]
    assert len(kept.find()) == 2


def test_a_denial_without_an_intent_is_an_entry_even_if_nobody_is_named(log_bench: Any, make: Any, kept: Kept) -> None:
    logged(log_bench, [make.outcome("a", tenant="acme", decision="deny", rule="r"), make.outcome("b", code="invalid_api_key")])
    kept.update()
    assert sorted(kept.ids()) == ["a", "b"] and kept.ids(decision="deny") == ["a"] and kept.ids(code="invalid_api_key") == ["b"]


def test_every_entry_is_there_once_in_whatever_pieces_it_is_read(
    log_bench: Any, make: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.audit.indexer.BLOCK", 2048)
    random = Random(7)
    writer = logged(log_bench, segment_bytes=8192)
    expected = []
    for number in range(200):
        batch = [make.intent(f"r{number}", tenant=f"t{number % 3}")]
        expected.append(f"r{number}")
        if random.random() < 0.8:
            batch.append(make.outcome(f"r{number}", code=f"c{number % 5}"))
        writer.write(batch)
        if random.random() < 0.2:
            kept.update(blocks=random.randrange(3))
        if random.random() < 0.05:
            kept.opened()
    assert kept.update() == 0
    assert sorted(kept.ids()) == sorted(expected)
    assert sorted(kept.ids(tenant="t1")) == sorted(one for one in expected if int(one[1:]) % 3 == 1)
    pages, before = [], None
    while page := kept.find(limit=7, before=before):
        pages += [one["request_id"] for one in page]
        before = (page[-1]["time"], page[-1]["id"])
    assert sorted(pages) == sorted(expected)


def test_what_is_logged_while_the_index_is_brought_up_to_date_is_the_next_looks(
    log_bench: Any, make: Any, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.audit.indexer.BLOCK", 4096)
    writer = logged(log_bench, *([make.intent(f"r{number}")] for number in range(100)), segment_bytes=32768)
    more = iter(range(1000))

    def traffic() -> bool:
        writer.write([make.intent(f"n{next(more)}") for _ in range(20)])
        return True

    indexer = Indexer(kept.directory, kept.index)
    assert indexer.update(traffic) == 0 and {f"r{number}" for number in range(100)} <= set(kept.ids())
    assert indexer.update(lambda: True) == 0 and len(kept.ids()) == 100 + next(more)
    writer.write([make.intent("late")] * 40)
    assert indexer.update(lambda: False) > 0, "what was there and is not read is told"


def test_what_was_cut_off_or_replaced_is_forgotten(log_bench: Any, make: Any, kept: Kept) -> None:
    logged(log_bench, [make.intent("kept")], [make.intent("gone")]).close()
    kept.update()
    lines = log_bench.lines()
    at = next(number for number, line in enumerate(lines) if b'"gone"' in line)
    log_bench.segment().write_bytes(b"".join(lines[:at]))
    log_bench.writer().open()
    kept.opened().update()
    assert kept.ids() == ["kept"] and kept.ids(outcome="unknown") == ["kept"], "what was begun got an outcome at the start"


def test_segments_that_were_removed_are_forgotten_and_so_is_a_writer(log_bench: Any, make: Any, kept: Kept) -> None:
    for number in range(3):
        logged(log_bench, [make.intent(f"r{number}")], segment_bytes=1, writer="w").close()
    kept.update()
    assert len(kept.ids()) == 3
    for path in sorted(kept.directory.glob("audit-w-*.jsonl")):
        if b'"r0"' in path.read_bytes():
            break
        path.unlink()
    path.unlink()
    kept.opened().update()
    assert "r0" not in kept.ids() and "r2" in kept.ids()
    for path in kept.directory.glob("audit-w-*"):
        path.unlink()
    kept.opened().update()
    assert kept.ids() == []


def test_what_retention_takes_away_while_the_index_is_kept_is_forgotten_each_time(log_bench: Any, make: Any, kept: Kept) -> None:
    for number in range(4):
        logged(log_bench, [make.intent(f"r{number}")], segment_bytes=1, writer="w").close()
    indexer = Indexer(kept.directory, kept.index)
    indexer.update(lambda: True)
    for gone in ("r0", "r1"):
        for path in sorted(kept.directory.glob("audit-w-*.jsonl")):
            last = f'"{gone}"'.encode() in path.read_bytes()
            path.unlink()
            if last:
                break
        indexer.update(lambda: True)
        assert gone not in kept.ids() and "r3" in kept.ids()


def test_names_that_are_no_text_are_found_by_what_is_left_of_them(log_bench: Any, make: Any, kept: Kept) -> None:
    logged(log_bench, [make.intent("r1", user="a\0b'\"; DROP TABLE entries; --"), make.intent("r2", tenant="x" * 5000)])
    kept.update()
    assert kept.ids(user="a\0b'\"; DROP TABLE entries; --") == ["r1"] and kept.ids(tenant="x" * 300) == ["r2"]
    assert kept.ids(user="a*") == ["r1"] and kept.ids(user="*") == ["r1"] and kept.ids(user="") == []


def test_a_search_sees_only_the_tenants_that_it_may(log_bench: Any, make: Any, kept: Kept) -> None:
    logged(log_bench, [make.intent("a", tenant="acme"), make.intent("b", tenant="globex"), make.event("start")])
    kept.update()
    assert kept.ids(tenants=frozenset({"acme"})) == ["a"] and kept.ids(tenants=frozenset({"acme"}), tenant="globex") == []
    assert kept.ids(tenants=frozenset()) == [] and kept.find(tenants=frozenset({"acme"}), kind="event") == []
    found = summary(kept.path, 0.0, 2e9, frozenset({"acme"}))
    assert [row["tenant"] for row in found["accesses"]] == ["acme"] and "log" not in found and found["changes"] == []


def test_a_summary_counts_the_period(log_bench: Any, make: Any, kept: Kept) -> None:
    denied = make.outcome("d", tenant="acme", principal="ci", decision="deny", rule="bindings/x", code="policy_denied")
    denied = type(denied)(**{name: getattr(denied, name) for name in denied.__struct_fields__} | {"outcome": "denied"})
    changed = make.event("admin.limits.update", actor="acme/root", target="limits/a")
    logged(log_bench, [make.intent(), make.outcome(prompt_tokens=3), denied, changed, make.event("admin.login", outcome="denied")])
    kept.update()
    found = summary(kept.path, 0.0, 2e9, None)
    assert {(row["outcome"], row["requests"]) for row in found["accesses"]} == {("ok", 1), ("denied", 1)}
    assert found["denials"] == [{"tenant": "acme", "code": "policy_denied", "rule": "bindings/x", "guardrail": "", "requests": 1}]
    assert found["logins"] == [{"event": "admin.login", "outcome": "denied", "times": 1}]
    assert ("admin.limits.update", "acme/root", "limits/a") in {(row["event"], row["actor"], row["target"]) for row in found["changes"]}
    assert [row["event"] for row in found["log"]] == ["audit.opened"]
    assert summary(kept.path, 5000.0, 6000.0, None)["accesses"] == []


def test_one_process_writes_and_a_broken_file_is_made_anew(log_bench: Any, make: Any, kept: Kept) -> None:
    logged(log_bench, [make.intent()])
    with pytest.raises(IndexBusy):
        Index(kept.path)
    kept.index.close()
    kept.path.write_bytes(b"no database" * 1000)
    kept.index = Index(kept.path)
    kept.update()
    assert kept.ids() == ["r1"]
    assert kept.path.stat().st_mode & 0o777 == 0o600


def test_a_search_that_takes_too_long_ends(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.audit.index._STEP", 1)
    with pytest.raises(AuditSearchTooLong):
        search(kept.path, AuditSearch(tenant="acme"), seconds=-1.0)
    with pytest.raises(FileNotFoundError):
        search(kept.path.with_name("none"), AuditSearch())
    with closing(reading(kept.path)) as found, pytest.raises(sqlite3.OperationalError):
        found.execute("DELETE FROM entries")


@pytest.mark.parametrize("blocks", [1, 4])
def test_an_outcome_is_never_taken_for_that_of_another_tenants_request_with_the_same_id(
    kept: Kept, log_bench: Any, make: Any, blocks: int
) -> None:
    """Callers choose ids: what one of them does must not show up in what an auditor of another tenant finds."""
    batches = [
        [make.intent("same", "acme"), make.intent("same", "globex")],
        [make.outcome("same", tenant="acme", principal="ci", prompt_tokens=11, endpoint="secret")],
        [make.outcome("same", tenant="acme", principal="ci", peer="10.0.0.9", code="policy_denied")],
        [make.outcome("same", tenant="globex", principal="ci", prompt_tokens=22)],
    ]
    writer = log_bench.writer()
    writer.open()
    for batch in batches:
        writer.write(batch)
        if blocks > 1:
            kept.update()
    writer.close()
    kept.update()
    (globex,) = kept.find(tenants=frozenset({"globex"}))
    assert globex["prompt_tokens"] == 22 and "endpoint" not in globex
    told = lines_at(log_bench.directory, globex["writer"], globex["place"])
    assert {record["tenant"] for record in told} == {"globex"} and len(told) == 2
    denied, acme = sorted(kept.find(tenants=frozenset({"acme"})), key=lambda one: one.get("code", "~"))
    assert (acme["endpoint"], acme["prompt_tokens"]) == ("secret", 11) and "endpoint" not in denied
    assert sorted(tenants_of(kept.path, "same")) == ["acme", "globex"] and tenants_of(kept.path, "") == []


async def test_no_tenant_hides_anothers_request_by_sending_many_with_its_id(
    log_bench: Any, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_index, "MOST_REQUESTS", 3)
    writer = log_bench.writer()
    writer.open()
    writer.write([make.intent("same", "acme"), make.outcome("same", tenant="acme", principal="ci")])
    writer.write([make.intent("same", "globex") for _ in range(10)])
    writer.close()
    index = audit_index.AuditIndex(log_bench.directory, tmp_path, seconds=120.0)
    try:
        found = await index.of_request("same")
        assert sorted(record["tenant"] for record in found) == ["acme", "acme", "globex", "globex", "globex"]
        assert await index.of_request("other") == []
    finally:
        await index.aclose()


async def test_an_indexer_that_hears_nothing_any_more_is_replaced(log_bench: Any, make: Any, tmp_path: Path) -> None:
    logged(log_bench, [make.intent("one"), make.outcome("one", tenant="acme", principal="ci")]).close()
    script = f'[ -e "{tmp_path}/deaf" ] && exec {sys.executable} -m gateway.audit.indexer "$@"; touch "{tmp_path}/deaf"; exec sleep 60 <&-'
    index = audit_index.AuditIndex(log_bench.directory, tmp_path, seconds=120.0, command=("sh", "-c", script, "sh"))
    try:
        deaf = await index._started()
        await reached(lambda: deaf.stdin is not None and deaf.stdin.is_closing(), what="its end of the pipe to be closed")
        found, _ = await index.search(AuditSearch(kind="request"), records=False)
        assert [one["request_id"] for one in found] == ["one"] and deaf.returncode is not None
    finally:
        await index.aclose()
