"""The history of the configuration: who put what into force and when, and the way back."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml
from typer.testing import CliRunner

from gateway.app.main import app
from tests.e2e.adminapi import KEYS, admin, config, problem
from tests.e2e.conftest import EngineThread
from tests.e2e.harness import Gatehouse
from tests.waiting import until

Launch = Callable[..., Gatehouse]
SECRET = "planted-secret-0123456789abcdef0123456789"
LIMIT = {"name": "slow", "requests": {"rate": 5, "per": "1m"}}


def entries(api: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/config/history").json()["items"]
    return found


def newest(api: httpx.Client) -> dict[str, Any]:
    """Of the store."""
    return next(one for one in entries(api) if one["of"] == "store")


def of_file(api: httpx.Client, count: int) -> list[dict[str, Any]]:
    """Once there are so many: they are noted behind the change."""
    return until(  # type: ignore[no-any-return]
        lambda: found if len(found := [one for one in entries(api) if one["of"] == "file"]) == count else None, what=f"{count} entries"
    )


def text(settings: dict[str, Any], **changes: Any) -> str:
    return yaml.safe_dump({**settings, **changes})


def put(api: httpx.Client, body: str, **params: str) -> httpx.Response:
    return api.put("/config", content=body, headers={"content-type": "application/yaml"}, params=params)


def back(api: httpx.Client, number: int, head: int | None = None, **params: str) -> httpx.Response:
    headers = {} if head is None else {"if-match": f'"{head}"'}
    return api.post(f"/config/history/{number}/rollback", headers=headers, params=params)


def test_files_and_texts_with_who_and_when_and_the_way_back(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    settings = config(tmp_path / "state", engine.port)
    settings["engines"][0]["api_key"] = SECRET
    settings["engines"][0]["headers"] = {"x-reference": "${env:HISTORY_TEST}"}
    with launch(settings, {"HISTORY_TEST": "value-of-the-reference"}) as gatehouse, admin(gatehouse) as api:
        (begun,) = of_file(api, 1)
        assert (begun["by"], begun["source"], begun["changed"]) == ("gatehouse", str(gatehouse.file), [])
        assert begun["start"] == "first"
        listed = gatehouse_cli(gatehouse, "config", "history")
        assert "the first configuration" in listed

        assert put(api, text(settings, limits=[LIMIT])).status_code == 200
        changed, _ = of_file(api, 2)
        assert (changed["by"], changed["changed"], changed["version"]) == ("acme/a-admin", ["limits.slow"], 2)
        shown = api.get(f"/config/history/{changed['number']}").json()
        assert shown["config"]["engines"][0]["api_key"] == "********"
        assert any(entry["path"].startswith("limits") for entry in shown["diff"])
        assert SECRET not in str(shown) and "value-of-the-reference" not in str(shown)

        gatehouse.file.write_text(text(settings, limits=[LIMIT, {**LIMIT, "name": "other"}]))
        assert gatehouse.process is not None
        gatehouse.process.send_signal(signal.SIGHUP)
        read, *_ = of_file(api, 3)
        assert (read["by"], read["changed"]) == ("gatehouse", ["limits.other"])

        answer = back(api, begun["number"], dry_run="true").json()
        assert (answer["dry_run"], answer["applied"], answer["changed"]) == (True, False, ["limits.slow", "limits.other"])
        (gone,) = answer["diff"]
        assert (gone["path"], sorted(gone["from"]), gone["to"]) == ("limits", ["other", "slow"], [])
        assert len(of_file(api, 3)) == 3
        answer = back(api, begun["number"], read["number"]).json()
        assert (answer["applied"], answer["until_restart"]) == (True, True)
        assert api.get("/config").json()["config"]["limits"] == []
        restored, *_ = of_file(api, 4)
        assert (restored["by"], restored["rolled_back_to"]) == ("acme/a-admin", begun["number"])
        problem(back(api, begun["number"], read["number"]), 412, "version_mismatch")
        assert gatehouse.chat().status_code == 200

        kept = b"".join(path.read_bytes() for path in (tmp_path / "state").glob("*.db*"))
        assert SECRET.encode() not in kept and b"value-of-the-reference" not in kept and b"HISTORY_TEST" not in kept
        records = [r for r in gatehouse.audit() if r.get("target") == f"config/history/{begun['number']}"]
        assert [r.get("outcome", "ok") for r in records] == ["ok", "refused"]
        assert all(r["event"] == "admin.config.apply" and r["actor"] == "acme/a-admin" for r in records)

    with launch(settings, {"HISTORY_TEST": "value-of-the-reference"}) as gatehouse, admin(gatehouse) as api:
        assert api.post("/limits", json=LIMIT).status_code == 201
        assert len(of_file(api, 4)) == 4, "a start with what was in force last is nothing new"
    with launch({**settings, "watch": True}, {"HISTORY_TEST": "value-of-the-reference"}) as gatehouse, admin(gatehouse) as api:
        started, *_ = of_file(api, 5)
        assert (started["by"], started["changed"], started["start"]) == ("gatehouse", [], "again")


def test_what_is_no_longer_valid_changes_nothing_and_says_why(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    settings = config(tmp_path / "state", engine.port)
    (tmp_path / "key").write_text("file-key-0123456789abcdef0123456789abcdef\n")
    keyed = yaml.safe_load(yaml.safe_dump(settings))
    keyed["identity"]["api_keys"]["static"].append(
        {"id": "late", "key": "${file:" + str(tmp_path / "key") + "}", "tenant": "acme", "models": []}
    )
    with launch(settings) as gatehouse, admin(gatehouse) as api:
        applied = put(api, text(keyed))
        assert applied.status_code == 200, applied.text
        with_key, _ = of_file(api, 2)
        assert put(api, text(settings)).status_code == 200
        of_file(api, 3)
        (tmp_path / "key").unlink()
        before = api.get("/config").json()
        refused = back(api, with_key["number"])
        assert refused.status_code == 400 and "identity.api_keys.static" in refused.text, refused.text
        assert api.get("/config").json() == before
        assert len(of_file(api, 3)) == 3
        problem(back(api, 10**9), 404, "not_found")
        assert "'newest' is none" in api.post("/config/history/newest/rollback").json()["detail"]
        with admin(gatehouse, "operator") as operator:
            problem(back(operator, with_key["number"]), 403, "policy_denied")


def test_writes_of_the_store_are_undone_together(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    settings = config(tmp_path / "state", engine.port)
    with launch(settings) as gatehouse, admin(gatehouse) as api:
        assert api.post("/limits", json=LIMIT).status_code == 201
        made = newest(api)
        assert (made["of"], made["by"], made["changed"]) == ("store", "acme/a-admin", ["limits/slow"])
        far = {"name": "far", "runtime": "external", "url": f"http://127.0.0.1:{engine.port}", "api_key": SECRET}
        assert api.post("/engines", json=far).status_code == 201
        assert api.post("/models", json={"name": "m2", "pool": ["far"]}).status_code == 201
        whole = newest(api)
        wanted = {"limits": [{"name": "fast", "requests": {"rate": 99, "per": "1m"}}], "models": []}
        assert api.post("/sync", json=wanted, params={"delete": "true"}).status_code == 200
        synced = newest(api)
        assert sorted(synced["changed"]) == ["limits/fast", "limits/slow", "models/m2"], "one unit"
        assert api.delete("/engines/far").status_code == 200
        gone = newest(api)
        diff = {entry["path"]: entry for entry in api.get(f"/config/history/{gone['number']}").json()["diff"]}
        assert diff["engines/far.api_key"]["from"] == "********"
        kept = b"".join(path.read_bytes() for path in (tmp_path / "state").glob("*.db*"))
        assert SECRET.encode() not in kept

        plan = back(api, whole["number"], dry_run="true").json()
        assert sorted(plan["changed"]) == ["engines/far", "limits/fast", "limits/slow", "models/m2"]
        assert api.get("/limits/slow").status_code == 404, "a dry run changes nothing"
        problem(back(api, whole["number"], synced["number"]), 412, "version_mismatch")
        assert back(api, whole["number"], gone["number"], wait="20").status_code == 200
        assert api.get("/limits/slow").json()["requests"]["rate"] == 5
        assert api.get("/limits/fast").status_code == 404
        until(lambda: gatehouse.chat(model="m2").status_code == 200, what="the model that is back")
        assert engine.received[-1].header("authorization") == f"Bearer {SECRET}", "with its secret"
        undone = newest(api)
        assert (undone["of"], undone["by"], undone["rolled_back_to"]) == ("store", "acme/a-admin", whole["number"])
        assert back(api, gone["number"]).status_code == 200, "and forward again"
        assert api.get("/limits/fast").status_code == 200 and api.get("/engines/far").status_code == 404
        assert undone["number"] < newest(api)["number"]
        with admin(gatehouse, "viewer") as viewer:
            problem(back(viewer, whole["number"]), 403, "policy_denied")


def test_going_back_is_refused_where_something_else_needs_what_would_go(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    with launch(config(tmp_path / "state", engine.port)) as gatehouse, admin(gatehouse) as api:
        assert api.post("/limits", json=LIMIT).status_code == 201
        first = newest(api)
        assert api.post("/limits", json={**LIMIT, "name": "needed"}).status_code == 201
        assert api.post("/keys", json={"id": "k1", "tenant": "acme", "models": ["*"], "limits": ["needed"]}).status_code == 201
        refused = back(api, first["number"])
        assert refused.status_code == 409 and "needed" in refused.text
        assert api.get("/limits/needed").status_code == 200


def test_only_so_many_are_kept_and_none_where_none_are_wanted(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    settings = config(tmp_path / "state", engine.port, store={"history": 3})
    with launch(settings) as gatehouse, admin(gatehouse) as api:
        of_file(api, 1)
        for number in range(5):
            assert api.post("/limits", json={**LIMIT, "name": f"l{number}"}).status_code == 201
        assert [one["changed"] for one in entries(api)] == [["limits/l4"], ["limits/l3"], ["limits/l2"]]
        page = api.get("/config/history", params={"limit": "2"}).json()
        assert len(page["items"]) == 2
        rest = api.get("/config/history", params={"limit": "2", "cursor": page["cursor"]}).json()
        assert [one["changed"] for one in rest["items"]] == [["limits/l2"]] and rest["cursor"] is None
    with launch(config(tmp_path / "none", engine.port, store={"history": 0})) as gatehouse, admin(gatehouse) as api:
        assert api.post("/limits", json=LIMIT).status_code == 201
        assert entries(api) == []
        assert "There is no entry 1" in gatehouse_cli(gatehouse, "config", "rollback", "1", "--yes", code=1)


def test_the_command_line(tmp_path: Path, engine: EngineThread, launch: Launch) -> None:
    with launch(config(tmp_path / "state", engine.port)) as gatehouse, admin(gatehouse) as api:
        assert api.post("/limits", json=LIMIT).status_code == 201
        first = newest(api)["number"]
        assert api.delete("/limits/slow").status_code == 200
        listed = gatehouse_cli(gatehouse, "config", "history")
        assert "limits/slow" in listed and "acme/a-admin" in listed
        assert "limits/slow" in gatehouse_cli(gatehouse, "config", "show", str(first))
        assert "nothing has changed" in gatehouse_cli(gatehouse, "config", "rollback", str(first), code=1)
        gatehouse_cli(gatehouse, "config", "rollback", str(first), "--yes")
        assert api.get("/limits/slow").status_code == 200


def gatehouse_cli(gatehouse: Gatehouse, *arguments: str, code: int = 0) -> str:
    environ = {"GATEHOUSE_URL": gatehouse.admin_url, "GATEHOUSE_KEY": KEYS["admin"], "HOME": str(gatehouse.directory), "COLUMNS": "200"}
    done = CliRunner().invoke(app, list(arguments), env=environ)
    assert done.exit_code == code, done.output
    return done.output
