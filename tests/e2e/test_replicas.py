"""Two gateways on one PostgreSQL know of each other, say when they have one id, and do common jobs once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from typer.testing import CliRunner, Result

from gateway.app.main import app
from tests.cluster.servers import RedisServer
from tests.e2e.adminapi import KEYS, admin, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, external
from tests.e2e.replicas import replica, replicas  # noqa: F401 - a fixture
from tests.e2e.test_shared_models import CHAT, add
from tests.fakes.ports import empty_port
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from tests.waiting import until


def roll(gateway: Gatehouse) -> list[dict[str, Any]]:
    with admin(gateway) as client:
        found: list[dict[str, Any]] = client.get("/replicas").json()["items"]
    return found


def command(gateway: Gatehouse, *arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"GATEHOUSE_URL": gateway.admin_url, "GATEHOUSE_KEY": KEYS["viewer"]})


def test_each_sees_both_and_says_which_it_is(replicas: list[Gatehouse]) -> None:  # noqa: F811
    def both(gateway: Gatehouse) -> list[dict[str, Any]] | None:
        """The roll, once both are in it and neither stands still."""
        rows = roll(gateway)
        return rows if len(rows) == 2 and all(row["state"] == "serving" and abs(row["clock_skew"]) < 5 for row in rows) else None

    for gateway in replicas:
        rows = until(lambda gateway=gateway: both(gateway), what="both replicas")
        mine = next(row for row in rows if row["here"])
        assert mine["id"] == (gateway.state_dir / "replica").read_text().strip()
        assert f"http://{mine['data']}" == gateway.url and f"http://{mine['admin']}" == gateway.admin_url
        assert not any(row["duplicate"] for row in rows)
        with admin(gateway) as client:
            assert client.get("/status").json()["replica"] == mine["id"]
        with gateway.client(None) as anyone:
            assert anyone.get("/readyz").json()["replica"] == mine["id"]
        assert gateway.metric("gatehouse_replica_info", replica=mine["id"]) == 1
        assert any(record.get("event") == "start" and record["detail"]["replica"] == mine["id"] for record in gateway.audit())
    done = command(replicas[1], "replicas", "list")
    assert done.exit_code == 0 and all(row["id"][:8] in done.stdout for row in rows)
    assert [row["id"] for row in json.loads(command(replicas[1], "replicas", "list", "-o", "json").stdout)["items"]] == [
        r["id"] for r in rows
    ]


def test_hints_arrive_at_both(replicas: list[Gatehouse]) -> None:  # noqa: F811
    for gateway in replicas:
        until(lambda gateway=gateway: gateway.metric("gatehouse_hints_sure", carrier="postgresql") == 1, what="hints")


def test_the_store_is_cleared_by_one(replicas: list[Gatehouse]) -> None:  # noqa: F811
    def jobs(gateway: Gatehouse) -> list[dict[str, Any]]:
        with admin(gateway) as client:
            found: list[dict[str, Any]] = client.get("/replicas").json()["jobs"]
        return found

    until(lambda: any(job["done_at"] for job in jobs(replicas[0])), what="the first run")
    until(lambda: [job["name"] for job in jobs(replicas[1])] == ["model-directory", "prune"], what="both jobs")


def test_a_model_that_one_has_added_runs_at_both_and_at_none_once_somebody_else_has_changed_it(replicas: list[Gatehouse]) -> None:  # noqa: F811
    place = Path(replicas[0].config["model_sharing"]["directory"])
    with admin(replicas[0]) as one, admin(replicas[1]) as two:
        add(one, "mine.gguf", CHAT)
        until(lambda: "mine.gguf" in two.get("/model-files").text, what="the model at the other replica")
        engine = {"name": "mine", "runtime": "llama.cpp", "model": "mine.gguf", "slots": 1, "context": 256}
        assert (
            two.post("/engines", json=engine).status_code == two.post("/models", json={"name": "mm", "pool": ["mine"]}).status_code == 201
        )
        for gateway in replicas:
            until(lambda gateway=gateway: gateway.chat(model="mm", max_tokens=4).status_code == 200, seconds=90, what="an answer")
        assert "mine" in problem(one.delete("/model-files/mine.gguf"), 409, "in_use")["detail"]

        (place / "other").write_bytes(CHAT[:-1] + bytes([CHAT[-1] ^ 1]))
        (place / "other").rename(place / "mine.gguf")
        assert two.post("/engines", json={**engine, "name": "again"}).status_code == 201
        for client in (one, two):
            until(lambda client=client: "is not what was added" in client.get("/engines/again").text, seconds=60, what="the refusal")
        for path in ("/models/mm", "/engines/mine", "/engines/again"):
            assert two.delete(path).status_code == 200
        until(lambda: two.delete("/model-files/mine.gguf").status_code == 200, what="the deletion, once no engine has it")
        until(lambda: "mine.gguf" not in one.get("/model-files").text, what="the deletion at the other replica")
    for gateway in replicas:
        told = lambda gateway=gateway: any(record.get("event") == "model_refused" for record in gateway.audit())  # noqa: E731
        until(told, what="the record of the refusal")


def test_two_machines_with_one_id_are_reported(
    postgres: PostgresServer,  # noqa: F811
    engine: EngineThread,
    tmp_path: Path,
) -> None:
    url = postgres.database()
    gateways = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        gateways.append(replica(tmp_path / str(number), engine.port, url, environ={"GATEHOUSE_REPLICA": "twin"}))
    try:
        for gateway in gateways:  # one after the other: the second asks the first, by a hint, whether it is there
            gateway.start()
            until(lambda gateway=gateway: gateway.metric("gatehouse_hints_sure") == 1, what="hints")
        until(lambda: any(gateway.metric("gatehouse_replica_duplicates") for gateway in gateways), what="the notice")
        done = until(lambda: told if (told := command(gateways[0], "replicas", "list")).exit_code == 1 else None, what="the command's code")
        assert "more than one gateway has the id twin" in done.stderr
        assert all(row["duplicate"] for row in roll(gateways[0]))
        until(lambda: any("has this replica's id 'twin' too" in line for gateway in gateways for line in gateway.lines), what="the log")
        assert [gateway.chat().status_code for gateway in gateways] == [200, 200]
    finally:
        codes = [gateway.stop() for gateway in gateways if gateway.process is not None]
    assert codes == [0, 0]


def test_a_second_process_with_the_state_directory_is_refused(
    replicas: list[Gatehouse],  # noqa: F811
    tmp_path: Path,
) -> None:
    second = Gatehouse(tmp_path, {**replicas[0].config, "listen": {"data": "127.0.0.1:0", "admin": "127.0.0.1:0"}})
    assert second.launch().ended() == 1
    until(lambda: any(line.startswith("error: ") for line in second.lines), what="the reason")
    assert replicas[0].process is not None
    assert any(f"another gateway (process {replicas[0].process.pid}) is running" in line for line in second.lines)


def test_an_engine_that_fails_at_one_is_out_at_both_and_back_at_both(
    postgres: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Nobody probes by itself for an hour, and only the first gateway has traffic."""
    url = postgres.database()
    with empty_port() as port:
        engine = EngineThread(port=port)
        settings = [external("fake", port, slots=64, health={"interval": "1h"})]
        gateways = []
        for number in range(2):
            (tmp_path / str(number)).mkdir()
            gateways.append(replica(tmp_path / str(number), port, url, engines=settings).launch())
        try:
            one, two = (gateway.await_start() for gateway in gateways)
            until(lambda: all(gateway.metric("gatehouse_hints_sure") for gateway in gateways), what="hints")
            assert one.chat().status_code == two.chat().status_code == 200
            engine.close()
            assert one.chat().status_code in (502, 503)
            until(lambda: two.metric("gatehouse_endpoint_up", endpoint="fake") == 0, what="the news at the other one")
            assert two.chat().json()["error"]["code"] == "no_healthy_endpoint"  # none was lost to find that out
            engine = EngineThread(port=port)
            until(lambda: [gateway.metric("gatehouse_endpoint_up", endpoint="fake") for gateway in gateways] == [1, 1], what="the return")
            assert one.chat().status_code == two.chat().status_code == 200
        finally:
            codes = [gateway.stop() for gateway in gateways]
            engine.close()
        assert codes == [0, 0]


def test_redis_carries_hints_too(
    postgres: PostgresServer,  # noqa: F811
    engine: EngineThread,
    tmp_path: Path,
    short_path: Path,
) -> None:
    """The replicas poll once an hour, and PostgreSQL's notifications are put out of action: what arrives came over Redis."""
    redis = RedisServer(short_path).start()
    url = postgres.database()
    postgres.execute("CREATE SCHEMA deaf; CREATE FUNCTION deaf.pg_notify(text, text) RETURNS void LANGUAGE sql AS ''", url)
    deaf = f"{url}&options={quote('-c search_path=deaf,pg_catalog,public')}"
    gateways = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        store, settings = {"poll_interval": "1h"}, {"url": f"unix://{redis.socket}"}
        gateways.append(replica(tmp_path / str(number), engine.port, deaf, store=store, redis=settings).launch())
    try:
        one, two = (gateway.await_start() for gateway in gateways)
        until(lambda: all(gateway.metric("gatehouse_hints_sure", carrier="redis") == 1 for gateway in gateways), what="hints over Redis")
        with admin(one) as client:
            made = client.post("/keys", json={"tenant": "acme", "models": ["*"]}).json()
            until(lambda: two.chat(key=made["secret"]).status_code == 200, what="the key")
            assert client.post(f"/keys/{made['id']}/revoke").status_code == 200
        until(lambda: two.chat(key=made["secret"]).status_code == 401, what="the refusal")
        assert [gateway.metric("gatehouse_hints_sure", carrier="postgresql") for gateway in gateways] == [0, 0]
    finally:
        codes = [gateway.stop() for gateway in gateways]
        redis.stop()
    assert codes == [0, 0]
