"""Two replicas on one PostgreSQL: a legal hold counts on both; searches and reports say whose log they have, and ask the other."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e.adminapi import KEYS, admin
from tests.e2e.harness import Gatehouse
from tests.e2e.replicas import replicas  # noqa: F401 - a fixture
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from tests.waiting import until


def search(running: Gatehouse, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of a search that prints JSON."""
    environ = {"GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": KEYS["auditor"], "COLUMNS": "300"}
    done = CliRunner().invoke(app, ["audit", "search", "--kind", "request", "--output", "json", *arguments], env=environ)
    return done.exit_code, done.stdout, done.stderr


def reported(running: Gatehouse, *arguments: str) -> dict[str, Any]:
    environ = {"GATEHOUSE_URL": running.admin_url, "GATEHOUSE_KEY": KEYS["auditor"], "COLUMNS": "300"}
    done = CliRunner().invoke(app, ["audit", "report", "--format", "json", "--output", "json", *arguments], env=environ)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_holds_and_searches_over_the_fleet(replicas: list[Gatehouse], postgres: PostgresServer) -> None:  # noqa: F811
    first, second = replicas
    one, other = (running.outcome(running.chat("hello").headers["x-request-id"])["request_id"] for running in replicas)
    with admin(first) as here, admin(second) as there:
        until(lambda: len(here.get("/replicas").json()["items"]) == 2, what="the other replica on the roll")
        names = [next(item["id"] for item in api.get("/replicas").json()["items"] if item["here"]) for api in (here, there)]

        coverage = here.get("/audit/search").json()["coverage"]
        assert coverage == {"replica": names[0], "missing": [{"id": names[1], "state": "serving"}]}
        report = here.get("/audit/report", params={"since": 0}).json()
        assert report["coverage"] == coverage
        both = {one["tenant"]: one["requests"] for one in reported(first, "--also", second.admin_url)["accesses"] if one["outcome"] == "ok"}
        assert both["acme"] == sum(sum(one["requests"] for one in reported(each)["accesses"]) for each in replicas)
        assert reported(first, "--also", second.admin_url)["coverage"] == {"replica": ", ".join(names), "missing": []}
        assert len(reported(first, "--also", second.admin_url)["integrity"]["writers"]) >= 2
        code, found, said = search(first)
        assert code == 0 and one in found and other not in found and f"not searched: the logs of {names[1]} (serving)" in said
        code, found, said = search(first, "--also", second.admin_url)
        assert code == 0 and one in found and other in found and "not searched" not in said
        code, found, said = search(first, "--also", "http://127.0.0.1:1")
        assert code == 1 and one in found and "the search is incomplete" in said

        assert here.post("/audit/holds", json={"tenant": "acme", "why": "case 7"}).json()["items"][0]["everywhere"] is True
        until(
            lambda: [hold["why"] for hold in there.get("/audit/holds").json()["items"]] == ["case 7"], what="the hold on the other replica"
        )
        until(
            lambda: second.metric("gatehouse_audit_holds") == second.metric("gatehouse_audit_holds_known") == 1,
            what="the hold in the other replica's metrics",
        )
        postgres.stop()
        try:
            made = there.post("/audit/holds", json={"tenant": "beta", "why": "case 8"})
            assert made.status_code == 201 and made.json()["items"][0]["everywhere"] is False
            assert there.delete("/audit/holds/acme", params={"why": "x"}).status_code == 503
            assert here.get("/audit/search").json()["coverage"] == {"replica": "", "missing": None}
        finally:
            postgres.start()

        def held() -> set[str]:
            answer = here.get("/audit/holds")
            return {hold["tenant"] for hold in answer.json()["items"]} if answer.status_code == 200 else set()

        until(lambda: held() == {"acme", "beta"}, what="the later hold")
        until(lambda: there.delete("/audit/holds/acme", params={"why": "closed"}).status_code == 200, what="the release")
        until(lambda: held() == {"beta"}, what="the release here")
