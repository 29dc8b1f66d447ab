"""The store moves from SQLite to PostgreSQL: keys, tenants and their secrets go on working."""

import subprocess
import sys
from pathlib import Path

import httpx

from gateway.app.store.copy_store import BYTES, ROWS, batches
from tests.e2e.harness import Gatehouse, configuration
from tests.integration.postgres import PostgresServer, postgres  # noqa: F401 - a fixture

ROOT = Path(__file__).resolve().parents[2]
ADMIN = "admin-key-0123456789abcdef0123456789abcdef"


def copied(source: Path, target: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "gateway", "copy-store", str(source), target]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)


def config(folder: Path, **parts: object) -> dict[str, object]:
    made = configuration(folder / "state", **parts)
    made["identity"]["api_keys"]["static"].append({"id": "admin", "key": ADMIN, "tenant": "acme", "models": [], "roles": ["admin"]})
    return made


def models(gatehouse: Gatehouse, key: str) -> int:
    return httpx.get(f"{gatehouse.url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=60).status_code


def test_keys_go_on_working_and_the_target_must_be_empty(tmp_path: Path, postgres: PostgresServer) -> None:  # noqa: F811
    with Gatehouse(tmp_path, config(tmp_path)) as gatehouse:
        api = httpx.Client(base_url=gatehouse.admin_url, headers={"authorization": f"Bearer {ADMIN}"}, timeout=60)
        with api:
            assert api.post("/admin/v1/tenants", json={"name": "initech"}).status_code == 201
            made = api.post("/admin/v1/keys", json={"tenant": "initech", "models": ["*"]})
            assert made.status_code == 201, made.text
        key = made.json()["secret"]
        assert models(gatehouse, key) == 200
        url = postgres.database()
        source = tmp_path / "state/gatehouse.db"
        running = copied(source, url)
        assert running.returncode == 1 and "is running with the state directory" in running.stderr and "stop it first" in running.stderr
    done = copied(source, url)
    assert done.returncode == 0, done.stderr
    assert "keys: 1" in done.stdout
    again = copied(source, url)
    assert again.returncode == 1 and "has a store already" in again.stderr

    with Gatehouse(tmp_path, config(tmp_path, store={"url": url})) as gatehouse:
        assert models(gatehouse, key) == 200
        assert models(gatehouse, key[:-1] + ("a" if key[-1] != "a" else "b")) == 401


def test_rows_are_written_in_small_lists() -> None:
    assert [len(rows) for rows in batches({"id": str(number)} for number in range(2 * ROWS + 1))] == [ROWS, ROWS, 1]
    large = {"id": "a", "sealed": b"x" * (BYTES // 2)}
    assert [len(rows) for rows in batches([large, large, large])] == [2, 1]
    assert list(batches([])) == []


def test_what_is_no_store_is_refused_and_nothing_is_written(tmp_path: Path, postgres: PostgresServer) -> None:  # noqa: F811
    (tmp_path / "other.db").write_bytes(b"")
    done = copied(tmp_path / "other.db", postgres.database())
    assert done.returncode == 1 and "of no Gatehouse" in done.stderr
    (tmp_path / "other.db").write_bytes(b"not a database" * 100)
    done = copied(tmp_path / "other.db", postgres.database())
    assert done.returncode == 1 and "nothing was written" in done.stderr
    done = copied(tmp_path / "gone.db", postgres.database())
    assert done.returncode == 1 and "is not a file" in done.stderr
    done = copied(tmp_path / "other.db", "sqlite:///elsewhere.db")
    assert done.returncode == 1 and "must be postgresql://" in done.stderr
