"""The kill switch on a running gateway: who is stopped, what is under way, restarts, workers, other replicas, no store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e import adminapi
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse, errors_of
from tests.e2e.replicas import replicas  # noqa: F401 - a fixture
from tests.e2e.test_streams import events
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from tests.waiting import until

Launch = Callable[..., Gatehouse]
ENDLESS = "hang:at=mid,chunks=3"


def halt(gatehouse: Gatehouse, target: str, role: str = "admin", wait: float = 60) -> httpx.Response:
    """In force in every worker when it returns."""
    with adminapi.admin(gatehouse, role) as client:
        return client.post("/halts", params={"wait": wait}, json={"target": target, "reason": "a test"})


def unhalt(gatehouse: Gatehouse, target: str, wait: float = 60) -> httpx.Response:
    with adminapi.admin(gatehouse) as client:
        return client.delete(f"/halts/{target}", params={"wait": wait})


def refused(response: httpx.Response) -> bool:
    return response.status_code == 403 and errors_of(response)["code"] == "halted"


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "workers"])
def halted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    """A gateway with an administrator."""
    directory = tmp_path_factory.mktemp("halted")
    arguments = ["--workers", str(request.param)] if request.param else []
    config = adminapi.config(directory / "state", engine.port, models=[{"name": "m1", "pool": ["fake"], "aliases": ["m1-latest"]}])
    with Gatehouse(directory, config, arguments=arguments) as running:
        yield running


@pytest.mark.parametrize("target", ["key/test", "tenant/acme", "model/m1", "all"])
def test_a_target_is_refused_until_it_may_go_on(halted: Gatehouse, target: str) -> None:
    assert halted.chat().status_code == 200
    made = halt(halted, target)
    assert made.status_code == 201 and made.json()["items"][0]["source"] == "store"
    try:
        assert all(refused(halted.chat()) for _ in range(8)), "in every worker"
        assert refused(halted.chat(model="m1-latest")) and refused(halted.chat(stream=True))
        if target != "model/m1":
            with halted.client() as client:
                assert client.get("/v1/models").status_code == 403
    finally:
        assert unhalt(halted, target).status_code == 200
    until(lambda: halted.chat().status_code == 200, what="the end of the halt")
    adminapi.problem(unhalt(halted, target), 404, "not_found")


def test_the_list_is_paged(halted: Gatehouse) -> None:
    targets = [f"agent/bot-{number}" for number in range(5)]
    for target in targets:
        assert halt(halted, target).status_code == 201
    try:
        with adminapi.admin(halted) as client:
            found, params = [], {"limit": "2"}
            while True:
                page = client.get("/halts", params=params).json()
                found.append([one["target"] for one in page["items"]])
                if page["cursor"] is None:
                    break
                params["cursor"] = page["cursor"]
            assert found == [targets[:2], targets[2:4], targets[4:]]
            adminapi.problem(client.get("/halts", params={"cursor": "file:x"}), 400, "invalid_value")
            assert [one["name"] for one in client.get("/endpoints", params={"limit": "1"}).json()["items"]] == ["fake"]
    finally:
        for target in targets:
            assert unhalt(halted, target).status_code == 200


@pytest.mark.parametrize(("target", "model"), [("key/test", "m1"), ("model/m1", "m1-latest"), ("model/m1-latest", "m1-latest")])
def test_a_stream_under_way_ends_with_an_error_and_is_recorded(halted: Gatehouse, engine: EngineThread, target: str, model: str) -> None:
    engine.play(ENDLESS)
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(halted.chat(model=model, stream=True)))
    before = len(engine.received)
    asking.start()
    until(lambda: len(engine.received) > before, what="the stream")
    assert halt(halted, target).status_code == 201
    asking.join(60)
    assert unhalt(halted, target).status_code == 200
    assert answers, "it would have gone on for ever"
    found: list[Any] = events(answers[0].text)
    if answers[0].status_code == 200:
        assert found[-1] == "[DONE]" and found[-2]["error"]["code"] == "halted"
    else:  # it was stopped before its first event
        assert refused(answers[0])
    assert halted.outcome(answers[0].headers["x-request-id"])["code"] == "halted"


def test_administrators_are_not_locked_out_and_a_halted_key_is(halted: Gatehouse) -> None:
    assert halt(halted, "tenant/acme").status_code == halt(halted, "key/a-operator").status_code == 201
    try:
        with adminapi.admin(halted) as client, adminapi.admin(halted, "operator") as operator:
            assert [one["target"] for one in client.get("/halts").json()["items"]] == ["key/a-operator", "tenant/acme"]
            adminapi.problem(operator.get("/halts"), 403, "halted")
    finally:
        assert unhalt(halted, "tenant/acme").status_code == unhalt(halted, "key/a-operator").status_code == 200


def test_the_commands_say_what_has_become_of_it(halted: Gatehouse) -> None:
    def run(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--url", halted.admin_url, "--key", adminapi.KEYS["admin"]])
        assert result.exit_code == 0, result.output
        return " ".join((result.stdout + result.stderr).split())

    assert "Nothing was changed." in run("halt", "key/test", "--why", "a test", "--dry-run") and halted.chat().status_code == 200
    said = run("halt", "key/test", "--why", "a test", "--wait", "60")
    assert "store" in said and "No key" not in said and "in force" not in said
    assert run("unhalt", "key/test").endswith("Lifted.")
    for kind in ("key", "model"):
        assert f"No {kind} is known here by this name." in run("halt", f"{kind}/tset", "--why", "a test")
        run("unhalt", f"{kind}/tset")
    assert "is known" not in run("halt", "user/anybody", "--why", "a test"), "users may come with a token"
    run("unhalt", "user/anybody")


@pytest.mark.parametrize("role", ["tenant-admin", "auditor", "viewer", "none"])
def test_who_may_not(halted: Gatehouse, role: str) -> None:
    adminapi.problem(halt(halted, "all", role), 403, "policy_denied")


@pytest.mark.parametrize("target", ["everything", "key/", "model", "all/m1", "key/\n", "x" * 300])
def test_what_cannot_be_a_target(halted: Gatehouse, target: str) -> None:
    assert halt(halted, target).status_code == 400


def test_the_file_counts_within_a_second_and_after_a_restart(launch: Launch, engine: EngineThread, tmp_path: Path) -> None:
    gatehouse = launch(adminapi.config(tmp_path / "state", engine.port)).start()
    assert halt(gatehouse, "user/nobody").status_code == 201
    (gatehouse.state_dir / "halts").write_text("key/test  found on a public page\nnonsense\n")
    until(lambda: refused(gatehouse.chat()), what="the file's halt")
    until(lambda: any("halts:2" in line for line in gatehouse.lines), what="the complaint about its second line")
    gatehouse.stop()
    gatehouse.start()
    assert refused(gatehouse.chat()), "from the first request on"
    with adminapi.admin(gatehouse) as client:
        assert [(one["target"], one["source"]) for one in client.get("/halts").json()["items"]] == [
            ("key/test", "file"),
            ("user/nobody", "store"),
        ]
    assert unhalt(gatehouse, "key/test").status_code == 200
    until(lambda: gatehouse.chat().status_code == 200, what="the end of the halt")
    assert gatehouse.metric("gatehouse_halts", source="store") == 1


def test_another_replica_follows_at_once_and_without_a_store_each_has_its_own(
    replicas: list[Gatehouse],  # noqa: F811
    postgres: PostgresServer,  # noqa: F811
) -> None:
    first, second = replicas
    assert first.chat().status_code == second.chat().status_code == 200
    assert halt(first, "key/test").status_code == 201
    until(lambda: refused(second.chat()), what="the halt on the other replica")
    assert unhalt(second, "key/test").status_code == 200
    until(lambda: first.chat().status_code == 200, what="the end of the halt")
    postgres.stop()
    try:
        made = halt(first, "all", wait=1)
        assert made.status_code == 201 and made.json()["items"][0]["source"] == "file"
        assert refused(first.chat()) and second.chat().status_code == 200
        assert unhalt(first, "all", wait=1).status_code == 200 and first.chat().status_code == 200
    finally:
        postgres.start()
