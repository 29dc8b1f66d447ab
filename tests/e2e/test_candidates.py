"""Candidates that are tried on real traffic, over a running gateway with two workers: requests that are mirrored to them, engines on trial
that are withdrawn. And requests that are put to a second endpoint because the first one takes long."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e.adminapi import KEYS, admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.steady import at_most
from tests.waiting import until


@pytest.fixture(scope="module")
def candidate() -> Iterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def trying(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread, candidate: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("candidates")
    config = configuration(
        directory / "state",
        engines=[
            external("fake", engine.port, slots=16, clearance=["*"]),
            external("next", candidate.port, slots=4, clearance=["plain"]),
            external("trial", candidate.port),
        ],
        models=[
            {"name": "m1", "pool": ["fake"], "shadow": {"model": "n1", "share": 1, "key": "request", "timeout": "6s", "queue": 8}},
            {"name": "n1", "pool": ["next"]},
            {
                "name": "h1",
                "pool": ["fake", "trial"],
                "routing": {"key": "tenant"},
                "hedge": {"after": 0.1, "operations": ["chat"]},
                "cache": {"temperature": "any"},
            },
            {
                "name": "c1",
                "pool": [{"engine": "fake", "weight": 50}, {"engine": "trial", "weight": 50}],
                "routing": {"policy": "weighted", "breaker": {"open_for": "0.05s", "open_max": "0.1s"}},
                "canary": {"engine": "trial", "window": "60s", "min_requests": 8, "tokens_factor": None},
            },
        ],
        labels={"restricted": {}, "plain": {}},
        guardrails=[{"name": "words", "type": "denylist", "models": ["*"], "settings": {"phrases": ["nightfall"], "action": "mask"}}],
        limits=[{"name": "everybody", "requests": {"rate": 100000, "burst": 100000, "per": "1m"}}],
    )
    config["identity"]["api_keys"]["static"].append(
        {"id": "a-admin", "key": KEYS["admin"], "tenant": "acme", "models": ["*"], "roles": ["admin"]}
    )
    with Gatehouse(directory, config, arguments=["--workers", "2"]) as running:
        yield running


def ask(gatehouse: Gatehouse, text: str, model: str = "m1", **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
    with gatehouse.client(KEY) as client:
        return client.post("/v1/chat/completions", json=body)


def shadow(gatehouse: Gatehouse, model: str = "m1") -> dict[str, Any]:
    with admin(gatehouse) as client:
        found: dict[str, Any] = client.get(f"/rollouts/{model}").json()["shadow"]
    return found


def event(gatehouse: Gatehouse, kind: str, request_id: str) -> dict[str, Any]:
    """The one record of this kind about what was mirrored of a request, waited for."""

    def found() -> list[dict[str, Any]]:
        return [one for one in gatehouse.audit() if one.get("event") == kind and one["detail"].get("shadow_of") == request_id]

    (one,) = until(found, what=kind)
    return dict(one)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_long_is_answered_by_another_endpoint(
    trying: Gatehouse, engine: EngineThread, candidate: EngineThread, stream: bool
) -> None:
    known = trying.outcome(ask(trying, f"whose is this? {stream}", "h1").headers["x-request-id"])
    usual = known.get("detail", {}).get("hedge", {}).get("first", known["endpoint"])
    slow = engine if usual == "fake" else candidate

    def quiet() -> bool:  # on a slow machine the first request had a second attempt, too, whose loser leaves a moment later
        over = all(one.done or one.cancelled for each in (engine, candidate) for one in each.received)
        return over and trying.metric("gatehouse_endpoint_in_flight") == 0

    until(quiet, what="the end of all attempts")
    left = len(slow.engine.cancelled)
    slow.play("hold")
    before = trying.metric("gatehouse_hedges_total", model="h1", result="won")
    answer = ask(trying, f"take your time {stream}", "h1", stream=stream)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-gatehouse-endpoint"] == ("trial" if usual == "fake" else "fake")
    outcome = trying.outcome(answer.headers["x-request-id"])
    told = outcome["detail"]["hedge"]
    assert (told["first"], told["second"], told["result"]) == (usual, outcome["endpoint"], "won")
    assert outcome["attempts"] == 2 and told["after_ms"] >= 50 and told["wasted_ms"] >= told["after_ms"]

    def settled() -> bool:
        counted = trying.metric("gatehouse_hedges_total", model="h1", result="won") == before + 1
        return counted and len(slow.engine.cancelled) == left + 1 and trying.metric("gatehouse_endpoint_in_flight") == 0

    until(settled, what="the end of the attempt that lost")


def test_requests_are_mirrored_as_guardrails_left_them_and_nobody_pays(
    trying: Gatehouse, engine: EngineThread, candidate: EngineThread
) -> None:
    before, known = shadow(trying), len(candidate.received)
    answers = [ask(trying, f"at nightfall {number}", stream=bool(number % 2)) for number in range(6)]
    assert {answer.status_code for answer in answers} == {200}
    after = until(lambda: found if (found := shadow(trying))["compared"] >= before["compared"] + 6 else None, what="six comparisons")
    assert (after["mirrored"], after["sampled"]) == (before["mirrored"] + 6, before["sampled"] + 6)
    assert after["likeness"] == 1.0, "two fakes say the same"
    bodies = [one.json() for one in candidate.received[known:]]
    assert len(bodies) == 6
    assert {body["model"] for body in bodies} == {"n1"}
    assert not any("nightfall" in str(body) for body in bodies)
    for answer in answers:
        begun = event(trying, "request_mirrored", answer.headers["x-request-id"])
        ended = event(trying, "mirror_answered", answer.headers["x-request-id"])
        assert (begun["target"], ended["detail"]["status"], ended["tenants"]) == ("n1", 200, ["acme"])
        assert "night" not in str(begun) + str(ended)
    labels = {"model": "m1", "candidate": "n1", "result": "mirrored"}
    until(lambda: trying.metric("gatehouse_shadow_requests_total", **labels) == after["mirrored"], what="the metrics of both workers")
    with admin(trying) as client:
        usage = client.get("/usage", params={"group_by": "model"}).json()
    assert "n1" not in str(usage), "nobody is charged"


def test_a_candidate_that_hangs_delays_and_fails_no_client(trying: Gatehouse, engine: EngineThread, candidate: EngineThread) -> None:
    before = shadow(trying)
    rounds = 0

    def longest() -> float:
        nonlocal rounds
        rounds += 1
        candidate.play("hold*60")
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda number: ask(trying, f"held {number}"), range(60)))
        assert {answer.status_code for answer in answers} == {200}
        return max(answer.elapsed.total_seconds() for answer in answers)

    at_most(5.0, longest)  # the candidate has 6 s: no client waits for it
    assert candidate.engine.most_busy <= 4

    def settled() -> dict[str, Any] | None:
        found = shadow(trying)
        told = found["sampled"] >= before["sampled"] + 60 * rounds  # a worker that stands still says later what it has done
        ended = found["candidate_side"]["answers"] + sum(found["dropped"].values()) + sum(found["skipped"].values())
        return found if told and ended >= found["sampled"] and not found["running"] and not found["waiting"] else None

    found = until(settled, what="the end of all that was mirrored")
    candidate.engine.script.clear()
    assert found["sampled"] == before["sampled"] + 60 * rounds
    assert found["dropped"].get("queue_full", 0) > 0, "what does not fit is dropped and counted"


def test_restricted_data_never_reaches_a_candidate_that_is_not_cleared(trying: Gatehouse, candidate: EngineThread) -> None:
    known = len(candidate.received)
    answer = ask(trying, "secret plan", metadata={"data_label": "restricted"})
    assert answer.status_code == 200, answer.text
    until(lambda: shadow(trying)["skipped"].get("label_not_cleared"), what="the count")
    plain = ask(trying, "public plan", metadata={"data_label": "plain"})
    assert plain.status_code == 200, plain.text
    until(lambda: any("public plan" in one.body.decode() for one in candidate.received[known:]), what="the plain one")
    assert not any("secret plan" in one.body.decode() for one in candidate.received)


def canary(gatehouse: Gatehouse) -> dict[str, Any]:
    with admin(gatehouse) as client:
        found: dict[str, Any] = client.get("/rollouts/c1").json()["canary"]
    return found


def cli(gatehouse: Gatehouse, home: Path, *arguments: str) -> str:
    environ = {"GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": KEYS["admin"], "XDG_CONFIG_HOME": str(home), "NO_COLOR": "1"}
    done = CliRunner().invoke(app, ["rollouts", *arguments], env={**environ, "COLUMNS": "300"})
    assert done.exit_code == 0, (done.stdout, done.stderr)
    return done.stdout


def spread(gatehouse: Gatehouse, candidate: EngineThread, count: int = 30) -> int:
    """How many of some requests that differ reach the engine on trial."""
    known = len(candidate.received)
    for number in range(count):
        ask(gatehouse, f"one of many {number} {known}", "c1")
    return sum(one.json()["model"] == "c1" for one in candidate.received[known:])


def test_an_engine_that_burns_gets_nothing_more_until_a_person_puts_it_back(
    trying: Gatehouse, candidate: EngineThread, tmp_path: Path
) -> None:
    assert spread(trying, candidate) > 3
    assert canary(trying)["reason"] is None
    candidate.play("status:code=500*200")
    number = 0

    def withdrawn() -> dict[str, Any] | None:
        nonlocal number
        number += 1
        ask(trying, f"burning {number}", "c1")
        found = canary(trying)
        return found if found["withdrawn"] else None

    found = until(withdrawn, what="the withdrawal")
    assert "requests failed" in found["reason"]
    candidate.engine.script.clear()
    until(lambda: spread(trying, candidate) == 0, what="no more requests on either worker")
    assert trying.metric("gatehouse_canary_withdrawn", model="c1", engine="trial") == 1
    (record,) = trying.noted(event="canary_withdrawn")
    assert (record["target"], record["detail"]["engine"]) == ("c1", "trial")
    assert trying.stop() == 0
    trying.start()
    assert (canary(trying)["reason"], spread(trying, candidate)) == (found["reason"], 0), "a restart does not bring it back"
    assert "withdrawn" in cli(trying, tmp_path, "list") and "requests failed" in cli(trying, tmp_path, "show", "c1")
    assert "trial" in cli(trying, tmp_path, "resume", "c1", "--dry-run")
    assert canary(trying)["withdrawn"]
    cli(trying, tmp_path, "resume", "c1")
    with admin(trying) as client:
        assert client.post("/rollouts/c1/resume").status_code == 404
    until(lambda: spread(trying, candidate) > 3, what="requests on both engines")
    assert canary(trying)["reason"] is None
