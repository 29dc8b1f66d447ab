"""`serve --workers 2` whose control process stands still: what needs it is refused with the reason, everything else is served."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.conftest import EngineThread
from tests.e2e.harness import KEY, NARROW_KEY
from tests.e2e.test_workers import Farm
from tests.waiting import until

LIMITS = [{"name": "slots", "per": "tenant", "match": {"key": "limited"}, "concurrent": 4}]
NEW = "sk-new-tenant-0123456789abcdef0123"
LIMITED = "sk-limited-0123456789abcdef0123456"


def ask(farm: Farm, key: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    """On a connection of its own."""
    headers = {"authorization": f"Bearer {key}"}
    method = "GET" if body is None else "POST"
    return httpx.request(method, f"{farm.url}{path}", json=body, headers=headers, trust_env=False, timeout=60)


def test_what_needs_a_control_process_that_stands_still_says_so(tmp_path: Path, engine: EngineThread) -> None:
    said: dict[str, Any] = {"model": "m1", "messages": [{"role": "user", "content": "Hello"}]}
    farm = Farm(
        tmp_path,
        engine,
        limits=LIMITS,
        files={"enabled": True, "reserve_bytes": 0},
        batches={"enabled": True},
        responses={},
        audit={"encryption": {"master": {"file": "master.key"}, "scope": "record"}},
    )
    farm.config["identity"]["api_keys"]["static"] += [
        {"id": "new", "key": NEW, "tenant": "newcomers", "models": ["*"]},
        {"id": "limited", "key": LIMITED, "tenant": "acme", "models": ["*"]},
    ]
    farm.file.write_text(yaml.safe_dump(farm.config))
    (tmp_path / "master.key").write_bytes(os.urandom(32))
    os.chmod(tmp_path / "master.key", 0o600)
    with farm:
        farm.two_workers()
        with farm.admin() as admin:
            unknown = admin.post("/keys", json={"tenant": "acme", "models": ["*"]}, params={"wait": 10}).json()["secret"]
        for _ in range(24):  # each worker has the data key of the tenant by then
            kept = ask(farm, KEY, "/v1/responses", {"model": "m1", "input": "Hello"})
            assert kept.status_code == 200, kept.text
        following = {"model": "m1", "input": "And?", "previous_response_id": kept.json()["id"]}
        assert farm.process is not None
        os.kill(farm.process.pid, signal.SIGSTOP)
        try:
            wanted = {
                "a key": (unknown, "/v1/chat/completions", said),
                "files": (KEY, "/v1/files", None),
                "batches": (KEY, "/v1/batches/batch_1", None),
                "a kept response": (KEY, "/v1/responses", following),
                "its retrieval": (KEY, f"/v1/responses/{following['previous_response_id']}", None),
                "a limit": (LIMITED, "/v1/chat/completions", said),
                "a record": (NEW, "/v1/chat/completions", said),
                "nothing": (KEY, "/v1/chat/completions", said),
                "no model": (NARROW_KEY, "/v1/models", None),
            }
            with ThreadPoolExecutor(len(wanted)) as pool:
                asked = {what: pool.submit(ask, farm, *one) for what, one in wanted.items()}
            answers = {what: one.result() for what, one in asked.items()}
        finally:
            os.kill(farm.process.pid, signal.SIGCONT)
        told = {what: (one.status_code, one.json().get("error", {}).get("code", "")) for what, one in answers.items()}
        store = (503, "store_unavailable")
        assert told == {
            **dict.fromkeys(("a key", "files", "batches", "a kept response", "its retrieval"), store),
            "a limit": (503, "limits_unavailable"),
            "a record": (503, "audit_unavailable"),
            "nothing": (200, ""),
            "no model": (200, ""),
        }
        assert all(one.headers["retry-after"] == "1" for one in answers.values() if one.status_code == 503)
        assert answers["files"].json()["error"]["type"] == "store_unavailable"
        until(lambda: ask(farm, KEY, "/v1/files").status_code == 200, what="the store is there again")
        until(lambda: ask(farm, KEY, "/v1/responses", following).status_code == 200, what="the same, asked of either worker")
