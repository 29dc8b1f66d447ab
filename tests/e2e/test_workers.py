"""`serve --workers 2`: one gateway to its clients and operators, whichever process serves, and whatever becomes of one of them."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import ssl
import termios
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, alive, configuration, external, first_keys
from tests.unit.gateway.transport.conftest import Certificates
from tests.waiting import until


class Farm(Gatehouse):
    """A gateway with workers."""

    def __init__(self, directory: Path, engine: EngineThread, workers: int = 2, **parts: Any) -> None:
        config = configuration(
            directory / "state",
            engines=[external("fake", engine.port, slots=64)],
            models=[{"name": "m1", "pool": ["fake"], "aliases": ["m1-latest"]}],
            **parts,
        )
        super().__init__(directory, config, arguments=["--workers", str(workers)])

    def workers(self) -> dict[int, str]:
        """Id by process, of those that have said in the log that they serve and are alive."""
        found = {}
        for line in list(self.lines):
            if " serves (process " in line:
                words = line.split()
                pid = int(words[-1].rstrip(")"))
                if alive(pid):
                    found[pid] = words[words.index("worker") + 1]
        return found

    def reads(self, file: Path) -> bool:
        """Whether a process of this gateway has the file open."""
        found: list[str] = []
        with suppress(OSError):  # it has ended
            for pid in [] if self.process is None else [self.process.pid, *self.engines()]:
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):  # it was closed
                        found.append(os.readlink(link))
        return str(file) in found

    def two_workers(self) -> list[int]:
        return sorted(until(lambda: self.workers() if len(self.workers()) == 2 else None, what="two workers"))

    def each(self, count: int = 12, key: str = KEY, path: str = "/readyz") -> list[httpx.Response]:
        """Answers to requests on connections of their own, so that every worker gets some of them."""
        return [
            httpx.get(f"{self.url}{path}", headers={"authorization": f"Bearer {key}"}, trust_env=False, timeout=60) for _ in range(count)
        ]

    def reload(self, **parts: Any) -> None:
        """Changes settings of the file and has it read."""
        self.config.update(parts)
        self.file.write_text(yaml.safe_dump(self.config))
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def admin(self) -> httpx.Client:
        (key,) = first_keys(self)
        return httpx.Client(base_url=f"{self.admin_url}/admin/v1", headers={"authorization": f"Bearer {key}"}, trust_env=False, timeout=60)


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Farm]:
    with Farm(tmp_path_factory.mktemp("farm"), engine) as running:
        yield running


def test_requests_are_served_counted_and_recorded(farm: Farm) -> None:
    before = farm.metric("gatehouse_requests_total", model="m1", status="200")
    answers = [farm.chat() for _ in range(8)]
    assert [answer.status_code for answer in answers] == [200] * 8
    # A scrape waits for a worker's figures for a second; of one that is later it has those of before.
    until(lambda: farm.metric("gatehouse_requests_total", model="m1", status="200") == before + 8, what="the count of both workers")
    for answer in answers:
        assert farm.outcome(answer.headers["x-request-id"])["status"] == 200
    assert farm.metric("gatehouse_workers", state="ready") == 2


def test_the_usage_of_all_workers_is_reported(farm: Farm) -> None:
    with farm.admin() as admin:
        for _ in range(6):
            assert farm.chat().status_code == 200

        def reported() -> bool:
            used = sum(row["requests"] for row in admin.get("/usage", params={"group_by": "key"}).json()["items"])
            return used == farm.metric("gatehouse_requests_total") >= 6

        until(reported, what="the usage of both workers")


def test_a_key_of_the_store_counts_in_every_worker_and_so_does_its_revocation(farm: Farm) -> None:
    with farm.admin() as admin:
        made = admin.post("/keys", json={"tenant": "acme", "models": ["*"]}).json()
        key = made["secret"]
        assert {answer.status_code for answer in farm.each(key=key, path="/v1/models")} == {200}
        revoked = admin.post(f"/keys/{made['id']}/revoke", params={"wait": 60})
        assert (revoked.status_code, revoked.headers["x-gatehouse-in-force"]) == (200, "true")
        assert {answer.status_code for answer in farm.each(12, key, "/v1/models")} == {401}


def test_a_reload_reaches_every_worker(farm: Farm) -> None:
    version = farm.each(1)[0].json()["config_version"]
    farm.reload(models=[{"name": "m1", "pool": ["fake"], "aliases": ["m1-new"]}])
    until(lambda: all(a.json()["config_version"] == version + 1 for a in farm.each()), 30, "the new configuration in both workers")
    with farm.client() as client:
        for _ in range(10):
            body = {"model": "m1-new", "messages": [{"role": "user", "content": "Hello!"}]}
            assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_a_refused_reload_changes_no_worker(farm: Farm) -> None:
    version = farm.each(1)[0].json()["config_version"]
    refused = farm.metric("gatehouse_config_reloads_total", result="refused")
    farm.config["models"] = [{"name": "m1", "pool": ["nobody"]}]
    farm.reload()
    until(lambda: farm.metric("gatehouse_config_reloads_total", result="refused") == refused + 1)
    assert {answer.json()["config_version"] for answer in farm.each()} == {version}
    farm.reload(models=[{"name": "m1", "pool": ["fake"]}])
    until(lambda: all(a.json()["config_version"] == version + 1 for a in farm.each()), 30)


def test_a_worker_that_is_killed_is_replaced_and_the_others_serve(farm: Farm) -> None:
    before = farm.two_workers()
    counted = farm.metric("gatehouse_requests_total", model="m1")
    os.kill(before[0], signal.SIGKILL)
    until(lambda: not alive(before[0]))
    assert [farm.chat().status_code for _ in range(10)] == [200] * 10
    after = farm.two_workers()
    assert before[1] in after and before[0] not in after
    assert sorted(farm.workers().values()) == sorted({id for id in farm.workers().values()}), "the ids are given again"
    assert farm.metric("gatehouse_requests_total", model="m1") >= counted, "what was counted stays"
    assert farm.metric("gatehouse_worker_restarts_total") >= 1


def test_a_worker_that_is_asked_to_end_is_replaced_without_losing_a_request(farm: Farm, engine: EngineThread) -> None:
    before = farm.two_workers()
    answers: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        with farm.client() as client:
            while not stop.is_set():
                body = {"model": "m1", "messages": [{"role": "user", "content": "Hello!"}]}
                answers.append(client.post("/v1/chat/completions", json=body).status_code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        os.kill(before[0], signal.SIGTERM)
        until(lambda: not alive(before[0]), what="the end of the worker")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(answers) == {200}
    assert len(farm.two_workers()) == 2


def test_a_limit_of_the_store_is_in_force_in_every_worker_once_the_answer_says_so(farm: Farm) -> None:
    version = farm.each(1)[0].json()["config_version"]
    with farm.admin() as admin:
        made = admin.post("/limits", json={"name": "none", "match": {"key": "nobody"}, "requests": {"rate": 1}}, params={"wait": 60})
        assert (made.status_code, made.headers["x-gatehouse-in-force"]) == (201, "true"), made.text
        assert all(answer.json()["config_version"] > version for answer in farm.each())
        assert "x-gatehouse-in-force" not in admin.delete("/limits/none").headers
        assert admin.delete("/limits/none", params={"wait": 61}).status_code == 400


def test_a_change_is_not_in_force_while_a_worker_hangs(farm: Farm) -> None:
    hanging = farm.two_workers()[0]
    os.kill(hanging, signal.SIGSTOP)
    try:
        with farm.admin() as admin:
            made = admin.post("/keys", json={"tenant": "acme", "models": ["*"]}, params={"wait": 0.3})
            assert (made.status_code, made.headers["x-gatehouse-in-force"]) == (201, "false")
    finally:
        os.kill(hanging, signal.SIGCONT)
    farm.two_workers()


def test_operators_see_the_workers_and_replace_one(farm: Farm) -> None:
    before = farm.two_workers()
    with farm.admin() as admin:
        shown = admin.get("/workers").json()["items"]
        assert sorted(worker["pid"] for worker in shown) == before
        assert {worker["state"] for worker in shown} == {"ready"}
        dry = admin.post(f"/workers/{shown[0]['id']}/replace", params={"dry_run": "true"})
        assert (dry.status_code, dry.json()["result"]["pid"]) == (200, shown[0]["pid"])
        assert admin.post("/workers/nobody/replace").status_code == 404
        replaced = admin.post(f"/workers/{shown[0]['id']}/replace")
        assert replaced.status_code == 200, replaced.text
    until(lambda: not alive(shown[0]["pid"]), what="the end of the old worker")
    after = farm.two_workers()
    assert shown[1]["pid"] in after and shown[0]["pid"] not in after


def test_a_worker_holds_nothing_that_belongs_to_the_control_process(farm: Farm) -> None:
    """Neither the store's file nor the admin listener."""
    for pid in farm.two_workers():
        held = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        assert not [path for path in held if path.endswith((".db", ".sqlite", ".db-wal"))], held


def test_a_worker_that_cannot_put_a_change_into_force_is_replaced(tmp_path: Path, engine: EngineThread) -> None:
    """A file that the control process could read and the worker could not: here a pipe that says something else each time."""
    pipe, made = tmp_path / "phrases", Certificates(tmp_path)
    os.mkfifo(pipe)
    texts: list[bytes] = []

    def tell() -> None:
        while True:
            with pipe.open("wb", buffering=0) as reader:  # waits for one
                reader.write(texts.pop(0) if texts else b"the first phrase\n")
                until(lambda: not unread(reader), what="the reading")
            until(lambda: not farm.reads(pipe), what="that this reader has seen the end")  # the next one gets a text of its own

    rail = {"name": "words", "type": "denylist", "settings": {"phrases_file": str(pipe)}}
    farm = Farm(tmp_path, engine, 1, guardrails=[rail], listen={"tls": {"cert": made.server, "key": made.server_key}})
    threading.Thread(target=tell, daemon=True).start()
    with farm, farm.client(verify=ssl.create_default_context(cafile=made.ca)) as client:

        def asked(text: str) -> int:
            body = {"model": "m1", "messages": [{"role": "user", "content": text}]}
            return client.post("/v1/chat/completions", json=body, headers={"connection": "close"}).status_code

        assert (asked("hello"), asked("the first phrase")) == (200, 400)
        (before,) = farm.workers()
        texts += [b"the second phrase\n", b"\xff is no text\n", b"the second phrase\n"]
        farm.reload()
        until(lambda: not alive(before) and farm.workers(), what="another worker")
        assert (asked("the first phrase"), asked("the second phrase")) == (200, 400)
        why = "could not put its settings into force: guardrails[0].settings"
        until(lambda: any(why in line for line in farm.lines), what="the reason in the log")


def unread(pipe: io.FileIO) -> int:
    """How many bytes of what was written nobody has read."""
    found = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, found)
    return found[0]


def test_a_change_may_come_while_workers_are_still_starting(tmp_path: Path, engine: EngineThread) -> None:
    farm = Farm(tmp_path, engine).launch()
    until(lambda: any("the hot path" in line for line in farm.lines), what="the beginning of the start")
    assert farm.process is not None
    while not any(line.startswith("admin: ") for line in farm.lines):
        assert farm.process.poll() is None, farm.lines
        farm.process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    assert farm.stop() == 0
    assert not [line for line in farm.lines if "Traceback" in line or " died " in line]


def test_the_end_drains_every_worker(tmp_path: Path, engines: Callable[..., EngineThread]) -> None:
    engine = engines()
    farm = Farm(tmp_path, engine).start()
    engine.play("hold")
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(farm.chat().status_code))
    thread.start()
    engine.holds(1)
    workers = farm.two_workers()
    assert farm.process is not None
    for pid in (*workers, farm.process.pid):  # as a service manager does
        os.kill(pid, signal.SIGTERM)
    until(lambda: sum(alive(pid) for pid in workers) == 1, what="the end of the idle worker")

    def refuses() -> bool:
        """The busy worker may hear of the signal later. Refused, and not left in the queue of a socket that nobody accepts on."""
        try:
            farm.each(1)
        except httpx.TimeoutException:
            raise
        except httpx.TransportError as error:  # another one than ConnectError: it was in the queue of a socket that was closed then
            return isinstance(error, httpx.ConnectError)
        return False

    until(refuses, what="the end of the listeners")
    engine.release()
    thread.join()
    assert answers == [200]
    assert farm.ended() == 0
    assert not any(alive(pid) for pid in workers)


def test_nothing_is_left_when_the_control_process_is_killed(tmp_path: Path, engines: Callable[..., EngineThread]) -> None:
    engine = engines()
    farm = Farm(tmp_path, engine).start()
    engine.play("hold")
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(farm.chat().status_code))
    thread.start()
    engine.holds(1)
    workers = farm.two_workers()
    assert farm.process is not None
    farm.process.kill()
    farm.process.wait(60)
    until(lambda: sum(alive(pid) for pid in workers) == 1, what="the end of the idle worker")
    engine.release()
    thread.join()
    assert answers == [200], "what was under way is finished"
    until(lambda: not any(alive(pid) for pid in workers), what="the end of the workers")
    with pytest.raises(httpx.TransportError):
        farm.each(1)


def test_levels_of_the_log_change_in_every_worker_and_come_back(farm: Farm) -> None:
    def lines() -> list[str]:
        return [line for line in farm.lines if "gatehouse.requests" in line]

    with farm.admin() as api:
        assert api.put("/log-levels", json={"seconds": 60}).status_code == 400
        assert "evil" in api.put("/log-levels", json={"loggers": {"evil": "debug"}}).json()["detail"]
        farm.each()
        assert not lines()
        done = api.put("/log-levels", params={"wait": 60}, json={"loggers": {"gatehouse.requests": "trace"}, "seconds": 600})
        assert (done.status_code, done.headers["x-gatehouse-in-force"]) == (200, "true")
        assert done.json()["loggers"] == {"gatehouse.requests": "trace"} and done.json()["configured"] == "info"
        assert farm.chat(model="m1").status_code == 200
        [line] = until(lines, what="a line for the request")
        assert "200 ok" in line
        gone = farm.two_workers()[0]
        assert api.post(f"/workers/{farm.workers()[gone]}/replace").status_code in (200, 202)
        until(lambda: gone not in farm.workers() and len(farm.workers()) == 2, 30, "the other worker")
        for _ in range(8):
            assert farm.chat(model="m1").status_code == 200
        until(lambda: len(lines()) == 9, what="lines of both workers, also of the new one")
        assert api.delete("/log-levels", params={"wait": 60}).json()["until"] is None
        assert farm.chat(model="m1").status_code == 200

        def recorded() -> int:
            found = api.get("/audit/search", params={"limit": 50}).json()["items"]
            return sum(one.get("event") == "admin.logs.update" for one in found)

        until(lambda: recorded() >= 3, what="the records in the index")
    assert len(lines()) == 9
