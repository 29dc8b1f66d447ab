"""Replacing the running program: workers and sidecars go on, streams are not cut, and what would not start changes nothing."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from gateway.app.main import app
from gateway.app.replicas.replica import StateLock
from gateway.core.errors import ConfigError
from gateway.store.migrate import HEAD
from tests.e2e.adminapi import KEYS, admin
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import DEMO_MODEL, KEY, Gatehouse, alive, configuration, external
from tests.e2e.resilience import Load, busiest, uncut, with_operator
from tests.fakes.answers import Step
from tests.fakes.ports import empty_port
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from tests.plain import PLAIN
from tests.waiting import until

SLOW = Step(chunks=6, interval=0.02)
Start = Callable[..., Gatehouse]


def upgrades(gatehouse: Gatehouse) -> int | None:
    """How many upgrades are complete; None while one is under way."""
    try:
        with admin(gatehouse, "operator") as client:
            found = client.get("/upgrade").json()
    except httpx.HTTPError:  # one program follows the other
        return None
    return int(found["upgrades"]) if found["state"] == "idle" else None


def refused(gatehouse: Gatehouse) -> dict[str, Any]:
    with admin(gatehouse, "operator") as client:
        answer = client.post("/upgrade", timeout=120)
    assert answer.status_code == 409, answer.text
    found: dict[str, Any] = answer.json()
    return found


def events(gatehouse: Gatehouse, event: str) -> list[dict[str, Any]]:
    return [record for record in gatehouse.audit() if record.get("event") == event]


@pytest.fixture
def start(tmp_path: Path, engines: Callable[..., EngineThread]) -> Iterator[Start]:
    """Starts a gateway with two workers over a scripted engine, and with whatever else the test wants."""
    made: list[Gatehouse] = []

    def make(*, workers: int = 2, **parts: Any) -> Gatehouse:
        engine = parts.pop("engine", None) or engines(default=SLOW)
        environ = parts.pop("environ", None)
        listed = [external("fake", engine.port, slots=parts.pop("slots", 64), timeouts={"between_bytes": 600}), *parts.pop("engines", [])]
        models = [{"name": "m1", "pool": ["fake"]}, *parts.pop("models", [])]
        config = with_operator(configuration(tmp_path / "state", engines=listed, models=models, **parts))
        made.append(Gatehouse(tmp_path, config, environ, arguments=["--workers", str(workers)] if workers else []))
        return made[-1].start()

    yield make
    for gatehouse in made:
        assert gatehouse.stop() == 0, "\n".join(gatehouse.lines)


@contextmanager
def stream(gatehouse: Gatehouse) -> Iterator[Iterator[str]]:
    body = {"model": "m1", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with gatehouse.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        yield answer.iter_lines()


def test_what_would_not_start_changes_nothing(start: Start) -> None:
    gatehouse = start()
    assert gatehouse.process is not None
    workers = gatehouse.engines()
    good = gatehouse.file.read_text()
    gatehouse.file.write_text(yaml.safe_dump({**gatehouse.config, "listen": {**gatehouse.config["listen"], "drain_delay": "soon"}}))
    found = refused(gatehouse)
    assert found["code"] == "upgrade_check_failed"
    assert "listen.drain_delay" in found["detail"] and "gatehouse.yaml:" in found["detail"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        gatehouse.file.write_text(yaml.safe_dump({**gatehouse.config, "listen": {**gatehouse.config["listen"], "data": address}}))
        assert f"cannot listen on {address}" in refused(gatehouse)["detail"]
    gatehouse.file.write_text(good)
    with admin(gatehouse, "operator") as client:
        assert client.post("/upgrade?dry_run=true").status_code == 202
        shown = client.get("/upgrade").json()
    assert (shown["state"], shown["upgrades"], shown["last"]["outcome"]) == ("idle", 0, "refused")
    assert gatehouse.engines() == workers and gatehouse.chat().status_code == 200
    until(lambda: len(events(gatehouse, "upgrade_refused")) == 2, what="the records")
    reasons = [record["detail"]["reason"] for record in events(gatehouse, "upgrade_refused")]

    def told() -> list[str]:
        return [line.partition("no upgrade: ")[2] for line in list(gatehouse.lines) if "no upgrade: " in line]

    until(lambda: told() == reasons, what="the reasons in the log")


def test_one_process_alone_cannot_be_upgraded(start: Start) -> None:
    gatehouse = start(workers=0)
    found = refused(gatehouse)
    assert found["code"] == "upgrade_refused" and "--workers" in found["detail"]
    assert gatehouse.process is not None
    gatehouse.process.send_signal(signal.SIGUSR2)
    until(lambda: sum("no upgrade: This gateway serves" in line for line in gatehouse.lines) == 2, what="the refusals in the log")
    assert gatehouse.chat().status_code == 200


def by_the_api(gatehouse: Gatehouse) -> None:
    with admin(gatehouse, "operator") as client:
        answer = client.post("/upgrade", timeout=120)
    assert answer.status_code == 202, answer.text


def by_a_signal(gatehouse: Gatehouse) -> None:
    assert gatehouse.process is not None
    for _ in range(3):  # the second and the third come too early, whatever the first is doing
        gatehouse.process.send_signal(signal.SIGUSR2)


def by_the_command(gatehouse: Gatehouse) -> None:
    options = ["--url", gatehouse.admin_url, "--key", KEYS["operator"]]
    shown = CliRunner().invoke(app, ["upgrade", *options, "-o", "json"])
    assert shown.exit_code == 0, shown.output
    assert '"done"' in shown.output


def test_three_upgrades_under_load_lose_nothing_and_cut_no_stream(start: Start, engines: Callable[..., EngineThread]) -> None:
    engine = engines(default=SLOW)
    gatehouse = start(engine=engine, slots=4)
    assert gatehouse.process is not None
    pid, first = gatehouse.process.pid, set(gatehouse.engines())
    engine.play("hold:at=mid")
    with stream(gatehouse) as lines:
        assert next(lines).startswith("data: ")
        engine.holds(1)
        plain, streams = Load(gatehouse, "m1", width=3), Load(gatehouse, "m1", width=2, stream=True)
        for number, upgrade in enumerate((by_the_api, by_a_signal, by_the_command), 1):
            plain.more(10)
            streams.more(3)
            upgrade(gatehouse)
            until(lambda number=number: upgrades(gatehouse) == number, 120, "the upgrade")
        plain.more(20)
        streams.more(6)
        counts = plain.stop(), streams.stop()
        engine.release()
        rest = [line for line in lines if line]
    assert counts == (Counter({200: len(plain.answers)}), Counter({200: len(streams.answers)}))
    assert uncut(streams)
    assert busiest(engine) == 4, "the engine's slots, over old and new workers"
    assert rest[-1] == "data: [DONE]" and not any('"error"' in line for line in rest)
    assert gatehouse.process.poll() is None and gatehouse.process.pid == pid
    until(lambda: len(gatehouse.engines()) == 2 and not first & set(gatehouse.engines()), what="the end of the old workers")
    until(lambda: len(events(gatehouse, "upgraded")) == 3, what="the records")
    assert [record["actor"] for record in events(gatehouse, "upgrade_begun")] == ["acme/a-operator", "signal", "acme/a-operator"]


def test_what_was_counted_stays_counted(start: Start) -> None:
    """A sum that falls looks like a restart, and all that goes on counting like growth, to whoever reads it."""
    gatehouse = start()

    def counted() -> tuple[float, float]:
        with httpx.Client(verify=PLAIN, trust_env=False, timeout=60) as client:
            requests = client.get(f"{gatehouse.admin_url}/readyz").json()["requests"]
        return gatehouse.metric("gatehouse_requests_total", outcome="ok"), requests

    def counts(number: int) -> None:
        assert gatehouse.chat().status_code == 200
        until(lambda: counted() == (number, number), what="the request")
        by_the_api(gatehouse)
        until(lambda: upgrades(gatehouse) == number, 120, "the upgrade")
        assert counted() == (number, number)

    counts(1)
    counts(2)


def test_sidecars_keep_running_and_an_address_may_change(start: Start) -> None:
    engine = {"name": "chat", "runtime": "llama.cpp", "model": DEMO_MODEL, "slots": 4, "context": 256, "threads": 1}
    gatehouse = start(engines=[engine], models=[{"name": "demo", "pool": ["chat"]}])
    with admin(gatehouse, "operator") as client:
        before = client.get("/engines/chat").json()
        client.post("/engines/fake/drain")
    with empty_port() as port:
        gatehouse.config["listen"]["data"] = f"127.0.0.1:{port}"
        gatehouse.file.write_text(yaml.safe_dump(gatehouse.config))
        by_the_api(gatehouse)
        until(lambda: upgrades(gatehouse) == 1, 120, "the upgrade")
    old, gatehouse.url = gatehouse.url, f"http://127.0.0.1:{port}"
    assert gatehouse.chat(model="demo", max_tokens=4).status_code == 200
    with admin(gatehouse, "operator") as client:
        after = client.get("/engines/chat").json()
        assert client.get("/endpoints/fake").json()["drained"], "what an operator has set stays"
    assert (after["pid"], after["state"], after["restarts"]) == (before["pid"], "ready", 0)

    def refuses() -> bool:
        host, _, number = old.removeprefix("http://").rpartition(":")
        with socket.socket() as sock:
            return sock.connect_ex((host, int(number))) != 0

    until(refuses, what="the end of the old listener")
    os.kill(after["pid"], signal.SIGKILL)
    until(lambda: gatehouse.chat(model="demo", max_tokens=4).status_code == 200, what="the sidecar's successor")
    assert gatehouse.config["engines"][-1]["name"] == "chat"
    gatehouse.config["engines"][-1]["context"] = 512
    gatehouse.file.write_text(yaml.safe_dump(gatehouse.config))
    by_the_api(gatehouse)
    until(lambda: len(events(gatehouse, "upgraded")) == 2, 120, "the second upgrade")
    kept, replaced = (record["detail"] for record in events(gatehouse, "upgraded"))
    assert kept["adopted_engines"] == ["chat"] and "replaced_engines" not in kept
    assert (replaced["adopted_engines"], replaced["replaced_engines"]) == ([], ["chat"]), "its settings are others"


def test_one_at_a_time_and_none_while_leaving(start: Start, engines: Callable[..., EngineThread]) -> None:
    engine = engines()
    gatehouse = start(engine=engine)
    assert gatehouse.process is not None

    def ask(number: int) -> httpx.Response:
        with admin(gatehouse, "operator") as client:
            return client.post("/upgrade?dry_run=true", timeout=120)

    def at_once() -> list[httpx.Response] | None:
        """The answers; none where this process stood still until a check was over."""
        with ThreadPoolExecutor(3) as threads:
            answers = list(threads.map(ask, range(3)))
        codes = sorted(answer.status_code for answer in answers)
        assert codes[0] == 202 and set(codes) <= {202, 409}, codes
        return answers if codes == [202, 409, 409] else None

    answers: list[httpx.Response] = until(at_once, what="three at once")
    assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {"upgrade_running"}
    denied = httpx.post(f"{gatehouse.admin_url}/admin/v1/upgrade", headers={"authorization": f"Bearer {KEY}"}, trust_env=False, timeout=60)
    assert denied.status_code == 403
    engine.play("hold")
    thread = threading.Thread(target=gatehouse.chat)
    thread.start()
    engine.holds(1)
    gatehouse.process.send_signal(signal.SIGTERM)
    until(lambda: httpx.get(f"{gatehouse.admin_url}/readyz", trust_env=False, timeout=60).status_code == 503, what="the end of readiness")
    assert "is ending" in refused(gatehouse)["detail"]
    engine.release()
    thread.join(60)
    assert gatehouse.ended() == 0


def test_a_signal_to_end_counts_whenever_it_comes(start: Start) -> None:
    gatehouse = start()
    assert gatehouse.process is not None
    by_the_api(gatehouse)
    gatehouse.process.send_signal(signal.SIGTERM)  # one program hands over to the other
    assert gatehouse.ended() == 0
    until(lambda: any("leaving: " in line for line in gatehouse.lines), what="the log of the program that left")


STANDS_STILL = """
import os, signal
if os.environ.get("GATEHOUSE_HANDOVER"):
    os.kill(os.getpid(), signal.SIGSTOP)
"""
"""As the next program begins, before it has anything in its hands."""


def test_nobody_else_gets_the_state_directory_between_two_programs(start: Start, tmp_path: Path) -> None:
    hook = made_in(tmp_path / "hook")
    (hook / "sitecustomize.py").write_text(STANDS_STILL)
    gatehouse = start(workers=1, environ={"PYTHONPATH": str(hook)})
    assert gatehouse.process is not None
    pid = gatehouse.process.pid
    by_the_api(gatehouse)
    until(lambda: stands_still(pid), 120, "the standstill")
    try:
        with pytest.raises(ConfigError, match="is running with the state directory"):
            StateLock(gatehouse.state_dir)
    finally:
        gatehouse.process.send_signal(signal.SIGCONT)
    until(lambda: upgrades(gatehouse) == 1, 120, "the upgrade")
    with pytest.raises(ConfigError, match="is running with the state directory"):
        StateLock(gatehouse.state_dir)


HANGS = """
import os, signal, sys
if "--preflight" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_signal_to_end_ends_the_check_too_and_whoever_asked_hears_of_it(start: Start, tmp_path: Path) -> None:
    hook = made_in(tmp_path / "hook")
    (hook / "sitecustomize.py").write_text(HANGS)
    gatehouse = start(workers=1, environ={"PYTHONPATH": str(hook)})
    assert gatehouse.process is not None
    workers = gatehouse.engines()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(refused, gatehouse)

        def hangs() -> int | None:
            return next((pid for pid in gatehouse.engines() if pid not in workers and stands_still(pid)), None)

        check = until(hangs, 120, "the check")
        gatehouse.process.send_signal(signal.SIGTERM)
        assert asked.result(60)["detail"] == "The gateway is ending."
    assert gatehouse.ended() == 0
    assert check is not None and not alive(check)


def stands_still(pid: int) -> bool:
    return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()


FAILS = """
import os, sys
if sys.orig_argv[-3:-2] == ["--worker"] and os.path.exists({flag!r}):
    os.write(2, b"this release is broken\\n")
    os._exit(3)
"""
"""Runs as each interpreter of the gateway starts."""


def test_an_upgrade_whose_workers_do_not_start_gives_way_to_the_next(start: Start, tmp_path: Path) -> None:
    flag, hook = tmp_path / "broken", tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(FAILS.format(flag=str(flag)))
    gatehouse = start(environ={"PYTHONPATH": str(hook)})
    workers = gatehouse.engines()
    flag.touch()
    options = ["--url", gatehouse.admin_url, "--key", KEYS["operator"]]
    shown = CliRunner().invoke(app, ["upgrade", *options])
    assert shown.exit_code == 1 and "the old workers go on" in shown.output and "exit code 3" in shown.output
    assert set(workers) <= set(gatehouse.engines()) and gatehouse.chat().status_code == 200
    os.kill(workers[0], signal.SIGKILL)  # its successors do not start either

    def accepted() -> bool:
        with admin(gatehouse, "operator") as client:
            answer = client.post("/upgrade", timeout=120)
        assert answer.status_code == 202 or answer.json()["code"] == "upgrade_busy", answer.text  # a worker is tried just now
        return answer.status_code == 202

    until(accepted, what="the next upgrade")
    flag.unlink()
    until(lambda: upgrades(gatehouse) == 2, what="its end")
    until(lambda: len(gatehouse.engines()) == 2 and not set(workers) & set(gatehouse.engines()), what="the end of the old workers")
    assert len(events(gatehouse, "upgrade_incomplete")) >= 1 and gatehouse.chat().status_code == 200


def test_what_only_the_start_would_find_changes_nothing(start: Start, postgres: PostgresServer, tmp_path: Path) -> None:  # noqa: F811
    url = postgres.database()
    gatehouse = start(store={"url": url}, environ={"GATEHOUSE_PEPPER": "a pepper of at least thirty-two characters"})
    workers = gatehouse.engines()
    postgres.execute("UPDATE alembic_version SET version_num = '9999'", url)  # as a later release leaves it
    assert "the store's schema is of a newer Gatehouse (revision 9999)" in refused(gatehouse)["detail"]
    postgres.execute(f"UPDATE alembic_version SET version_num = '{HEAD}'", url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for part in ({"listen": {**gatehouse.config["listen"], "grpc": address}}, {"model_sharing": {"listen": address}}):
            gatehouse.file.write_text(yaml.safe_dump({**gatehouse.config, **part}))
            assert f"cannot listen on {address}" in refused(gatehouse)["detail"]
    with Gatehouse(made_in(tmp_path / "other"), configuration(tmp_path / "other" / "state"), arguments=["--workers", "1"]) as other:
        gatehouse.file.write_text(yaml.safe_dump({**gatehouse.config, "state_dir": str(other.state_dir)}))
        assert "is running with the state directory" in refused(gatehouse)["detail"]
    gatehouse.file.write_text(yaml.safe_dump(gatehouse.config))
    postgres.stop()
    try:
        assert "The store cannot be opened" in refused(gatehouse)["detail"]
        assert gatehouse.engines() == workers and gatehouse.chat().status_code == 200
    finally:
        postgres.start()
    until(lambda: gatehouse.metric("gatehouse_store_available") == 1, what="the store")
    by_the_api(gatehouse)
    until(lambda: upgrades(gatehouse) == 1, what="the upgrade")


def made_in(directory: Path) -> Path:
    directory.mkdir()
    return directory
