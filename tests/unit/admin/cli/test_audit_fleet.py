"""Reports of several replicas become one: sums, lists, what is covered, and what is verified."""

from __future__ import annotations

from typing import Any

from admin.cli.audit_fleet import ROWS, merged
from admin.cli.audit_html import page


def report(replica: str, others: list[str] | None, **more: Any) -> dict[str, Any]:
    missing = None if others is None else [{"id": name, "state": "serving"} for name in others]
    tables: dict[str, Any] = {name: [] for name in ("accesses", "callers", "denials", "logins", "changes", "log")}
    integrity = {"ok": True, "first_problem": None, "writers": [{"writer": replica, "problems": []}]}
    period = {"since": "2026-01-01T00:00:00Z", "until": "2026-02-01T00:00:00Z", "tenants": None}
    return {**period, **tables, "integrity": integrity, "coverage": {"replica": replica, "missing": missing}, "unopened": {}, **more}


def access(tenant: str, requests: int, tokens: int | None = 0) -> dict[str, Any]:
    return {"tenant": tenant, "model": "m", "operation": "chat", "outcome": "ok", "requests": requests, "prompt_tokens": tokens}


def test_rows_that_are_alike_are_added_up_and_lists_go_by_time() -> None:
    first = report(
        "a", ["b", "c"], accesses=[access("acme", 3, 5), access("umbra", 1)], logins=[{"event": "x", "outcome": "ok", "times": 2}]
    )
    second = report("b", ["a", "c"], accesses=[access("umbra", 9, None)], logins=[{"event": "x", "outcome": "ok", "times": 1}])
    first["changes"] = [{"time": "2026-01-02T00:00:00Z", "event": "one"}]
    second["changes"] = [{"time": "2026-01-03T00:00:00Z", "event": "two"}]
    whole = merged([first, second])
    assert [(row["tenant"], row["requests"], row["prompt_tokens"]) for row in whole["accesses"]] == [("umbra", 10, 0), ("acme", 3, 5)]
    assert whole["logins"] == [{"event": "x", "outcome": "ok", "times": 3}]
    assert [row["event"] for row in whole["changes"]] == ["two", "one"]
    assert whole["coverage"] == {"replica": "a, b", "missing": [{"id": "c", "state": "serving"}]}
    assert "Covers only the replicas a, b. Missing: the requests of c (serving)" in page(whole)
    assert "Covers all replicas on the same store: a, b" in page(merged([report("a", ["b"]), report("b", ["a"])]))


def test_it_is_as_verified_and_as_known_as_the_least_of_them() -> None:
    bad = {"ok": False, "first_problem": {"file": "f", "line": 1, "reason": "changed"}, "writers": [{"writer": "b", "problems": ["x"]}]}
    whole = merged([report("a", ["b"]), report("b", ["a"], integrity=bad)])
    assert (
        whole["integrity"]["ok"] is False and whole["integrity"]["first_problem"]["file"] == "f" and len(whole["integrity"]["writers"]) == 2
    )
    assert merged([report("a", []), report("b", [], integrity=None)])["integrity"] is None
    assert merged([report("a", []), report("b", None)])["coverage"]["missing"] is None


def test_no_table_grows_beyond_its_bound() -> None:
    reports = [report(name, [], accesses=[access(f"{name}{number}", number) for number in range(ROWS)]) for name in "ab"]
    assert len(merged(reports)["accesses"]) == ROWS and merged(reports)["accesses"][0]["requests"] == ROWS - 1
