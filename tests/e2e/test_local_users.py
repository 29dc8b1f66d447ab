"""Names and passwords of the configuration at a running gateway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, Gatehouse, configuration, external
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
RIGHT = ("alice", "correct horse battery")


def hash_password(password: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", "users", "hash-password"]
    return subprocess.run(command, cwd=ROOT, env=dict(os.environ), input=f"{password}\n", capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: EngineThread) -> Iterator[Gatehouse]:
    folder = tmp_path_factory.mktemp("local")
    config = configuration(
        folder / "state",
        engines=[external("fake", engine.port, slots=64)],
        models=[{"name": "m1", "pool": ["fake"]}],
        roles={"chatter": {"permissions": ["infer:chat"]}},
        bindings=[{"role": "chatter", "subjects": ["group/staff"]}],
    )
    encoded = hash_password(RIGHT[1]).stdout.strip()
    config["identity"]["local_users"] = {
        "users": [
            {"name": "alice", "tenant": "acme", "groups": ["staff"], "password_hash": encoded},
            {"name": "bob", "tenant": "acme", "password_hash": encoded},
        ]
    }
    config["identity"]["gateway_tokens"] = {"issuer": "https://gw.example"}
    with Gatehouse(folder, config, arguments=["--workers", "2"]) as gatehouse:
        yield gatehouse


def chat(running: Gatehouse, auth: Any) -> httpx.Response:
    body = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {auth}"} if isinstance(auth, str) else {}
    sent = None if isinstance(auth, str) else auth
    return httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, auth=sent, trust_env=False, timeout=60)


def test_a_password_is_hashed_where_nobody_sees_it() -> None:
    made = hash_password("correct horse battery")
    assert made.returncode == 0 and made.stdout.startswith("$argon2id$v=19$m=19456,t=2,p=1$") and "horse" not in made.stdout + made.stderr
    short = hash_password("short")
    assert short.returncode == 1 and short.stdout == "" and "the password has 5 characters; it needs 12 to 256" in short.stderr


def test_a_user_may_do_what_the_groups_may(running: Gatehouse) -> None:
    assert chat(running, RIGHT).status_code == 200
    record = running.noted(kind="intent")[0]
    assert (record["principal"], record["tenant"], record["credential"], record["rule"]) == ("alice", "acme", "local_user", "binding:0")
    assert chat(running, ("bob", RIGHT[1])).status_code == 404, "bob is in no group, so no role lets him see a model"


def test_a_login_is_exchanged_for_a_token(running: Gatehouse) -> None:
    answer = httpx.post(f"{running.url}/auth/token", auth=RIGHT, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    assert chat(running, answer.json()["access_token"]).status_code == 200
    assert httpx.post(f"{running.url}/auth/token", auth=("alice", "wrong"), trust_env=False, timeout=60).status_code == 401


def test_refusals_say_nothing(running: Gatehouse) -> None:
    answers = [chat(running, pair) for pair in (("alice", "wrong"), ("nobody", "x"), ("Alice", RIGHT[1]), ("alice", ""))]
    assert {(answer.status_code, answer.json()["error"]["message"]) for answer in answers} == {(401, "The credential is not valid.")}
    assert not any("horse" in line or "argon2" in line for line in running.lines)
    assert not any(b"horse" in content or b"argon2" in content for content in running.contents().values())


def test_a_user_who_is_taken_out_is_out_after_a_reload(running: Gatehouse) -> None:
    """Although the login is still remembered."""
    assert chat(running, RIGHT).status_code == 200 and running.process is not None
    running.config["identity"]["local_users"]["users"].pop(0)
    running.file.write_text(yaml.safe_dump(running.config))
    running.process.send_signal(signal.SIGHUP)
    until(lambda: chat(running, RIGHT).status_code == 401, what="the end of a login whose user is gone")
    assert chat(running, KEY).status_code == 200
