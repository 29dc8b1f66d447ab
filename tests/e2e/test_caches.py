"""Answers from the cache over a running gateway: who gets them, what they pass, and requests that share one engine call."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from typer.testing import CliRunner

from gateway.app.main import app
from tests.cluster.servers import RedisServer
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, OTHER_KEY, Gatehouse, external
from tests.waiting import reached, until

HEADER = "x-gatehouse-cache"


@pytest.fixture(scope="module")
def caching(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    directory = tmp_path_factory.mktemp("caching")
    config = adminapi.config(
        directory / "state",
        engine.port,
        engines=[external("fake", engine.port, slots=64), {"name": "embedder", "runtime": "onnx", "model": "demo-embed"}],
        caches={"semantic": {"tenants": ["acme"]}},
        models=[
            {"name": "m1", "pool": ["fake"], "cache": {"ttl": "1h"}},
            {"name": "own", "pool": ["fake"], "cache": {"sharing": "key"}},
            {"name": "plain", "pool": ["fake"]},
            {"name": "near", "pool": ["fake"], "cache": {"semantic": {"model": "embed", "threshold": 0.9, "timeout": "30s"}}},
            {"name": "embed", "pool": ["embedder"]},
        ],
        guardrails=[
            {"name": "words", "type": "denylist", "models": ["m1"], "settings": {"phrases": ["nightfall"], "action": "mask"}},
            {"name": "people", "type": "pii", "models": ["near"], "settings": {"entities": {"email": "pseudonym"}}},
        ],
        limits=[{"name": "everybody", "requests": {"rate": 10000, "burst": 10000, "per": "1m"}}],
    )
    with Gatehouse(directory, config) as running:
        yield running


def ask(gatehouse: Gatehouse, text: str, key: str = KEY, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"model": "m1", "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}
    with gatehouse.client(key) as client:
        return client.post("/v1/chat/completions", json=body, headers=headers or {})


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeated_request_reaches_no_engine(caching: Gatehouse, engine: EngineThread, stream: bool) -> None:
    before = len(engine.received)
    answers = [ask(caching, f"repeated {stream}", stream=stream) for _ in range(3)]
    assert [answer.headers[HEADER] for answer in answers] == ["miss", "hit", "hit"]
    assert len(engine.received) == before + 1
    assert all("x-ratelimit-limit-requests" in answer.headers for answer in answers)
    outcome = caching.outcome(answers[1].headers["x-request-id"])
    first = caching.outcome(answers[0].headers["x-request-id"])
    assert (outcome["outcome"], outcome.get("endpoint", ""), outcome.get("attempts", 0)) == ("ok", "", 0)
    assert outcome["detail"]["cache"] == "hit"
    assert outcome["completion_tokens"] == first["completion_tokens"] > 0
    if not stream:
        ids = [answer.json()["id"] for answer in answers]
        assert len(set(ids)) == 3
        assert [answer.json()["choices"] for answer in answers[1:]] == [answers[0].json()["choices"]] * 2


def test_the_official_client_streams_a_hit(caching: Gatehouse, engine: EngineThread) -> None:
    client = openai.OpenAI(base_url=f"{caching.url}/v1", api_key=KEY, max_retries=0)
    before, texts = len(engine.received), []
    for _ in range(2):
        events = list(
            client.chat.completions.create(
                model="m1",
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                messages=[{"role": "user", "content": "an official stream"}],
            )
        )
        assert len({event.id for event in events}) == 1
        assert events[-1].usage is not None
        texts.append("".join(event.choices[0].delta.content or "" for event in events if event.choices))
    assert len(engine.received) == before + 1
    assert texts[0] == texts[1]
    assert texts[0]


def test_another_tenant_asks_an_engine_and_another_key_where_so_configured(caching: Gatehouse) -> None:
    assert [ask(caching, "tenants", key).headers[HEADER] for key in (KEY, OTHER_KEY, KEY, OTHER_KEY)] == ["miss", "miss", "hit", "hit"]


def test_what_differs_for_the_engine_is_another_request(caching: Gatehouse) -> None:
    changes: list[dict[str, Any]] = [{}, {"user": "ann"}, {"user": "bob"}, {"seed": 1}, {"max_tokens": 3}, {"stop": ["x"]}, {"n": 1}]
    assert [ask(caching, "differs", **change).headers[HEADER] for change in changes] == ["miss"] * len(changes)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-request-id": "somebody-elses"},
        {"x-session-id": "s-1"},
        {"x-forwarded-host": "evil.example"},
        {"x-gatehouse-cache": "miss"},
        {"x-gatehouse-cache-salt": "00"},
        {"accept-language": "de"},
        {"x-original-url": "/v1/embeddings"},
        {"pragma": "nothing", "cache-control": "stale-if-error=5"},
    ],
)
def test_no_header_of_a_client_poisons_what_others_get(caching: Gatehouse, engine: EngineThread, headers: dict[str, str]) -> None:
    """What a header could change must be in the key; what is not in the key must reach no engine, and no answer of another."""
    text = f"poisoned by {sorted(headers)}"
    first = ask(caching, text, headers=headers)
    assert first.headers[HEADER] == "miss"
    assert not set(headers) - {"x-request-id", "pragma", "cache-control"} & {name for name, _ in engine.received[-1].headers}
    second = ask(caching, text)
    assert second.headers[HEADER] == "hit"
    assert second.json()["choices"] == first.json()["choices"]
    assert second.headers["x-request-id"] != first.headers["x-request-id"]
    assert "somebody-elses" not in second.text


def test_a_hundred_identical_requests_at_once_are_one_engine_call(caching: Gatehouse, engine: EngineThread) -> None:
    before, shared = len(engine.received), joined(caching)
    engine.play("hold")

    async def all_of_them() -> list[httpx.Response]:
        body = {"model": "m1", "messages": [{"role": "user", "content": "at once"}], "temperature": 0}
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=caching.url, headers={"authorization": f"Bearer {KEY}"}, timeout=90, limits=limits) as client:
            tasks = [asyncio.ensure_future(client.post("/v1/chat/completions", json=body)) for _ in range(100)]
            await reached(lambda: joined(caching) == shared + 99, what="99 requests that wait for the first")
            await asyncio.to_thread(engine.release)
            return await asyncio.gather(*tasks)

    answers = asyncio.run(all_of_them())
    assert {answer.status_code for answer in answers} == {200}
    assert len(engine.received) == before + 1
    assert sorted(answer.headers[HEADER] for answer in answers) == ["joined"] * 99 + ["miss"]
    outcomes = [caching.outcome(answer.headers["x-request-id"]) for answer in answers]
    assert all(outcome["completion_tokens"] == outcomes[0]["completion_tokens"] > 0 for outcome in outcomes)


def joined(gatehouse: Gatehouse) -> float:
    return gatehouse.metric("gatehouse_cache_requests_total", model="m1", result="joined")


def test_the_first_client_hangs_up_and_the_second_gets_its_answer(caching: Gatehouse, engine: EngineThread) -> None:
    before, shared = len(engine.received), joined(caching)
    engine.play("hold")
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "hang up"}], "temperature": 0}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    host, port = caching.url.removeprefix("http://").split(":")
    with ThreadPoolExecutor(1) as threads:
        with socket.create_connection((host, int(port)), timeout=60) as leader:
            leader.sendall(head.encode() + body)
            engine.holds(1)
            second = threads.submit(ask, caching, "hang up")
            until(lambda: joined(caching) == shared + 1, what="the second request")
        until(lambda: caching.metric("gatehouse_in_flight") == 1, what="the end of the first one")
        engine.release()
        answer = second.result(60)
    assert (answer.status_code, answer.headers[HEADER]) == (200, "joined")
    assert len(engine.received) == before + 1
    assert ask(caching, "hang up").headers[HEADER] == "hit"


def test_a_guardrail_that_changes_counts_for_answers_that_are_kept(caching: Gatehouse, engine: EngineThread) -> None:
    """The engine's text has `tok`, which nothing forbids at first."""
    assert ask(caching, "guarded").headers[HEADER] == "miss"
    assert ask(caching, "guarded").headers[HEADER] == "hit"
    config = caching.config
    changed = {**config["guardrails"][0], "on": ["response"], "settings": {"phrases": ["tok0"], "action": "block"}}
    try:
        reload(caching, {**config, "guardrails": [changed, config["guardrails"][1]]})
        wanted = [400, 400]
        no_cache = {"cache-control": "no-cache"}
        until(lambda: [ask(caching, "guarded", headers=each).status_code for each in ({}, no_cache)] == wanted, what="the guardrail")
    finally:
        reload(caching, config)
        until(lambda: ask(caching, "another word").status_code == 200, what="the guardrail as it was")


def reload(gatehouse: Gatehouse, config: dict[str, Any]) -> None:
    gatehouse.file.write_text(json.dumps(config))
    assert gatehouse.process is not None
    gatehouse.process.send_signal(signal.SIGHUP)


def test_models_without_a_cache_say_nothing_of_one(caching: Gatehouse, engine: EngineThread) -> None:
    before = len(engine.received)
    answers = [ask(caching, "plain", model="plain") for _ in range(2)]
    assert [HEADER in answer.headers for answer in answers] == [False, False]
    assert len(engine.received) == before + 2


def test_statistics_and_purges_over_the_workers(launch: Callable[..., Gatehouse], engine: EngineThread, tmp_path: Path) -> None:
    config = adminapi.config(tmp_path / "state", engine.port)
    config["models"][0]["cache"] = {"ttl": "1h"}
    gatehouse = launch(config)
    gatehouse.arguments = ["--workers", "2"]
    gatehouse.start()
    asked = 0

    def each_worker_has_it() -> bool:
        nonlocal asked
        asked += 1
        ask(gatehouse, "in both")
        return bool(statistics(gatehouse)["entries"] == 2)

    def statistics(gatehouse: Gatehouse) -> dict[str, Any]:
        with adminapi.admin(gatehouse, "operator") as client:
            [view] = client.get("/caches").json()["items"]
        return dict(view)

    until(each_worker_has_it, what="the answer in both workers")
    before = statistics(gatehouse)
    assert before["hits"] + before["misses"] + before["joined"] == asked
    assert (before["model"], before["stored"]) == ("m1", 2)
    until(lambda: gatehouse.metric("gatehouse_cache_entries", model="m1") == 2, what="the metrics of both workers")
    until(lambda: gatehouse.metric("gatehouse_cache_requests_total", model="m1") == asked, what="the metrics of both workers")
    record = gatehouse.outcome(ask(gatehouse, "in both").headers["x-request-id"])
    with adminapi.admin(gatehouse, "operator") as client:
        assert client.delete("/caches", params={"tenant": "globex"}).json() == {"purged": 0, "silent": [], "dry_run": False}
        assert client.delete("/caches", params={"model": "m1", "dry_run": "true"}).json()["purged"] == 2
        assert statistics(gatehouse)["entries"] == 2
        assert client.delete("/caches", params={"key": record["detail"]["cache_key"]}).json()["purged"] == 2
        assert client.delete("/caches", params={"key": "zz"}).status_code == 400
    assert statistics(gatehouse)["entries"] == 0
    assert ask(gatehouse, "in both").headers[HEADER] == "miss"
    with adminapi.admin(gatehouse, "viewer") as client:
        assert client.get("/caches").status_code == 200
        adminapi.problem(client.delete("/caches"), 403, "policy_denied")
    target = f"caches/key={record['detail']['cache_key']}"
    until(
        lambda: [one for one in gatehouse.audit() if one.get("event") == "admin.caches.purge" and one["target"] == target],
        what="its record",
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_similar_question_gets_the_answer_of_a_tenant_that_asked_for_it(caching: Gatehouse, engine: EngineThread, stream: bool) -> None:
    """The demo's embedding model finds all of them alike."""
    first = ask(caching, "How do I reset my password?", model="near", stream=stream)
    near = "hello, how do I reset my password?"
    said: list[httpx.Response] = []

    def given() -> bool:
        said.append(ask(caching, f"{near}{'!' * len(said)}", model="near", stream=stream))
        return said[-1].headers[HEADER] == "semantic"

    until(given, what="the vector of the first question")
    before = len(engine.received)
    outcome, source = (caching.outcome(answer.headers["x-request-id"]) for answer in (said[-1], first))
    assert (outcome["outcome"], outcome.get("endpoint", ""), outcome["completion_tokens"]) == ("ok", "", source["completion_tokens"])
    assert 0.9 <= outcome["detail"]["cache_similarity"] <= 1.0
    assert outcome["detail"]["cache_source"] in {answer.headers["x-request-id"] for answer in (first, *said[:-1])}
    assert said[-1].headers["content-type"] == first.headers["content-type"]
    apart = ["How do I not reset my password?", "How do I reset 2 passwords?", "How do I reset your password?", "Reset my password"]
    for text in apart:
        assert ask(caching, text, model="near", stream=stream).headers[HEADER] == "miss"
    assert ask(caching, near, OTHER_KEY, model="near", stream=stream).headers[HEADER] == "miss"
    assert ask(caching, near, model="near", stream=stream, seed=7).headers[HEADER] == "miss"
    assert len(engine.received) == before + len(apart) + 2
    with adminapi.admin(caching) as client:
        [view] = [one for one in client.get("/caches").json()["items"] if one["model"] == "near"]
        assert view["semantic"] >= 1 and view["unembedded"] == 0
        client.delete("/caches", params={"model": "near"})
    assert ask(caching, near, model="near", stream=stream).headers[HEADER] == "miss"


def test_no_vector_is_asked_for_where_pseudonyms_stand_for_somebody(caching: Gatehouse) -> None:
    def embedded() -> float:
        return caching.metric("gatehouse_requests_total", model="embed", operation="cache", status="200")

    def quiet() -> bool:  # where nothing can be alike, nobody waits for a question's vector
        return caching.metric("gatehouse_in_flight") == 0 == caching.metric("gatehouse_endpoint_in_flight")

    until(quiet, what="the vectors that were asked for before")
    before = embedded()
    assert ask(caching, "Who has the address ann@example.com?", model="near").headers[HEADER] == "miss"
    assert ask(caching, "Who has the address bob@example.com?", model="near").headers[HEADER] in ("miss", "hit")
    ask(caching, "Who has an address?", model="near")
    until(lambda: embedded() == before + 1, what="the vector of the last one alone")


def test_a_file_of_requests_warms_the_cache(caching: Gatehouse, engine: EngineThread, tmp_path: Path) -> None:
    def line(text: str, **more: Any) -> str:
        return json.dumps({"body": {"model": "m1", "temperature": 0, "messages": [{"role": "user", "content": text}]}, **more})

    chat = {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions"}
    warm = json.dumps({"body": {"model": "m1", "messages": [{"role": "user", "content": "warm"}]}})
    good = [line("warmed a"), "", line("warmed b", **chat), line("warmed a"), warm]
    file, command = tmp_path / "lines.jsonl", ["caches", "warm", str(tmp_path / "lines.jsonl"), "--rate", "1000", "--at-once", "1"]
    file.write_text("\n".join(good))
    environ = {"GATEHOUSE_URL": caching.admin_url, "GATEHOUSE_GATEWAY_URL": caching.url, "GATEHOUSE_API_KEY": KEY, "HOME": str(tmp_path)}

    def run(*more: str) -> tuple[int, dict[str, int], str]:
        done = CliRunner().invoke(app, [*command, "-o", "json", *more], env=environ)
        return done.exit_code, json.loads(done.stdout), done.stderr

    assert run()[:2] == (0, {"kept": 2, "there": 1, "not_kept": 1, "failed": 0})
    assert [ask(caching, f"warmed {name}").headers[HEADER] for name in "ab"] == ["hit", "hit"]
    before = len(engine.received)
    assert run("--refresh")[1] == {"kept": 3, "there": 0, "not_kept": 1, "failed": 0}
    assert len(engine.received) == before + 4
    file.write_text("\n".join([line("x", url="/admin/v1/keys"), "no json", line("y", method="GET"), line("z").replace("m1", "nowhere")]))
    code, counts, said = run()
    assert (code, counts["failed"]) == (1, 4)
    assert "line 2: is not a request" in said
    assert "404" in said


@pytest.fixture
def redis(short_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(short_path).start()
    yield server
    server.stop()


def test_disk_and_redis_outlive_the_process_and_shredding_erases_what_they_hold(
    launch: Callable[..., Gatehouse], engine: EngineThread, redis: RedisServer, tmp_path: Path
) -> None:
    """Two workers, killed; a Redis that freezes; a purge; a tenant whose keys are destroyed."""
    (tmp_path / "master.key").write_text("1f" * 32)
    (tmp_path / "master.key").chmod(0o600)
    models = ["disk", "redis"]
    config = adminapi.config(
        tmp_path / "state",
        engine.port,
        redis={"url": f"unix://{redis.socket}"},
        caches={"disk": {"timeout": "30s"}, "redis": {"timeout": "2s"}},
        models=[{"name": name, "pool": ["fake"], "cache": {"also_in": name}} for name in models],
        audit={"encryption": {"master": {"file": str(tmp_path / "master.key")}}},
    )
    gatehouse = launch(config)
    gatehouse.arguments = ["--workers", "2"]
    gatehouse.start()

    def said(name: str, text: str = "the question of acme") -> str:
        return str(ask(gatehouse, text, model=name).headers[HEADER])

    def behind() -> dict[str, dict[str, Any]]:
        with adminapi.admin(gatehouse) as client:
            return {one["name"]: one for one in client.get("/caches").json()["behind"]}

    def kept() -> bool:
        for name in models:
            said(name)
        if all(one["entries"] == 1 for one in behind().values()):
            return True
        with adminapi.admin(gatehouse) as client:  # a worker without the tenant's key keeps an answer in its memory alone: ask anew
            for name in models:
                client.delete("/caches", params={"model": name}).raise_for_status()
        return False

    def outlived() -> bool:
        """Whether one was found there again: not by a worker that had no key of the tenant yet, which asks its engine once."""
        gatehouse.stop(signal.SIGKILL)
        gatehouse.start()
        before = len(engine.received)
        until(lambda: all(said(name) == "hit" for name in models), what="the tenant's key")
        assert len(engine.received) - before <= 4
        return [one["hits"] for one in behind().values()] != [0, 0]

    until(kept, what="an answer on disk and in Redis")
    until(outlived, what="an answer from before the end of the process")
    with adminapi.admin(gatehouse) as client:
        assert client.delete("/caches", params={"model": "disk"}).json()["silent"] == []
    assert said("disk") == "miss"
    kept_there = [content for path, content in gatehouse.contents().items() if path.parent.name == "caches"]
    assert kept_there and b"question" not in b"".join(kept_there)
    redis.freeze()
    try:
        assert said("redis", "while it is frozen") == "miss"
    finally:
        redis.thaw()
    with adminapi.admin(gatehouse) as client:
        plan = client.get("/audit/data-keys/shred", params={"tenant": "acme"}).json()
        body = {"tenant": "acme", "reason": "asked for", "confirm": plan["digest"]}
        assert client.post("/audit/data-keys/shred", params={"wait": 60}, json=body).status_code == 200
    until(lambda: all(one["entries"] == 0 for one in behind().values()), what="the end of the tenant's answers")
    assert {said(name) for name in models} == {"miss"}
